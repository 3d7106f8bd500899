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
    chosen = backlog_of(waiting).choose(BATCH, now_of(waiting))
    assert [reward.environment for reward in chosen] == ["production"] * 3 + ["simulated"] * 5
    waiting += rewards(9, "production", 30)
    assert sources(backlog_of(waiting).choose(BATCH, now_of(waiting))) == {"production": 8}


@given(st.integers(1, 12), st.integers(0, 30), st.sampled_from([0.0, 0.25, 0.5, 0.75, 0.9, 1.0]))
def test_an_update_has_at_most_its_share_of_simulated_turns(production: int, simulated: int, share: float) -> None:
    waiting = rewards(simulated, "simulated") + rewards(production, "production", 50)
    found = sources(backlog_of(waiting, simulated=share).choose(BatchSettings(turns=16), now_of(waiting)))
    assert found["production"] == production
    assert found["simulated"] <= share * found.total() + 1e-9
    is_full = found.total() == 16 or found["simulated"] == simulated
    assert is_full or found["simulated"] + 1 > share * (found.total() + 1) + 1e-9, "as many as there may be"


def test_when_production_has_been_quiet_simulation_trains_alone() -> None:
    waiting = rewards(20, "simulated")
    assert sources(backlog_of(waiting, simulated=0.25).choose(BATCH, now_of(waiting))) == {"simulated": 8}, "never any"
    backlog = backlog_of(waiting, simulated=0.25, quiet_s=600.0)
    (last,) = rewards(1, "production", 40)
    backlog.add(last)
    backlog.remove([last])
    assert not backlog.is_ready(BATCH, now_of([last], 599.0))
    assert backlog.choose(BATCH, now_of([last], 599.0)) == []
    assert backlog.is_ready(BATCH, now_of([last], 601.0))
    assert len(backlog.choose(BATCH, now_of([last], 601.0))) == 8


def test_an_update_waits_for_production_that_its_share_needs() -> None:
    waiting = rewards(20, "simulated") + rewards(3, "production", 20)
    backlog = backlog_of(waiting, simulated=0.25)
    assert not backlog.is_ready(BATCH, now_of(waiting, 1.0)), "3 and 1 make the fewest, and have not waited"
    assert backlog.is_ready(BATCH, now_of(waiting, 11.0))
    due_s = 1.0 + backlog.ready_in_s(BATCH, now_of(waiting, 1.0))
    assert backlog.look_in_s(BATCH, now_of(waiting, due_s - 0.05)) == pytest.approx(0.05), "just in time"
    assert backlog.look_in_s(BATCH, now_of(waiting, 1.0)) == backlog.look_in_s(BATCH, now_of(waiting, 11.0)) == 0.2
    assert sources(backlog.choose(BATCH, now_of(waiting, 11.0))) == {"production": 3, "simulated": 1}


def test_a_workload_takes_at_most_its_share_and_of_none_takes_no_room_in_the_backlog() -> None:
    waiting = rewards(9, "production") + rewards(9, "production", 20, workload="tests")
    found = backlog_of(waiting, workloads={"write": 0.25}).choose(BATCH, now_of(waiting))
    assert Counter(reward.workload for reward in found) == {"write": 2, "tests": 6}
    backlog = backlog_of(waiting, workloads={"tests": 0})
    assert [(reward.workload, why) for reward, why in backlog.trim(18)] == [("tests", "mixture")] * 9
    assert {reward.workload for reward in backlog.pending.values()} == {"write"}


def test_what_was_left_out_is_counted_and_a_restart_forgets_no_production(make_world: MakeWorld) -> None:
    world = make_world("world")
    settings = {"batch.backlog_turns": 8, "mixture.simulated": 0.5}
    learner = world.learner(settings=settings)
    turns = [make_turn(number, environment="simulated") for number in range(10)] + list(map(make_turn, range(20, 24)))
    scored = [(turn, make_reward(turn, 1.0 if place % 2 else -1.0)) for place, turn in enumerate(turns)]
    scored = [(turn, msgspec.structs.replace(each, environment=turn.environment)) for turn, each in scored]
    world.tell(*scored)
    settle(learner)
    first = manifests(world)[0]
    assert {why: len(ids) for why, ids in first.drops.items()} == {"backlog_full": 2, "mixture": 4}
    assert sources(list(first.rewards)) == {"production": 4, "simulated": 4}
    learner.close()
    again = world.learner(settings=settings)
    now = now_of(list(first.rewards))
    assert again._backlog.mixture.available(rewards(3, "simulated", 30), 8, now) == []
    again.close()


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_is_a_share(share: float) -> None:
    with pytest.raises(ValueError, match="simulated"):
        MixtureSettings(simulated=share)
