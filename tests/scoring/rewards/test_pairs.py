"""Every pair of the shipped outcomes on one answer, and what they make of it."""

import itertools
from collections.abc import Mapping, Sequence
from types import ModuleType

import pytest

from core.reward_spec import load_reward_spec
from onward.directory.layout import SHIPPED_REWARDS

Said = tuple[str, bool | float, bool]
SPEC = load_reward_spec(SHIPPED_REWARDS)
# What is said, by a short name: of the answer, or (S) of its session.
SAID: dict[str, Said] = {
    "accepted": ("accepted", True, False),
    "part": ("partially_accepted", 0.4, False),
    "edited": ("edited", 0.8, False),
    "useful": ("answer_useful", True, False),
    "rejected": ("rejected", True, False),
    "useless": ("plan_useful", False, False),
    "disliked": ("rating", -0.5, False),
    "complaint": ("follow_up", True, False),
    "retry": ("regenerated", True, False),
    "left": ("abandoned", True, False),
    "undone": ("reverted", True, False),
    "tests": ("tests_passed", False, False),
    "gone": ("survived_1w", 0.0, False),
    "S accepted": ("accepted", True, True),
    "S rejected": ("rejected", True, True),
    "S liked": ("rating", 1.0, True),
    "S disliked": ("rating", -1.0, True),
    "S tests": ("tests_passed", False, True),
}
# Where it is no plain sum: a part takes the place of the whole; what is said of the answer beats the opposite said of
# its session; what was found good stays so although another was asked for, or the user went back to before it.
TABLE = """
           | accepted part edited useful rejected useless disliked complaint retry  left undone tests  gone
accepted   |     1.0   0.4    1.0    1.0      0.5     0.5      0.5       0.5   1.0   1.0   0.25  0.75  0.75
part       |     0.4   0.4    0.8    0.9     -0.1    -0.1     -0.1      -0.1   0.4   0.4  -0.35  0.15  0.15
edited     |     1.0   0.8    0.4    0.9     -0.1    -0.1     -0.1      -0.1   0.4   0.4  -0.35  0.15  0.15
useful     |     1.0   0.9    0.9    0.5      0.0     0.0      0.0       0.0   0.5   0.5  -0.25  0.25  0.25
rejected   |     0.5  -0.1   -0.1    0.0     -0.5    -1.0     -1.0      -1.0  -1.0 -0.75   -1.0 -0.75 -0.75
useless    |     0.5  -0.1   -0.1    0.0     -1.0    -0.5     -1.0      -1.0  -1.0 -0.75   -1.0 -0.75 -0.75
disliked   |     0.5  -0.1   -0.1    0.0     -1.0    -1.0     -0.5      -1.0  -1.0 -0.75   -1.0 -0.75 -0.75
complaint  |     0.5  -0.1   -0.1    0.0     -1.0    -1.0     -1.0      -0.5  -1.0 -0.75   -1.0 -0.75 -0.75
retry      |     1.0   0.4    0.4    0.5     -1.0    -1.0     -1.0      -1.0  -0.5 -0.75   -1.0 -0.75 -0.75
S accepted |     1.0   0.4    1.0    1.0     -0.5    -0.5     -0.5      -0.5   0.5  0.75  -0.75  0.75  0.75
S rejected |     1.0   0.4    0.4    0.5     -0.5    -1.0     -1.0      -1.0  -1.0 -0.75   -1.0 -0.75 -0.75
S liked    |     1.0   1.0    1.0    1.0     -0.5    -0.5     -0.5      -0.5   0.5  0.75  -0.75  0.75  0.75
S disliked |     1.0   0.4    0.4    0.5     -1.0    -1.0     -1.0      -1.0  -1.0  -1.0   -1.0  -1.0  -1.0
S tests    |    0.75  0.15   0.15   0.25    -0.75   -0.75    -0.75     -0.75 -0.75  -0.5   -1.0 -0.25  -0.5
"""


def rewards_of(lab: ModuleType, said: Sequence[Sequence[str]], meant: Mapping[str, Said] = SAID) -> list[float]:
    """Return the reward of an answer for each of these, one after the other, each in a session of its own."""
    events, log, turns = lab.Events(), [], []
    for number, names in enumerate(said):
        session = f"s{number}"
        turns.append(events.turn(session, 0))
        log.append(turns[-1])
        for place, (outcome, value, of_session) in enumerate(meant[name] for name in names):
            log.append(events.outcome(session if of_session else turns[-1], outcome, value, 1 + place))
    values = lab.last_values(lab.score(SPEC, log, until=lab.at(10_000)))
    return [round(values[turn.inference_id], 6) for turn in turns]


def test_what_each_pair_makes(lab: ModuleType) -> None:
    """In any order, unless both have one name: of these the last counts."""
    head, *rows = [line for line in TABLE.splitlines() if line]
    columns = head.partition("|")[2].split()
    told: dict[tuple[str, ...], float] = {}
    for row in rows:
        first, _, numbers = row.partition("|")
        for second, number in zip(columns, numbers.split(), strict=True):
            pair = (first.strip(), second)
            told[pair[1:] if pair[0] == second else pair] = float(number)
    pairs = list(told)
    assert dict(zip(pairs, rewards_of(lab, [pair[::-1] for pair in pairs]), strict=True)) == told
    others = [pair for pair in pairs if len({SAID[name][0] for name in pair}) == len(pair)]
    assert dict(zip(others, rewards_of(lab, others), strict=True)) == {pair: told[pair] for pair in others}


def test_what_else_was_said_is_plainly_added(lab: ModuleType) -> None:
    """Of all pairs of outcomes that no row or column stands for."""
    listed = {name for name, _, _ in SAID.values()}
    rest = [name for name, spec in SPEC.outcomes.items() if spec.moves and name not in listed]
    specs = SPEC.outcomes
    meant: dict[str, Said] = {
        name: (name, True if specs[name].type == "boolean" else 0.5, specs[name].level == "session") for name in rest
    }
    alone = dict(zip(rest, rewards_of(lab, [[name] for name in rest], meant), strict=True))
    pairs = list(itertools.combinations(rest, 2))
    assert rewards_of(lab, pairs, meant) == pytest.approx([alone[one] + alone[other] for one, other in pairs], abs=1e-6)


def test_the_reason_names_what_did_not_count(lab: ModuleType) -> None:
    events = lab.Events()
    turn = events.turn("s", 0)
    rating, rejected = events.outcome("s", "rating", 1.0, 1), events.outcome(turn, "rejected", True, 2)
    rewards = lab.score(SPEC, [turn, rating, rejected])
    assert rewards[-1].why == "rejected -0.50; left out: 1 against what was said of the answer itself; corrects +1.00"
    derived = events.outcome(turn, "rejected", True, 2, source="derived")
    assert lab.score(SPEC, [turn, rating, derived])[-1].value == 0.5, "nobody said it"
