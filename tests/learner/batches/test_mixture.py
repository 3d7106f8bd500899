"""Production comes first, others take at most their share of an update, and what is beyond waits or is counted."""

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from logged_world import World, make_reward, make_turn, manifests, settle

from core.events import Environment, Reward
from core.settings import BatchSettings, MixtureSettings
from learner.batches.backlog import Backlog
from learner.batches.mixture import Mixture

MakeWorld = Callable[[str], World]
BATCH = BatchSettings(turns=8, min_turns=4, max_wait_s=10.0)


def rewards(count: int, environment: Environment, first: int = 0, workload: str = "write") -> list[Reward]:
    made = [make_turn(first + number, workload=workload, environment=environment) for number in range(count)]
    given = [make_reward(turn, 1.0 if number % 2 else -1.0) for number, turn in enumerate(made)]
    return [msgspec.structs.replace(reward, environment=environment) for reward in given]


def backlog_of(waiting: list[Reward], **settings: Any) -> Backlog:
    backlog = Backlog(Mixture(MixtureSettings(**settings)))
    assert all(map(backlog.add, waiting))
    return backlog


def now_of(waiting: list[Reward], later_s: float = 1.0) -> datetime:
    return max(reward.decided_at for reward in waiting) + timedelta(seconds=later_s)


def sources(chosen: list[Reward]) -> Counter[str]:
    return Counter(reward.environment for reward in chosen)


def test_production_comes_first_and_simulation_fills_what_it_leaves() -> None:
    waiting = rewards(20, "simulated") + rewards(3, "production", 20)
    chosen = backlog_of(waiting).choose(8, now_of(waiting))
    assert [reward.environment for reward in chosen] == ["production"] * 3 + ["simulated"] * 5
    waiting += rewards(9, "production", 30)
    assert sources(backlog_of(waiting).choose(8, now_of(waiting))) == {"production": 8}


@given(st.integers(0, 12), st.integers(0, 30), st.sampled_from([0.0, 0.25, 0.5, 0.75, 0.9, 1.0]))
def test_an_update_has_at_most_its_share_of_simulated_turns(production: int, simulated: int, share: float) -> None:
    waiting = rewards(simulated, "simulated") + rewards(production, "production", 50)
    if not waiting:
        return
    now = now_of(waiting)
    found = sources(backlog_of(waiting, simulated=share).choose(16, now))
    assert found["production"] == min(production, 16)
    if production:
        assert found["simulated"] <= share * found.total() + 1e-9
        most = 16 - found["production"]
        if share < 1:
            most = min(most, int(share * found["production"] / (1 - share) + 1e-9))
        assert found["simulated"] == min(simulated, most), "as many as there may be"


def test_when_production_has_been_quiet_simulation_trains_alone() -> None:
    waiting = rewards(20, "simulated")
    assert sources(backlog_of(waiting, simulated=0.25).choose(8, now_of(waiting))) == {"simulated": 8}, "never any"
    backlog = backlog_of(waiting, simulated=0.25, quiet_s=600.0)
    (last,) = rewards(1, "production", 40)
    backlog.add(last)
    backlog.remove([last])
    assert not backlog.is_ready(BATCH, now_of([last], 599.0))
    assert backlog.choose(8, now_of([last], 599.0)) == []
    assert backlog.is_ready(BATCH, now_of([last], 601.0))
    assert len(backlog.choose(8, now_of([last], 601.0))) == 8


def test_an_update_waits_for_production_that_its_share_needs() -> None:
    waiting = rewards(20, "simulated") + rewards(3, "production", 20)
    backlog = backlog_of(waiting, simulated=0.25)
    assert not backlog.is_ready(BATCH, now_of(waiting, 1.0)), "3 and 1 make the fewest, and have not waited"
    assert backlog.is_ready(BATCH, now_of(waiting, 11.0))
    assert sources(backlog.choose(8, now_of(waiting, 11.0))) == {"production": 3, "simulated": 1}


def test_a_workload_takes_at_most_its_share() -> None:
    waiting = rewards(9, "production") + rewards(9, "production", 20, workload="tests")
    found = backlog_of(waiting, workloads={"write": 0.25}).choose(8, now_of(waiting))
    assert Counter(reward.workload for reward in found) == {"write": 2, "tests": 6}
    none = backlog_of(waiting, workloads={"write": 0.0}).choose(8, now_of(waiting))
    assert {reward.workload for reward in none} == {"tests"}


def test_beyond_the_backlog_simulation_goes_before_production_and_is_counted() -> None:
    waiting = rewards(2, "production") + rewards(4, "simulated", 10)
    gone = backlog_of(waiting).trim(3)
    assert [(reward.environment, why) for reward, why in gone] == [("simulated", "mixture")] * 3
    alone = backlog_of(rewards(4, "simulated")).trim(2)
    assert [why for _, why in alone] == ["backlog_full"] * 2


def test_a_workload_that_never_trains_takes_no_room_in_the_backlog() -> None:
    backlog = backlog_of(
        rewards(2, "production") + rewards(4, "production", 10, workload="tests"), workloads={"tests": 0}
    )
    assert [(reward.workload, why) for reward, why in backlog.trim(8)] == [("tests", "mixture")] * 4
    assert {reward.workload for reward in backlog.pending.values()} == {"write"}


def test_the_manifest_counts_what_was_left_out(make_world: MakeWorld) -> None:
    world = make_world("world")
    learner = world.learner(settings={"batch.backlog_turns": 8, "mixture.simulated": 0.5})
    turns = [make_turn(number, environment="simulated") for number in range(10)] + [
        make_turn(n) for n in (20, 21, 22, 23)
    ]
    scored = [(turn, make_reward(turn, 1.0 if place % 2 else -1.0)) for place, turn in enumerate(turns)]
    scored = [(turn, msgspec.structs.replace(each, environment=turn.environment)) for turn, each in scored]
    world.tell(*scored)
    settle(learner)
    first = manifests(world)[0]
    assert {why: len(ids) for why, ids in first.drops.items()} == {"backlog_full": 2, "mixture": 4}
    assert Counter(reward.environment for reward in first.rewards) == {"production": 4, "simulated": 4}
    learner.close()


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_is_a_share(share: float) -> None:
    with pytest.raises(ValueError, match="simulated"):
        MixtureSettings(simulated=share)
