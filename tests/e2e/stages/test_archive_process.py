"""`onward archive` as a process: killed, taken over, and without delaying other stages."""

import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from kafka_world import topics_of_our_own
from ports import free_port
from service_tree import Service, wait_for
from services import require_services
from stage_processes import StageProcess
from stores import database

from core.events import Completion, Event, Reward, SessionEnded, Topic
from core.ids import Namespace, SessionId
from core.ports import TopicPartition
from onward.replays.history import await_log, open_history
from onward.wiring.foundation import Foundation, open_foundation

KEEPS = {
    "archive.enabled": "true",
    "archive.retention_days": "0",
    "archive.interval_s": "0.2",
    "archive.segment_bytes": "65536",
    "ingest.partitions": "4",
}
DELETED = 'onward_log_deleted_records_total{topic="onward.turns"}'
ARCHIVED = 'onward_archived_records_total{topic="onward.rewards"} 8.0'


@pytest.fixture(params=["embedded", "distributed"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    if request.param == "embedded":
        yield KEEPS
        return
    services = require_services()
    with topics_of_our_own(services.kafka) as kafka, database("postgres", tmp_path) as store:
        assert store.postgres is not None
        yield KEEPS | {
            "mode": "distributed",
            "kafka.bootstrap_servers": str(list(services.kafka)).replace("'", '"'),
            "kafka.prefix": kafka.prefix,
            "postgres.url": store.postgres.url,
            "redis.url": services.redis,
            "release.lease_s": "1.0",
        }


@pytest.fixture
def foundation(settings: dict[str, Any], tmp_path: Path) -> Iterator[Foundation]:
    overrides = {f"ONWARD_{name.upper().replace('.', '__')}": str(value) for name, value in settings.items()}
    foundation = open_foundation(tmp_path / "service", overrides)
    await_log(foundation.log)
    yield foundation
    foundation.close()


def sources(foundation: Foundation, topic: Topic = Topic.TURNS) -> list[TopicPartition]:
    return [TopicPartition(topic, index) for index in range(foundation.log.partitions(topic))]


def say(foundation: Foundation, first: int, count: int) -> None:
    """Append ended sessions, and advance writer and scorer past them."""
    now = datetime.now(UTC)
    said: list[Event] = [
        SessionEnded(session_id=SessionId(f"s{number}"), namespace=Namespace(f"n{number % 3}"), received_at=now)
        for number in range(first, first + count)
    ]
    foundation.log.append_blocking(Topic.TURNS, said)
    with foundation.store.work() as work:
        for source in sources(foundation):
            for group in ("writer", "scorer"):
                work.offsets.put(group, source, foundation.log.end(source))


def archived(foundation: Foundation, topic: Topic = Topic.TURNS) -> int:
    with foundation.store.look() as view:
        return sum(each.next_offset for source, each in view.archived.reached().items() if source.topic == topic)


def all_is_archived(foundation: Foundation, topic: Topic = Topic.TURNS) -> bool:
    return archived(foundation, topic) == sum(foundation.log.end(source) for source in sources(foundation, topic))


def is_deleted(foundation: Foundation) -> bool:
    return all(foundation.log.earliest(source) >= foundation.log.end(source) - 1 for source in sources(foundation))


def test_killed_again_and_again_it_keeps_each_record_once(
    foundation: Foundation, settings: dict[str, Any], tmp_path: Path
) -> None:
    directory, said = tmp_path / "service", 0
    with (
        StageProcess("archive", directory, "one", settings) as one,
        StageProcess("archive", directory, "other", settings) as other,
    ):
        for turn in range(6):
            done = archived(foundation)  # before they are said: all of them may be archived by the next look
            say(foundation, said, 2000)
            said += 2000
            wait_for(lambda done=done: archived(foundation) > done, 60, "a stretch")  # and more are under way
            victim = (one, other)[turn % 2]
            victim.kill()
            victim.restart()
        wait_for(lambda: all_is_archived(foundation) and is_deleted(foundation), 120, "archive and deletion")
    found = Counter(
        record.event.session_id
        for records in open_history(foundation, Topic.TURNS).read()
        for record in records
        if isinstance(record.event, SessionEnded)
    )
    assert found == Counter({f"s{number}": 1 for number in range(said)})


def test_what_users_say_of_a_turn_that_the_log_no_longer_has_counts_as_before(
    make_service: Callable[..., Service], tmp_path: Path
) -> None:
    keeps = {name.replace(".", "__"): value for name, value in KEEPS.items()} | {"archive__retention_days": "0.00001"}
    port = free_port()
    service = make_service(**keeps, learner__enabled="false", metrics__port=port).start()
    assert service.get("/readyz")["components"]["archive"] == "ok"
    asked = [service.chat(f"[web] write total_{n}(xs): sum of xs", max_tokens=8)["onward"] for n in range(8)]
    for onward in asked:
        service.post("/v1/feedback", {"inference_id": onward["inference_id"], "metric_name": "accepted", "value": True})
    foundation = open_foundation(service.directory, service.overrides)
    wait_for(lambda: all(rewards_of(service, onward["inference_id"]) for onward in asked), 60, "rewards")
    wait_for(lambda: all_is_archived(foundation, Topic.REWARDS) and is_deleted(foundation), 60, "deletion")
    for told in DELETED, ARCHIVED:  # a moment after it is done
        wait_for(lambda told=told: told in figures(port), what=told)
    gone = asked[0]["inference_id"]
    assert rewards_of(service, gone) == [1.0]
    service.post("/v1/feedback", {"inference_id": gone, "metric_name": "rejected", "value": True})
    wait_for(lambda: len(rewards_of(service, gone)) == 2, what="a revision")
    service.stop()
    for topic, kind in ((Topic.TURNS, Completion), (Topic.REWARDS, Reward)):
        found = [
            record.event.inference_id
            for records in open_history(foundation, topic).read()
            for record in records
            if isinstance(record.event, kind)
        ]
        assert set(found) == {onward["inference_id"] for onward in asked}
        assert len(found) == len(asked) + (topic is Topic.REWARDS)
    foundation.close()


def figures(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        return str(answer.read().decode())


def rewards_of(service: Service, inference_id: str) -> list[float]:
    """Return the reward of each revision."""
    data = service.get("/v1/rewards?limit=100")["data"]
    mine = sorted((r["revision"], r["value"]) for r in data if r["inference_id"] == inference_id)
    return [value for _, value in mine]
