"""Feedback at any replica on a turn that waits in another replica's spool.

While the log is unavailable, other replicas know of the turn through Redis alone; feedback is accepted whatever Redis
does."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from api_harness import WAIT_S, BreakableLog, Service, serve_replicas, wait_for
from own_redis import OwnRedis, own_redis

from core.events import Completion, Event, Topic
from core.ids import new_inference_id, new_session_id
from core.ports import Position

TIMEOUT_S = 3.0  # a busy machine may take seconds over an answer of a Redis that is there
LONG_S = 2.0 * WAIT_S
TAKEN_ON_TRUST = 202


class SpoolingTurns:
    """A wrapper of a log that keeps turns, as a spool does."""

    def __init__(self, log: BreakableLog, monkeypatch: pytest.MonkeyPatch) -> None:
        self._append = log.append
        self.kept: list[Completion] = []
        monkeypatch.setattr(log, "append", self.append)

    async def append(self, topic: Topic, event: Event) -> Position:
        if not isinstance(event, Completion):
            return await self._append(topic, event)
        self.kept.append(event)
        return Position(topic=topic, partition=0, offset=-1, size=0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnRedis]:
    with own_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def replicas(server: OwnRedis, tmp_path: Path) -> Iterator[list[Service]]:
    with serve_replicas(tmp_path / "service", 2, live_states=server.live_states(timeout_s=TIMEOUT_S)) as services:
        yield services


@pytest.fixture(autouse=True)
def spool(replicas: list[Service], monkeypatch: pytest.MonkeyPatch) -> SpoolingTurns:
    return SpoolingTurns(replicas[0].log, monkeypatch)


def unknown() -> str:
    return new_inference_id(new_session_id())


def judged(replica: Service, inference_id: str) -> int:
    body = {"metric_name": "accepted", "value": True, "inference_id": inference_id}
    return replica.post("/v1/feedback", body).status_code


def test_feedback_finds_a_turn_in_another_replicas_spool(replicas: list[Service]) -> None:
    inference_id = replicas[0].chat("hello").json()["onward"]["inference_id"]
    assert judged(replicas[1], inference_id) == 200
    assert judged(replicas[1], unknown()) == 404


def test_redis_hangs_for_a_moment_while_turns_are_spooled(
    replicas: list[Service], server: OwnRedis, spool: SpoolingTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer comes once other replicas can know the turn, the first of its session or one in a conversation."""
    monkeypatch.setattr("api.live_state.redis_live_state._SETTLE_S", LONG_S)  # however long the moment is
    with ThreadPoolExecutor(2) as pool:
        with server.hanging():
            wait_for(lambda: replicas[0].live_state.state != "ok", "the outage's discovery")
            answering = [pool.submit(replicas[0].chat, *said) for said in (("hello",), ("a", "b", "c"))]
            wait_for(lambda: len(spool.kept) == 2, "the turns")
        answers = [each.result() for each in answering]
    wait_for(lambda: replicas[1].live_state.state == "ok", "the return")
    for answer in answers:
        assert answer.json()["onward"]["logged"]
        assert judged(replicas[1], answer.json()["onward"]["inference_id"]) == 200


def test_while_redis_is_away_nothing_is_said_not_to_exist(
    replicas: list[Service], server: OwnRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No answer waits for what is known to be away by everybody: it would wait for longer than its client does."""
    monkeypatch.setattr("api.live_state.redis_live_state._SETTLE_S", LONG_S)
    inference_id = replicas[0].chat("hello").json()["onward"]["inference_id"]
    server.kill()
    try:
        wait_for(lambda: all(each.live_state.state != "ok" for each in replicas), "the outage's discovery")
        assert judged(replicas[1], inference_id) == TAKEN_ON_TRUST
        replicas[0].live_state._link._lost_s -= LONG_S
        later = replicas[0].chat("later").json()["onward"]["inference_id"]
        assert judged(replicas[1], later) == TAKEN_ON_TRUST
    finally:
        server.up()
    wait_for(lambda: all(each.live_state.state == "ok" for each in replicas), "the return")
    wait_for(lambda: judged(replicas[1], later) == 200, "what Redis was told late")
    assert judged(replicas[1], unknown()) == 404
