"""Every pair of the shipped outcomes on one answer, and what they make of it."""

import itertools
from collections.abc import Mapping, Sequence
from types import ModuleType

import pytest

from core.reward_spec import RewardSpec, load_reward_spec
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


# What no row or column stands for, said for good and for bad where it can be.
REST: dict[str, Said] = {
    **{f"survived_{age}": (f"survived_{age}", 0.5, False) for age in ("30s", "5m", "1h", "1d")},
    "slow": ("latency_felt", 0.5, False),
    **{f"{what} {said}": (f"{what}_passed", said, False) for what in ("build", "lint") for said in (True, False)},
    "task": ("task_reward", 1.0, True),
    "task failed": ("task_reward", -1.0, True),
}
OF_SESSION = {f"S {name}": (of, value, True) for name, (of, value, is_s) in SAID.items() if not is_s} | SAID
SESSIONS = [name for name in OF_SESSION if name.startswith("S ")]
GOOD, BAD = ("accepted", "part", "edited", "useful"), ("rejected", "useless", "disliked", "complaint", "undone")


def told_of(
    lab: ModuleType, meant: Mapping[str, Said], pairs: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], float]:
    """Return the pairs that make anything but the sum of their parts, each in both orders, and what they make."""
    alone = dict(zip(meant, rewards_of(lab, [[name] for name in meant], meant), strict=True))
    sums = {pair: min(max(alone[pair[0]] + alone[pair[1]], -1.0), 1.0) for pair in pairs}
    there, back = rewards_of(lab, pairs, meant), rewards_of(lab, [pair[::-1] for pair in pairs], meant)
    assert there == back
    return {pair: made for pair, made in zip(pairs, there, strict=True) if made != pytest.approx(sums[pair], abs=1e-6)}


def pairs_of(names: Sequence[str], others: Sequence[str], meant: Mapping[str, Said]) -> list[tuple[str, str]]:
    """Return the pairs of two names, once; of two outcomes of one name the last one counts."""
    found = {
        frozenset(pair): pair for pair in itertools.product(names, others) if meant[pair[0]][0] != meant[pair[1]][0]
    }
    return [*found.values()]


def test_every_outcome_that_moves_a_reward_is_in_a_pair() -> None:
    listed = {name for name, _, _ in (*SAID.values(), *REST.values())}
    assert listed == {name for name, spec in SPEC.outcomes.items() if spec.moves}


def test_what_else_was_said_is_plainly_added(lab: ModuleType) -> None:
    """But what became of the whole task says nothing against what somebody said of the answer itself."""
    meant = OF_SESSION | REST
    pairs = pairs_of([*SAID, *REST], [*REST], meant)
    stays = {"accepted": 1.0, "part": 0.4, "edited": 0.4, "useful": 0.5} | dict.fromkeys(BAD, -0.5) | {"undone": -0.75}
    told = {(name, "task failed" if name in GOOD else "task"): stays[name] for name in (*GOOD, *BAD)}
    assert told_of(lab, meant, pairs) == told


def test_what_was_said_of_one_session_is_plainly_added(lab: ModuleType) -> None:
    """But a share takes the place of the whole, and no other was wanted of what was found good."""
    alone = {"accepted": 1.0, "part": 0.4, "edited": 0.4, "useful": 0.5, "liked": 1.0}
    told = {frozenset(("S accepted", "S part")): 0.4}
    told |= {
        frozenset((f"S {good}", f"S {again}")): value for good, value in alone.items() for again in ("retry", "left")
    }
    meant = OF_SESSION | REST
    found = told_of(lab, meant, pairs_of(SESSIONS, SESSIONS, meant))
    assert {frozenset(pair): made for pair, made in found.items()} == told


def test_the_reason_names_what_did_not_count(lab: ModuleType) -> None:
    events = lab.Events()
    turn = events.turn("s", 0)
    rating, rejected = events.outcome("s", "rating", 1.0, 1), events.outcome(turn, "rejected", True, 2)
    rewards = lab.score(SPEC, [turn, rating, rejected])
    assert rewards[-1].why == "rejected -0.50; left out: 1 against a plainer verdict; corrects +1.00"
    derived = events.outcome(turn, "rejected", True, 2, source="derived")
    assert lab.score(SPEC, [turn, rating, derived])[-1].value == 0.5, "nobody said it"


def test_a_check_of_all_is_good_where_it_adds_and_ends_the_wait_also_uncounted(lab: ModuleType) -> None:
    share = {"type": "number", "role": "check", "weight": 1, "neutral": 0.5, "minimum": 0, "maximum": 1}
    share["decides"] = True
    useful = {"type": "boolean", "role": "useful", "weight": 0.5, "false_weight": -0.5}
    accepted = {"type": "boolean", "wait_s": 600, "default_reward": -0.25}
    spec = RewardSpec.model_validate({"outcomes": {"share": share, "useful": useful, "accepted": accepted}})
    events = lab.Events()
    for good, passed, value in ((True, 0.2, 0.5), (True, 0.9, 0.9), (False, 0.2, -0.8), (False, 0.9, -0.5)):
        turn = events.turn(f"{good} {passed}", 0)
        said = [events.outcome(turn, "useful", good, 1), events.outcome(f"{good} {passed}", "share", passed, 2)]
        rewards = lab.score(spec, [turn, *said], until=lab.at(9000))
        assert lab.last_values(rewards) == {turn.inference_id: pytest.approx(value)}
