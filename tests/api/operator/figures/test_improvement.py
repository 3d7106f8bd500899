"""Whether the model is better than it was, with its interval, and what a rollback would leave behind."""

import math
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from api_harness import Service, serve
from console_world import TURNS, VERSIONS, fill, put_rewarded, some_good

from api.operator.figures.improvement import BASE_NEEDED, NEEDED
from api.operator.figures.intervals import estimate, quantile
from core.clock import ManualClock
from core.events import Release
from core.ids import Namespace, base_ref

START = datetime(2026, 1, 2, tzinfo=UTC)


# ------------------------------------------------------------------------------------------------ intervals


def test_where_every_turn_is_a_session_of_its_own_the_error_is_the_usual_one() -> None:
    values = [random.Random(3).gauss(0, 1) for _ in range(400)]
    found = estimate(enumerate(values))
    mean = sum(values) / len(values)
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    assert (found.mean, found.error) == (pytest.approx(mean), pytest.approx(spread / math.sqrt(len(values))))


def test_a_session_that_says_the_same_ten_times_is_one_witness() -> None:
    values = [(session, float(session % 2)) for session in range(40)]
    once, often = estimate(values), estimate(values * 10)
    assert often.error == pytest.approx(once.error)
    alone = estimate([("s", 1.0), ("s", 0.0)])
    assert (alone.mean, alone.low, alone.high) == (0.5, None, None)


def test_an_interval_holds_what_it_says_it_does() -> None:
    chance = random.Random(5)
    held = 0
    for _ in range(400):
        means = {session: chance.gauss(0, 1) for session in range(40)}
        found = estimate((session, mean + chance.gauss(0, 1)) for session, mean in means.items() for _ in range(5))
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 0 <= found.high
    assert 0.90 < held / 400 < 0.98


def test_quantiles_of_none_are_none() -> None:
    assert [quantile(list(range(100)), share) for share in (0.5, 0.99)] == [50, 99]
    assert quantile([], 0.5) is None


# ------------------------------------------------------------------------------------------------ the route


def test_it_is_better_by_so_much(service: Service) -> None:
    put_rewarded(service.store, 1, some_good(300, 0.3), START, 0)
    put_rewarded(service.store, 2, some_good(300, 0.6), START, 300)
    put_rewarded(service.store, 3, some_good(300, 0.9), START, 600)  # which was taken back
    service.policy.live_version = base_ref(2)
    found = service.get("/v1/improvement").json()
    assert (found["verdict"], found["how"], found["versions"]) == ("better", "earlier", [2, 2])
    assert (found["turns"], found["base_turns"], found["first"]) == (300, 300, 1)
    assert (found["mean"], found["base_mean"]) == (pytest.approx(0.6), pytest.approx(0.3))
    assert found["difference"] == pytest.approx(0.3, abs=0.03), "each user held against themselves"
    at_one_look = 1.96 * math.sqrt((0.3 * 0.7 + 0.6 * 0.4) / 300)
    assert 0 < found["low"] < found["difference"] - at_one_look


def test_it_is_worse_or_no_different(service: Service) -> None:
    put_rewarded(service.store, 1, some_good(300, 0.5), START, 0)
    put_rewarded(service.store, 2, some_good(300, 0.5), START, 300)
    service.policy.live_version = base_ref(2)
    assert service.get("/v1/improvement").json()["verdict"] == "no difference"
    put_rewarded(service.store, 2, some_good(1200, 0.1), START, 600)
    assert service.get("/v1/improvement").json()["verdict"] == "worse"


def test_it_is_as_good_as_ever_until_it_falls(service: Service) -> None:
    """The newest turns count by what they were first given, against the best that came before them."""

    def lately() -> dict[str, Any]:
        found: dict[str, Any] = service.get("/v1/improvement").json()["lately"]
        return found

    service.policy.live_version = base_ref(3)
    put_rewarded(service.store, 1, some_good(199, 0.5), START, 0)
    assert lately() == {"verdict": "too early", "turns": 199, "needed": 200}
    put_rewarded(service.store, 2, some_good(401, 0.9), START, 199)
    found = lately()
    assert (found["verdict"], found["turns"], found["versions"]) == ("better", 300, [2, 2])
    put_rewarded(service.store, 2, some_good(300, 0.9), START, 600)
    assert lately()["verdict"] == "no difference"
    put_rewarded(service.store, 3, some_good(300, 0.6), START, 900)
    found = lately()
    assert (found["verdict"], found["version"], found["best"]["version"]) == ("worse", 3, 2)
    assert (found["mean"], found["best"]["mean"]) == (pytest.approx(0.6), pytest.approx(0.9))
    assert found["low"] < found["difference"] < found["high"] < 0


@pytest.mark.parametrize(("older", "newer", "trend"), [(0.7, 0.2, "falls"), (0.2, 0.7, "rises"), (0.4, 0.4, "unclear")])
def test_after_a_fall_it_is_said_where_it_goes(service: Service, older: float, newer: float, trend: str) -> None:
    service.policy.live_version = base_ref(2)
    put_rewarded(service.store, 1, some_good(300, 0.95), START, 0)
    put_rewarded(service.store, 2, some_good(150, older), START, 300)
    put_rewarded(service.store, 2, some_good(150, newer), START, 450)
    found = service.get("/v1/improvement").json()["lately"]
    assert (found["verdict"], found["trend"]) == ("worse", trend)


