"""The console's data from the store: a turn's story, the newest rewards, curves, conduct, lags."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from api_harness import Service, serve, wait_for
from console_world import SCRIPT, TURNS, VERSIONS, fill, inference_id, is_good, policy, put_rewarded, reward, turn
from sqlalchemy import update

from core.clock import SystemClock
from core.errors import LogUnavailable
from core.events import GateVerdict, Topic
from core.ports import TopicPartition
from core.store.database import tables
from onward.processes.stage_alarms import StageAlarms

START = datetime(2026, 1, 2, tzinfo=UTC)
MakeService = Callable[..., Service]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serve(tmp_path_factory.mktemp("curves") / "service") as service:
        fill(service.store, START)
        yield service


def test_a_turn_tells_its_story(world: Service) -> None:
    story = world.get(f"/v1/turns/{inference_id(7)}").json()
    assert story["messages"][1]["content"] == f"write total7(xs) {SCRIPT}"
    assert "".join(token["text"] for token in story["tokens"]) == "sum of 7<|im_end|>"
    assert [token["version"] for token in story["tokens"]][:5] == [1, 1, 1, 1, 1]
    assert story["tokens"][1]["logprob"] == pytest.approx(-0.04)
    assert [(outcome["name"], outcome["inference_id"]) for outcome in story["outcomes"]] == [
        ("accepted", inference_id(7)),
        ("comment", inference_id(7)),
    ]
    assert [(reward["revision"], reward["why"]) for reward in story["rewards"]] == [
        (0, "accepted +0.00, effort -0.10"),
        (1, "accepted +0.00, rejected -0.50"),
    ]


def test_a_token_that_another_version_sampled_says_so(world: Service) -> None:
    story = world.get(f"/v1/turns/{inference_id(TURNS - 1)}").json()
    assert [token["version"] for token in story["tokens"]][3:5] == [VERSIONS - 1, VERSIONS]


def test_nobody_else_reads_a_turn(make_service: MakeService) -> None:
    keys = [{"key": f"key-of-{name}", "namespace": name, "scopes": ("read",)} for name in ("ada", "bob")]
    keys.append({"key": "key-of-caller", "namespace": "ada", "scopes": ("chat",)})
    service = make_service(keys=keys)
    fill(service.store, START, "ada")
    path = f"/v1/turns/{inference_id(0)}"
    asked = {name: service.get(path, authorization=f"Bearer key-of-{name}") for name in ("ada", "bob", "caller")}
    assert {name: answer.status_code for name, answer in asked.items()} == {"ada": 200, "bob": 404, "caller": 404}
    for name in ("curves", "behaviour"):
        assert service.get(f"/v1/{name}", authorization="Bearer key-of-bob").json()["turns"] == 0
    unknown = service.get("/v1/turns/nobody", authorization="Bearer key-of-ada")
    assert unknown.json()["error"]["message"] == "no turn nobody"


def test_the_newest_rewards_come_first_and_page_downwards(world: Service) -> None:
    newest = world.get("/v1/rewards?before=9007199254740991&limit=5").json()
    sequences = [reward["sequence"] for reward in newest["data"]]
    assert sequences == list(range(sequences[0], sequences[0] - 5, -1))
    assert newest["data"][0]["inference_id"] == inference_id(TURNS - 1)
    older = world.get(f"/v1/rewards?before={newest['next']}&limit=5").json()
    assert older["data"][0]["sequence"] == newest["next"] - 1
    assert world.get("/v1/rewards?before=1").json() == {"object": "list", "data": [], "next": 1}
    assert world.get("/v1/rewards?before=1&after=1").json()["error"]["param"] == "before"


def test_curves_rise_as_the_turns_do(world: Service) -> None:
    curves = world.get("/v1/curves").json()
    assert (curves["turns"], curves["workloads"]) == (TURNS, ["chat", "suggestion"])
    assert sum(point["turns"] for point in curves["quality"]) == TURNS
    assert curves["quality"][0]["good"] < curves["quality"][-2]["good"]
    arms = [(version["version"], version["arm"], version["turns"]) for version in curves["versions"]]
    assert arms == [(n, "canary" if n == VERSIONS else "live", TURNS // VERSIONS) for n in range(1, VERSIONS + 1)]
    for version in curves["versions"]:
        assert sum(version["components"].values()) == pytest.approx(version["mean"])
    (latency,) = [entry for entry in curves["latency"] if entry["version"] == 3]
    assert (latency["turns"], latency["p50_s"], latency["p99_s"]) == (32, 27.0, 42.0)


def test_arms_are_told_apart(service: Service) -> None:
    """Of turns that the store had before it knew arms, those of a canary are known by the time of its experiment."""
    fill(service.store, START)
    put_rewarded(service.store, 1, [0.0] * 20, START, TURNS, arm="holdback")

    def arms() -> dict[tuple[int, str], int]:
        return {(each["version"], each["arm"]): each["turns"] for each in service.get("/v1/curves").json()["versions"]}

    usual = {(n, "canary" if n == VERSIONS else "live"): TURNS // VERSIONS for n in range(1, VERSIONS + 1)}
    assert arms() == usual | {(1, "holdback"): 20}
    with service.store.work() as work:
        work.turns._connection.execute(update(tables.turns).values(arm=None))
    assert arms() == usual | {(1, "live"): TURNS // VERSIONS + 20}


def test_smooth_curves_are_means_over_a_stretch_within_their_band(world: Service) -> None:
    points = world.get("/v1/curves").json()["quality"]
    size = points[0]["turns"]
    stretch = max(30, TURNS // 10)
    for place, point in enumerate(points):
        before = points[max(0, place + 1 - stretch // size) : place + 1]
        smooth = point["smooth"]
        assert smooth["turns"] == min(stretch, size * (place + 1))
        if smooth["turns"] % size:
            continue
        turns = sum(each["turns"] for each in before[-(smooth["turns"] // size) :])
        total = sum(each["turns"] * each["mean"] for each in before[-(smooth["turns"] // size) :])
        if turns == smooth["turns"]:
            assert smooth["mean"] == pytest.approx(total / turns)
        if smooth["turns"] < 30:
            assert smooth["mean_low"] is smooth["good_high"] is None
        else:
            assert smooth["mean_low"] < smooth["mean"] < smooth["mean_high"]
            assert smooth["good_low"] < smooth["good"] < smooth["good_high"]
    spread = [version["high"] - version["low"] for version in world.get("/v1/curves").json()["versions"]]
    assert all(0.05 < width < 0.6 for width in spread)
    (few,) = world.get("/v1/curves?turns=1").json()["versions"]
    assert few["low"] is None, "one session alone says nothing of the spread"


def test_a_later_revision_is_what_a_turn_is_worth(world: Service) -> None:
    numbers = range(TURNS // VERSIONS)
    good = sum(is_good(number) and number % 8 != 7 for number in numbers)
    (first, *_) = world.get("/v1/curves").json()["versions"]
    assert first["good"] == pytest.approx(good / len(numbers))


def test_a_turn_whose_latest_reward_is_void_is_worth_nothing_and_not_zero(service: Service) -> None:
    said = turn(1, START)
    rewards = [reward(said, 0, {"accepted": 1.0}), msgspec.structs.replace(reward(said, 1, {}), void=True)]
    with service.store.work() as work:
        work.turns.put([said])
    for given, turns, worth in zip(rewards, (1, 0), (1.0, None), strict=True):
        with service.store.work() as work:
            work.rewards.put([(0, given)])
        (session,) = service.get("/v1/sessions").json()["data"]
        counted = service.get("/v1/curves").json()["turns"], service.get("/v1/frontier").json()["tasks"]
        assert (*counted, session["reward"]) == (turns, turns, worth)


def test_curves_are_bounded_and_of_one_workload_where_asked(world: Service) -> None:
    assert world.get("/v1/curves?turns=60").json()["turns"] <= 60
    assert world.get("/v1/curves?workload=suggestion").json()["turns"] == TURNS // 5
    assert world.get("/v1/curves?turns=10001").json()["error"]["param"] == "turns"
    assert world.get("/v1/behaviour?limit=3").json()["error"]["param"] == "limit"


def test_behaviour_is_what_turns_did(world: Service) -> None:
    behaviour = world.get("/v1/behaviour?turns=1000").json()
    assert behaviour["turns"] == TURNS
    first = behaviour["versions"][0]
    assert (first["version"], first["turns"]) == (1, TURNS // VERSIONS)
    assert (first["searches"], first["edits"], first["tests"]) == (0.0, 0.0, 0.5)
    assert first["seconds"] == pytest.approx(0.25 + (TURNS // VERSIONS - 1) / 2000)


def test_stages_say_how_far_behind_the_log_they_are(service: Service) -> None:
    service.writing.clear()
    for _ in range(3):
        service.chat("hi")
    lags = {stage["stage"]: stage["behind"] for stage in service.get("/v1/stages").json()["data"]}
    assert lags == {"writer": 3, "scorer": 3, "learner": 0}
    with service.store.work() as work:
        work.offsets.put("judge", TopicPartition(Topic.TURNS, 0), 0)
        proposed = policy(work.policies.allocate(START).version, START)
        work.policies.put(
            msgspec.structs.replace(proposed, log_offsets={}, verdict=GateVerdict(action="pass", why="better")),
        )
    lags = {stage["stage"]: stage["behind"] for stage in service.get("/v1/stages").json()["data"]}
    assert lags == {"writer": 3, "scorer": 3, "judge": 3, "learner": 0}
    service.writing.set()

    def caught_up() -> bool:
        return bool(service.get("/v1/stages").json()["data"][0]["behind"] == 0)

    wait_for(caught_up, "the writer to catch up")


def test_stages_that_are_down_are_named_and_why(service: Service) -> None:
    class Part:
        name, state, fault, restarts = "scorer", "down", "KeyError in book.py:7", 3

    part = Part()
    looking = StageAlarms([part], service.store, SystemClock(), well_s=0.0)
    looking.look()
    (down,) = service.get("/v1/stages").json()["down"]
    assert (down["stage"], down["why"]) == ("scorer", "the stage scorer is down: KeyError in book.py:7")
    (alarm,) = service.get("/v1/alarms").json()["alarms"]
    assert (alarm["monitor"], alarm["workload"], alarm["state"]) == ("stage_down", "scorer", "opened")
    part.state, part.fault = "ok", None
    looking.look()
    assert service.get("/v1/stages").json()["down"] == []


def test_without_the_log_lags_are_unknown(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_partition: TopicPartition) -> int:
        raise LogUnavailable("the log is away")

    monkeypatch.setattr(service.log, "end", away, raising=False)
    assert {stage["behind"] for stage in service.get("/v1/stages").json()["data"]} == {None}


def test_an_empty_store_has_empty_curves(tmp_path: Path) -> None:
    with serve(tmp_path / "empty") as service:
        curves = service.get("/v1/curves").json()
        assert [curves[name] for name in ("turns", "quality", "versions", "latency")] == [0, [], [], []]
        assert service.get("/v1/behaviour").json()["versions"] == []
