"""The route `GET /v1/stages`: how far behind the log each stage is, and which are down."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from fastapi import APIRouter, Request, Response

from api.access.context import ApiContext
from api.access.plain import identity_of, json_response, only_parameters
from api.http.background import on_a_thread
from api.operator.health import readiness_of
from api.turns.lookup import read
from core.errors import LogUnavailable
from core.events import Topic
from core.operations.alarms import STAGE_DOWN
from core.ports import EventLog, TopicPartition
from core.store.work import View

_LEARNER = "learner"  # its offsets stand with its versions
_EVERYWHERE = ("writer", "scorer")  # no service is without them
_LOOKED_BACK = 64  # versions; proposed ones are not the learner's


def stages_router(context: ApiContext) -> APIRouter:
    router = APIRouter(tags=["status"])
    services = context.services

    @router.get("/v1/stages")
    async def list_stages(request: Request) -> Response:
        """Return the number of records that each stage has yet to read; null where the log does not answer.

        It is null, too, to a key without the scope admin where other namespaces use the service: it counts theirs.
        The learner's number is as of its newest version: the records that it holds for the next one are included. A
        stage that not every service has is listed once it has read something. `down` lists stages of any process that
        are down, or were until a short while ago, and why. `readiness` is that of this process."""
        only_parameters(request)
        topics = {**services.readers, _LEARNER: Topic.REWARDS}
        reached, down = await read(services, lambda view: (_reached(view, services.readers), _down(view)))
        ends = None
        if context.keys.sees_all(identity_of(request)):
            with suppress(LogUnavailable):
                ends = await on_a_thread(_ends, services.log, set(topics.values()))
        data = [
            {"stage": stage, "topic": topic, "behind": None if ends is None else _behind(ends, topic, reached[stage])}
            for stage, topic in topics.items()
            if stage in reached
        ]
        return json_response({"object": "list", "data": data, "down": down, "readiness": readiness_of(services)})

    return router


def _reached(view: View, readers: Iterable[str]) -> dict[str, dict[str, int]]:
    """Return, for each stage, the next offset of each partition."""
    learned = [p for p, _ in view.policies.newest(_LOOKED_BACK) if not p.is_proposed]
    stored = {group: view.offsets.of_group(group) for group in readers}
    return {
        **{
            group: {str(source): offset for source, offset in found.items()}
            for group, found in stored.items()
            if found or group in _EVERYWHERE
        },
        _LEARNER: dict(learned[0].log_offsets) if learned else {},
    }


def _down(view: View) -> list[dict[str, Any]]:
    """Return the stages that are down according to the open alarms."""
    openings = [alarm.opening for alarm in view.alarms.that_are_open() if alarm.opening.monitor == STAGE_DOWN]
    return [{"stage": found.workload, "why": found.meaning, "since": found.opened_at} for found in openings]


def _ends(log: EventLog, topics: Iterable[Topic]) -> dict[TopicPartition, int]:
    sources = [TopicPartition(topic, number) for topic in topics for number in range(log.partitions(topic))]
    return {source: log.end(source) for source in sources}


def _behind(ends: dict[TopicPartition, int], topic: Topic, reached: dict[str, int]) -> int:
    of_topic: dict[str, Any] = {str(source): end for source, end in ends.items() if source.topic is topic}
    return sum(max(0, end - reached.get(source, 0)) for source, end in of_topic.items())