def test_turns_count_by_what_they_were_first_given(service: Service) -> None:
    """What users say later of the newest turns has not been said yet, but of the older ones."""
    service.policy.live_version = base_ref(2)
    put_rewarded(service.store, 1, some_good(300, 0.6), START, 0)
    put_rewarded(service.store, 2, some_good(300, 0.6), START, 300)
    before = service.get("/v1/improvement").json()["lately"]
    with service.store.work() as work:
        oldest = [reward for _, reward in work.rewards.after(Namespace("default"), 0, 300)]
        work.rewards.put([(0, msgspec.structs.replace(reward, revision=1, value=1.0)) for reward in oldest])
    assert service.get("/v1/improvement").json()["lately"] == before
    assert before["verdict"] == "no difference"


def test_a_slow_fall_shows_against_an_hour_ago(tmp_path: Path) -> None:
    """What came just before has fallen as well, so that among the newest turns none are better."""
    with serve(tmp_path, clock=ManualClock(START + timedelta(seconds=6000))) as service:
        put_rewarded(service.store, 1, some_good(300, 0.9), START, 0)
        put_rewarded(service.store, 2, some_good(3000, 0.6), START, 3000)
        service.policy.live_version = base_ref(2)
        found = service.get("/v1/improvement").json()["lately"]
    assert (found["verdict"], found["best"]["version"]) == ("worse", 1)
    assert found["best"]["to"] == "2026-01-02T00:05:01Z"


def test_turns_without_tokens_are_of_no_version(service: Service) -> None:
    put_rewarded(service.store, None, some_good(300, 0.9), START, 0)
    put_rewarded(service.store, 2, some_good(300, 0.3), START, 300)
    service.policy.live_version = base_ref(2)
    assert service.get("/v1/improvement").json()["lately"]["best"]["version"] is None
    first = service.get("/v1/overview").json()["next"][0]
    assert first["what"].endswith(
        " less than the earlier best. Whether they fall further or rise again cannot be said yet."
    )
    assert [order["kind"] for order in first["orders"]] == ["pin"]


def test_it_is_too_early_to_say(service: Service) -> None:
    assert service.get("/v1/improvement").json()["verdict"] == "first"
    put_rewarded(service.store, 1, [0.0] * (BASE_NEEDED - 1), START, 0)
    assert service.get("/v1/improvement").json()["verdict"] == "first"
    service.policy.live_version = base_ref(2)
    put_rewarded(service.store, 2, [1.0] * (NEEDED - 1), START, 1000)
    for missing, value in (((2, 5000), 1.0), ((1, 600), 0.0)):
        found = service.get("/v1/improvement").json()
        assert (found["verdict"], found["difference"], found["low"]) == ("too early", None, None)
        put_rewarded(service.store, missing[0], [value], START, missing[1])
    assert service.get("/v1/improvement").json()["verdict"] == "better"


def test_users_held_back_are_what_it_is_held_against(service: Service) -> None:
    """They are asked at the same time: what came before they were, on either side, does not count."""
    put_rewarded(service.store, 1, some_good(300, 0.0), START, 0)
    put_rewarded(service.store, 2, some_good(300, 0.0), START, 300)
    put_rewarded(service.store, 1, some_good(100, 0.4), START, 1000, arm="holdback")
    put_rewarded(service.store, 2, some_good(250, 0.5), START, 1000)
    service.policy.live_version = base_ref(2)
    found = service.get("/v1/improvement").json()
    assert (found["how"], found["turns"], found["base_turns"]) == ("holdback", 250, 100)
    assert found["difference"] == pytest.approx(0.1, abs=0.03)
    assert service.get("/v1/improvement?turns=3").json()["error"]["param"] == "turns"


# ------------------------------------------------------------------------------------------------ before a rollback


def test_a_rollback_says_what_it_leaves_behind(service: Service) -> None:
    fill(service.store, START)
    found = service.get("/v1/policies/2/rollback").json()
    assert (found["version"], found["versions"], found["counted"]) == (2, [3, 4, 5, 6], 4)
    assert (found["updates"], found["turns"]) == (16, 128)
    assert found["feedback_hours"] == pytest.approx((90 + 31) / 3600)
    told = found["reward"]
    assert (told["turns"], told["base_turns"]) == (4 * TURNS // VERSIONS, TURNS // VERSIONS)
    assert told["difference"] == pytest.approx(told["mean"] - told["base_mean"], abs=0.02)
    assert told["low"] < told["difference"] < told["high"]
    means = {version["version"]: version["mean"] for version in service.get("/v1/curves").json()["versions"]}
    assert told["base_mean"] == pytest.approx(means[2])
    assert told["mean"] == pytest.approx(sum(means[n] for n in range(3, 7)) / 4)
    taken = Release(version=base_ref(4), cluster="local", state="rolled_back", why="x", by="guard", at=START)
    with service.store.work() as work:
        work.releases.put(taken)
    assert service.get("/v1/policies/2/rollback").json()["versions"] == [3, 5, 6], "4 was taken back already"


def test_what_is_newest_leaves_only_the_canary_behind_and_what_is_unknown_is_refused(service: Service) -> None:
    fill(service.store, START)
    assert service.get("/v1/policies/5/rollback").json()["versions"] == [6]
    for version in ("77", "x", "-1"):
        answer = service.get(f"/v1/policies/{version}/rollback")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_version")
    assert service.orders.done == []
