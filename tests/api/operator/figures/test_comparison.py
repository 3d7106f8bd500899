"""Two sets of turns, compared by their rewards: what counts, and how sure it has to be."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from api.operator.figures.comparison import compare, standard_error
from api.operator.figures.lately import against_the_best
from core.statistics.clustered import Contrast


@dataclass(frozen=True)
class Turn:
    session_id: str
    value: float
    workload: str = "chat"
    user_id: str | None = None


def turns(count: int, share: float, workload: str = "chat", seed: int = 0) -> list[Turn]:
    """Make turns in sessions of their own, of which that share is good."""
    chance = random.Random(seed)
    values = [float(number < share * count) for number in range(count)]
    chance.shuffle(values)
    return [Turn(f"{workload}-{seed}-{number}", value, workload) for number, value in enumerate(values)]


def test_a_change_of_what_is_asked_is_no_change_of_quality() -> None:
    """The hard workload has grown from a tenth to most of the turns; each is answered as well as before."""
    before = turns(30, 0.3, "hard") + turns(270, 0.9, "easy")
    now = turns(270, 0.3, "hard", 1) + turns(30, 0.9, "easy", 1)
    found = compare(now, before)
    assert (found.verdict, found.difference) == ("no difference", pytest.approx(0, abs=0.02))
    assert compare([Turn(turn.session_id, turn.value) for turn in now], [
        Turn(turn.session_id, turn.value) for turn in before
    ]).verdict == "worse"  # fmt: skip


def test_what_falls_in_each_workload_is_a_fall_though_the_easy_one_has_grown() -> None:
    before = turns(200, 0.5, "hard") + turns(100, 0.95, "easy")
    now = turns(100, 0.1, "hard", 1) + turns(200, 0.65, "easy", 1)
    assert sum(turn.value for turn in now) / 300 > 0.45
    found = compare(now, before)
    assert (found.verdict, found.difference) == ("worse", pytest.approx(-0.35, abs=0.04))


def test_workloads_that_one_side_lacks_say_nothing() -> None:
    both, other = turns(100, 0.5), turns(90, 0.0, "new")
    assert compare(both + other, turns(100, 0.5, seed=1)) == compare(both, turns(100, 0.5, seed=1))
    assert compare(other, both).verdict == "too early"
    assert compare(both + turns(110, 0.0, "new"), turns(100, 0.5, seed=1)).verdict == "too early", "most are of none"


def test_small_workloads_speak_together() -> None:
    """None of thirty would be heard alone."""
    now = [turn for number in range(30) for turn in turns(5, 0.0, f"w{number}", 1)]
    before = [turn for number in range(30) for turn in turns(5, 1.0, f"w{number}")]
    assert compare(now, before).verdict == "worse"


def test_a_workload_with_one_session_a_side_does_not_seem_sure() -> None:
    """It fits itself exactly. A hundred of them say no more than as many turns of one."""
    now = [Turn(f"n{number}", float(number % 2), f"w{number}") for number in range(100)]
    before = [Turn(f"b{number}", float(number % 3 > 0), f"w{number}") for number in range(100)]
    assert compare(now, before).verdict == "no difference"


def test_workloads_that_come_and_go_seem_no_surer_than_they_are() -> None:
    """Of fifteen workloads one session is left and nineteen were there; all are alike."""
    said = 0
    for seed in range(60):
        chance = random.Random(seed)
        sides = [
            [
                Turn(f"{side}-{workload}-{number}", float(chance.random() < 0.5), f"w{workload}")
                for workload in range(15)
                for number in range(1 if side == workload % 2 else 19)
            ]
            for side in (0, 1)
        ]
        said += compare(*sides).verdict in ("better", "worse")
    assert said <= 3


def test_long_sessions_of_two_workloads_whose_shares_swap_show_no_fall() -> None:
    """Each has few sessions, and they are not thrown together for it."""

    def side(name: str, hard: int) -> list[Turn]:
        chance = random.Random(name)
        chances = {"hard": 0.2, "easy": 0.8}
        kinds = ["hard"] * hard + ["easy"] * (20 - hard)
        return [
            Turn(f"{name}{number}", float(chance.random() < chances[kind]), kind)
            for number, kind in enumerate(kinds)
            for _ in range(15)
        ]

    assert compare(side("now", 17), side("before", 3)).verdict in ("no difference", "too early")


@pytest.mark.parametrize("speaks", [9, 11])
def test_so_many_have_to_have_spoken(speaks: int) -> None:
    sides = [[Turn(f"s{number % speaks}", value) for number in range(100)] for value in (0.0, 1.0)]
    assert (compare(*sides).verdict == "too early") is (speaks < 10)


def reach(looks: int) -> float:
    found = compare(turns(300, 0.5), turns(300, 0.5, seed=1), looks=looks)
    assert found.low is not None
    assert found.high is not None
    return found.high - found.low


def test_one_of_several_comparisons_has_to_be_surer() -> None:
    assert reach(11) > 1.1 * reach(1)


@pytest.mark.parametrize(("units", "wider"), [(11, 1.25), (251, 1.01)])
def test_few_who_spoke_are_less_sure_than_their_error(units: int, wider: float) -> None:
    """Student's quantile, beside the normal one."""
    sides = turns(200, 0.5), turns(200, 0.5, seed=1)
    assert standard_error(Contrast(0.0, 0.04, units), [sides]) == pytest.approx(0.2 * wider)


def test_who_said_the_same_every_time_may_say_something_else() -> None:
    found = compare(turns(40, 1.0), turns(40, 0.0, seed=1))
    assert found.verdict == "better"
    assert found.low is not None
    assert found.low < 0.9


def blocks(*shares: float) -> list[Sequence[Turn]]:
    return [turns(300, share, seed=seed) for seed, share in enumerate(shares)]


def test_of_several_falls_the_surest_is_told() -> None:
    """The highest mean may be of turns that say little, from few sessions; what is told is what is most certain."""
    newest, sure, vague = blocks(0.5, 0.9, 0.95)
    few = [
        Turn(f"vague-{number // 20}", turn.value) for number, turn in enumerate(sorted(vague, key=lambda t: t.value))
    ]
    found = against_the_best([*newest, *sure], [few])
    assert found is not None
    assert found[0].verdict == "worse"
    assert found[1] == sure


def test_without_a_fall_it_is_the_best_that_is_told() -> None:
    newest, worse, best = blocks(0.8, 0.5, 0.75)
    found = against_the_best([*newest, *worse, *best])
    assert found is not None
    assert (found[0].verdict, found[1]) == ("no difference", best)
