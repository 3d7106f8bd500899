"""A comparison of two specs: what adopting the other one would change."""

from types import ModuleType
from typing import Any

import pytest

from core.events import Reward
from core.ids import InferenceId
from core.reward_spec import RewardSpec
from scoring.comparison import BINS, compare, last_rewards

ACCEPTED = {"type": "boolean", "weight": 1.0, "false_weight": -1.0, "decides": True}
OLD = RewardSpec.model_validate({"outcomes": {"accepted": ACCEPTED, "rating": {"type": "number", "weight": 0.1}}})
NEW = RewardSpec.model_validate({"outcomes": {"accepted": ACCEPTED | {"false_weight": 0.5}}})


def test_the_same_past_under_two_specs(lab: ModuleType) -> None:
    events = lab.Events()
    turns = [events.turn(f"s{n}", n, workload="write" if n < 6 else "fix") for n in range(8)]
    told = [events.outcome(turn, "accepted", n % 2 == 0, 10 + n) for n, turn in enumerate(turns[:6])]
    told += [events.outcome(turn, "rating", 1.0, 20) for turn in turns[6:]]
    told += [events.outcome(turns[0], "accepted", False, 30)]
    old, new = (last_rewards(lab.score(spec, [*turns, *told], until=lab.at(10_000))) for spec in (OLD, NEW))
    whole, fix, write = compare(old, new)
    assert [one.workload for one in (whole, fix, write)] == ["", "fix", "write"]
    assert (whole.old.turns, whole.new.turns, whole.only_old, whole.only_new) == (8, 6, 2, 0)
    assert (write.old.mean, write.new.mean) == (pytest.approx(-1 / 3), pytest.approx(2 / 3))
    assert (write.old.negative, write.new.negative) == (pytest.approx(4 / 6), 0.0)
    assert write.correlation == pytest.approx(1.0)
    assert write.changed_sign == pytest.approx(4 / 6)
    assert (write.old.revisions, write.old.components) == (1, {"accepted": pytest.approx(-1 / 3)})
    assert (write.old.low, write.old.high) == (write.new.low, write.new.high) == (-1.0, 1.0)
    assert (sum(write.old.histogram), write.old.histogram[0], write.old.histogram[-1]) == (6, 4, 2)
    assert (fix.correlation, fix.new.turns, sum(fix.new.histogram)) == (None, 0, 0)


def test_a_reward_of_nothing_has_no_sign_to_change(lab: ModuleType) -> None:
    events = lab.Events()
    turn = events.turn("s", 0)
    past = [turn, events.outcome(turn, "accepted", False, 10)]
    silent = RewardSpec.model_validate({"outcomes": {"accepted": ACCEPTED | {"false_weight": 0.0}}})
    old, new = (last_rewards(lab.score(spec, past, until=lab.at(10_000))) for spec in (OLD, silent))
    assert [reward.value for reward in new.values()] == [0.0]
    assert compare(old, new)[0].changed_sign == 0


def test_what_is_void_is_compared_with_nothing(lab: ModuleType) -> None:
    events = lab.Events()
    turn = events.turn("s", 0)
    past = [turn, events.outcome(turn, "accepted", True, 10), events.outcome(turn, "failed", True, 20)]
    spec = RewardSpec.model_validate(
        {"outcomes": {"accepted": ACCEPTED, "failed": {"type": "boolean", "role": "void"}}}
    )
    rewards = lab.score(spec, past, until=lab.at(10_000))
    assert [reward.void for reward in rewards] == [False, True]
    assert last_rewards(rewards) == {}


def test_nothing_rewarded_is_shown_as_nothing(lab: ModuleType) -> None:
    whole = compare({}, {})[0]
    assert (whole.old.turns, whole.changed_sign, whole.old.histogram) == (0, None, (0,) * BINS)


class Counted(dict[InferenceId, Reward]):
    """A dict that counts how often it is iterated over."""

    times = 0

    def items(self) -> Any:
        self.times += 1
        return super().items()

    def values(self) -> Any:
        self.times += 1
        return super().values()


def test_rewards_are_not_gone_through_again_for_each_workload(lab: ModuleType) -> None:
    """Clients choose the names of workloads, so there may be many."""
    events = lab.Events()
    turns = [events.turn(f"s{n}", n, workload=f"w{n}") for n in range(50)]
    past = [*turns, *(events.outcome(turn, "accepted", True, 60) for turn in turns)]
    rewards = Counted(last_rewards(lab.score(OLD, past, until=lab.at(10_000))))
    assert len(compare(rewards, rewards)) == 51
    assert rewards.times < 15
