"""Two replicas keep serving while Redis is flushed, killed, stopped, restarted, or was never there."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
import redis as redis_py
from api_harness import WAIT_S, Service, serve_replicas, wait_for
from own_redis import OwnRedis, own_redis
from reward_stream import events, put
from scripted_policy import says

from api.live_state.redis_announcer import RedisAnnouncer
from api.live_state.redis_link import RedisLink, RedisUnavailable
from core import telemetry
from core.events import Completion
from core.ports import REWARDS

TIMEOUT_S = 5.0  # a busy machine may take seconds over an answer of a Redis that is there
AT_ONCE = 8
Message = dict[str, str]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnRedis]:
    with own_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def replicas(server: OwnRedis, tmp_path: Path) -> Iterator[list[Service]]:
    with serve_replicas(tmp_path / "service", 2, live_states=server.live_states(timeout_s=TIMEOUT_S)) as services:
        yield services


@contextmanager
def killed(server: OwnRedis) -> Iterator[None]:
    server.kill()
    yield
    server.up()


def fallbacks(reason: str) -> float:
    samples = [sample for metric in telemetry.LIVE_STATE_FALLBACKS.collect() for sample in metric.samples]
    return sum(s.value for s in samples if s.name.endswith("_total") and s.labels["reason"] == reason)


class Conversation:
    """A conversation whose turns alternate between two replicas."""

    def __init__(self, replicas: list[Service]) -> None:
        self._replicas = replicas
        self._said: list[Message] = []
        self.inference_ids: list[str] = []

    def go_on(self, turns: int) -> None:
        for _ in range(turns):
            number = len(self.inference_ids)
            service = self._replicas[number % len(self._replicas)]
            service.policy.scripts.append(says(f"a{number}"))
            self._said.append({"role": "user", "content": f"q{number}"})
            answer = service.chat(*self._said)
            assert answer.status_code == 200, answer.text
            self._said.append({"role": "assistant", "content": f"a{number}"})
            self.inference_ids.append(answer.headers["x-onward-inference-id"])

    def turns(self) -> list[Completion]:
        return [self._replicas[0].turn(inference_id) for inference_id in self.inference_ids]


def continued(turns: list[Completion]) -> list[bool]:
    return [child.parent_id == parent.inference_id for parent, child in pairwise(turns)]


# --------------------------------------------------------------------------------------------- conversations


def test_replicas_continue_each_others_turns_before_the_store_has_them(replicas: list[Service]) -> None:
    replicas[0].writing.clear()
    conversation = Conversation(replicas)
    conversation.go_on(5)
    for service in replicas:
        assert service.live_state.state == "ok"
        said = {"metric_name": "accepted", "value": True, "inference_id": conversation.inference_ids[0]}
        assert service.post("/v1/feedback", said).status_code == 200
    replicas[0].writing.set()
    turns = conversation.turns()
    assert continued(turns) == [True] * 4
    assert len({turn.session_id for turn in turns}) == 1


@pytest.mark.parametrize("store", ["knows", "is behind"])
def test_a_flush_in_the_middle_of_a_conversation(replicas: list[Service], server: OwnRedis, store: str) -> None:
    conversation = Conversation(replicas)
    conversation.go_on(2)
    if store == "is behind":
        conversation.turns()
        replicas[0].writing.clear()
        conversation.go_on(1)
    else:
        conversation.turns()
    server.flush()
    conversation.go_on(3)
    replicas[0].writing.set()
    expected = [True] * 4 if store == "knows" else [True, True, False, True, True]
    assert continued(conversation.turns()) == expected, "what nobody knows any more is rendered afresh, and goes on"
    assert [service.live_state.state for service in replicas] == ["ok", "ok"]


OUTAGES: dict[str, Callable[[OwnRedis], AbstractContextManager[None]]] = {
    "killed": killed,
    "hanging": OwnRedis.hanging,
}


@pytest.mark.parametrize("how", OUTAGES)
def test_an_outage_in_the_middle_of_a_conversation(replicas: list[Service], server: OwnRedis, how: str) -> None:
    conversation = Conversation(replicas)
    conversation.go_on(2)
    failed, away = fallbacks("failed"), fallbacks("away")
    with OUTAGES[how](server):
        conversation.go_on(6)
        wait_for(lambda: all(service.live_state.state != "ok" for service in replicas), "the outage's discovery")
        conversation.go_on(2)
        answer = replicas[0].post(
            "/v1/feedback",
            {"metric_name": "accepted", "value": True, "inference_id": conversation.inference_ids[-1]},
        )
        assert answer.status_code == 200
        assert fallbacks("failed") - failed <= len(replicas), "each replica waits once, and no longer"
        assert fallbacks("away") > away
    wait_for(lambda: all(service.live_state.state == "ok" for service in replicas), "the return")
    conversation.turns()
    replicas[0].writing.clear()
    conversation.go_on(3)
    replicas[0].writing.set()
    assert continued(conversation.turns())[-2:] == [True, True], "and replicas see each other's again"


def test_many_requests_at_once_wait_for_one_that_hangs_once(replicas: list[Service], server: OwnRedis) -> None:
    failed, requests = fallbacks("failed"), 4 * AT_ONCE
    with server.hanging(), ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(lambda n: replicas[n % 2].chat(f"hello {n}"), range(requests)))
    assert {answer.status_code for answer in answers} == {200}
    assert fallbacks("failed") - failed < requests, "only what was under way waits, and each of these asks twice or so"


def test_nobody_waits_for_what_is_known_to_be_away(server: OwnRedis) -> None:
    asking = RedisLink(server.settings(url="redis://127.0.0.1:1/0")).ask("get_chain", "GET", "x")
    with pytest.raises(RedisUnavailable):
        asking.send(None)  # its first step is the last


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "redis://nobody.invalid/0", "unix:///nowhere"])
def test_a_redis_that_never_was(server: OwnRedis, tmp_path: Path, url: str) -> None:
    states = server.live_states(url=url, timeout_s=TIMEOUT_S)
    with serve_replicas(tmp_path / "service", 2, live_states=states) as replicas:
        conversation = Conversation(replicas[:1])
        conversation.go_on(3)
        assert continued(conversation.turns()) == [True, True]
        assert all(service.live_state.state not in ("ok", "not connected", "") for service in replicas)
        status = replicas[0].get("/v1/status").json()["last_minute"]
        assert status == {"requests": 3, "turns": 3, "errors": 0, "complete": False}


def test_a_redis_that_is_full_says_so(replicas: list[Service], server: OwnRedis) -> None:
    with redis_py.Redis.from_url(server.url) as client:
        client.config_set("maxmemory", 1)
        try:
            wait_for(lambda: "maxmemory" in replicas[0].live_state.state, "the beat's refusal")
            conversation = Conversation(replicas)
            conversation.go_on(2)
        finally:
            client.config_set("maxmemory", 0)
    wait_for(lambda: replicas[0].live_state.state == "ok", "the return")


# --------------------------------------------------------------------------------------------- claims


def both_say(replicas: list[Service], feedback_id: str, inference_id: str) -> list[httpx.Response]:
    """Send the same id with different content to both replicas at once."""

    def say(service: Service, value: float) -> httpx.Response:
        fields = {"feedback_id": feedback_id, "inference_id": inference_id, "metric_name": "rating", "value": value}
        return service.post("/v1/feedback", fields)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(say, replicas, (0.0, 1.0)))


def check_one_recorded(replicas: list[Service], answers: list[httpx.Response], feedback_id: str) -> None:
    """Assert that no answer confirms a value that the store does not hold."""
    stored = replicas[0].get(f"/v1/feedback/{feedback_id}").json()["value"]
    statuses = [answer.status_code for answer in answers]
    for value, status in enumerate(statuses):
        assert status in ((200, 202) if value == stored else (409, 202)), (feedback_id, stored, statuses)


@contextmanager
def again_and_again(work: Callable[[], None], pause_s: float) -> Iterator[None]:
    stop = threading.Event()

    def loop() -> None:
        while not stop.wait(pause_s):
            work()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


TROUBLES: dict[str, Callable[[OwnRedis], AbstractContextManager[None]]] = {
    "none": lambda _: nullcontext(),
    "killed": killed,
    "flushed all the time": lambda server: again_and_again(server.flush, 0.0),
    "restarted all the time": lambda server: again_and_again(server.restart, 0.1),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_of_two_contents_under_one_id_one_is_recorded(server: OwnRedis, tmp_path: Path, trouble: str) -> None:
    states = server.live_states(forgotten_s=60.0, timeout_s=TIMEOUT_S)
    with serve_replicas(tmp_path / "service", 2, live_states=states, feedback={"lookup_s": 60}) as replicas:
        inference_id = replicas[0].chat("hi").headers["x-onward-inference-id"]
        replicas[0].turn(inference_id)
        with TROUBLES[trouble](server):
            for number in range(10):
                answers = both_say(replicas, f"f{number}", inference_id)
                check_one_recorded(replicas, answers, f"f{number}")


def test_a_retry_is_no_conflict_whatever_redis_does(replicas: list[Service], server: OwnRedis) -> None:
    inference_id = replicas[0].chat("hi").headers["x-onward-inference-id"]
    said = {"feedback_id": "f1", "inference_id": inference_id, "metric_name": "accepted", "value": True}
    answers = [replicas[0].post("/v1/feedback", said)]
    server.flush()
    answers.append(replicas[1].post("/v1/feedback", said))
    with killed(server):
        answers += [service.post("/v1/feedback", said) for service in replicas]
    assert [answer.json()["status"] for answer in answers] == ["recorded"] * 4


# --------------------------------------------------------------------------------------------- limits, counts


def test_replicas_share_a_limit_and_limit_alone_without_redis(server: OwnRedis, tmp_path: Path) -> None:
    limit = {"default": {"requests_per_minute": 1, "burst": 4}}
    states = server.live_states(timeout_s=TIMEOUT_S)
    with serve_replicas(tmp_path / "service", 2, live_states=states, namespaces=limit) as replicas:
        statuses = [replicas[number % 2].chat("hi").status_code for number in range(6)]
        assert statuses == [200] * 4 + [429] * 2
        with killed(server):
            wait_for(lambda: all(service.live_state.state != "ok" for service in replicas), "the outage's discovery")
            statuses = [service.chat("hi").status_code for service in replicas for _ in range(5)]
            assert statuses == ([200] * 4 + [429]) * 2


def test_the_last_minute_is_that_of_all_replicas(replicas: list[Service]) -> None:
    assert replicas[0].chat("hi").status_code == replicas[1].chat("hi").status_code == 200
    assert replicas[1].chat("hi", functions=[{}]).status_code == 400
    expected = {"requests": 3, "turns": 2, "errors": 1, "complete": True}
    for service in replicas:
        wait_for(lambda s=service: s.get("/v1/status").json()["last_minute"] == expected, "the sum")


# --------------------------------------------------------------------------------------------- changes


def test_reward_streams_of_every_replica_wake_when_a_scorer_says_so(
    server: OwnRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.operator.rewards._POLL_S", 600.0)
    monkeypatch.setattr("api.operator.rewards._ANNOUNCED_POLL_S", 600.0)
    states = server.live_states()
    with serve_replicas(tmp_path / "service", 2, live_states=states) as replicas:
        streams = [httpx.stream("GET", f"{service.url}/v1/rewards/stream", timeout=WAIT_S) for service in replicas]
        with streams[0] as first, streams[1] as second:
            lines = [first.iter_lines(), second.iter_lines()]
            assert [next(each) for each in lines] == [": open"] * 2
            announcer = RedisAnnouncer(states[0]._settings)
            for number in (1, 2):
                put(replicas[0], number)
                announcer.announce(REWARDS)
                assert [events(each, 1)[0][1]["inference_id"] for each in lines] == [f"i{number}"] * 2
            announcer.close()
