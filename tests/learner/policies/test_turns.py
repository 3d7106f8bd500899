"""Turns of policies: by weight among those that have work, and nobody waits for ever."""

from collections import Counter

import pytest

from core.ids import PolicyName
from learner.policies.turns import FairTurns

ACME, BOLT, CASK = (PolicyName(name) for name in ("acme", "bolt", "cask"))


def served(turns: FairTurns, rounds: int, due: set[PolicyName], cost: float = 1.0) -> list[PolicyName]:
    found = []
    for _ in range(rounds):
        found.append(turns.next_of(due))
        turns.paid(found[-1], cost)
    return found


@pytest.mark.parametrize("cost", [1.0, 0.5, 0.25])
def test_shares_are_those_of_the_weights(cost: float) -> None:
    weights = {ACME: 2.0, BOLT: 1.0, CASK: 0.5}
    found = Counter(served(FairTurns(weights), 700, set(weights), cost))
    assert abs(found[ACME] - 400) <= 4
    assert abs(found[BOLT] - 200) <= 4
    assert abs(found[CASK] - 100) <= 4


def test_one_that_comes_late_is_served_in_the_next_round() -> None:
    turns = FairTurns({ACME: 1.0, BOLT: 1.0, CASK: 1.0})
    assert set(served(turns, 100, {ACME})) == {ACME}
    assert {BOLT, CASK} <= set(served(turns, 3, {ACME, BOLT, CASK}))


def test_nobody_saves_up_while_idle() -> None:
    turns = FairTurns({ACME: 1.0, BOLT: 1.0})
    served(turns, 100, {ACME})
    assert Counter(served(turns, 10, {ACME, BOLT})) == {ACME: 5, BOLT: 5}


def test_the_lightest_waits_no_longer_than_its_weight_says() -> None:
    weights = {ACME: 1.0, BOLT: 1.0, CASK: 0.01}
    found = served(FairTurns(weights), 300, set(weights))
    assert CASK in found
    assert served(FairTurns({CASK: 0.01}), 2, {CASK}) == [CASK, CASK]
