"""Agreement of a judge with the turns' outcomes: by hand, by its laws, and from a real store."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from clean_turns import turns as watched_turns
from hypothesis import given
from hypothesis import strategies as st
from stepping import step

from core.events import Completion, Event, Outcome
from core.ids import OutcomeId
from core.reward_spec.roles import USUAL
from core.settings import IngestSettings
from ingest.writer import Writer
from onward.commands.judge import show_agreement
from scoring.judge.agreement import (
    ALL,
    LEAST,
    Agreement,
    JudgedTurn,
    accuracy,
    agreements,
    brier,
    calibration,
    figures,
    kappa,
)
from scoring.monitors import Window
from scoring.monitors.signals import judge_against_outcome
from scoring.truth import verdict, word_of

PAIRS = st.lists(st.builds(JudgedTurn, st.floats(0, 1), st.booleans()), min_size=1, max_size=200)


def pairs(good_high: int, bad_high: int, good_low: int, bad_low: int) -> list[JudgedTurn]:
    """Return pairs of (judgement, outcome): good ones judged 0.75, bad ones judged 0.75, and so on."""
    return (
        [JudgedTurn(0.75, True)] * good_high
        + [JudgedTurn(0.75, False)] * bad_high
        + [JudgedTurn(0.25, True)] * good_low
        + [JudgedTurn(0.25, False)] * bad_low
    )


# ---------------------------------------------------------------------------------------------- by hand


def test_cohens_kappa_by_hand() -> None:
    """20 yes-yes, 5 and 10 that differ, 15 no-no: p_o 0.7, p_e 0.5 x 0.6 + 0.5 x 0.4 = 0.5, kappa 0.4."""
    table = pairs(20, 5, 10, 15)
    assert accuracy(table) == pytest.approx(0.7)
    assert kappa(table) == pytest.approx(0.4)


def test_accuracy_is_not_agreement_beyond_chance() -> None:
    """A judge that approves of everything is right nine times in ten, and knows nothing."""
    table = pairs(45, 5, 0, 0)
    assert accuracy(table) == pytest.approx(0.9)
    assert kappa(table) == pytest.approx(0.0)
    assert kappa(pairs(50, 0, 0, 0)) is None
    assert kappa(pairs(0, 25, 25, 0)) == pytest.approx(-1.0)


def test_brier_by_hand() -> None:
    assert brier(
        [JudgedTurn(0.75, True), JudgedTurn(0.75, False), JudgedTurn(0.0, True), JudgedTurn(1.0, True)]
    ) == pytest.approx((0.0625 + 0.5625 + 1.0 + 0.0) / 4)


def test_calibration_by_hand() -> None:
    table = [
        JudgedTurn(0.0, False),
        JudgedTurn(0.05, True),
        JudgedTurn(0.1, True),
        JudgedTurn(0.95, True),
        JudgedTurn(1.0, False),
    ]
    bins = calibration(table)
    assert [each.pairs for each in bins] == [2, 1, 0, 0, 0, 0, 0, 0, 0, 2]
    assert (bins[0].judged, bins[0].good) == (pytest.approx(0.025), 0.5)
    assert (bins[9].judged, bins[9].good) == (pytest.approx(0.975), 0.5)
    assert (bins[5].judged, bins[5].good) == (None, None)
    assert (bins[0].start, bins[9].end) == (0.0, 1.0)


def test_a_half_counts_as_good() -> None:
    assert accuracy([JudgedTurn(0.5, True), JudgedTurn(0.499, False)]) == 1.0


# ---------------------------------------------------------------------------------------------- laws


@given(PAIRS, st.randoms())
def test_laws(table: list[JudgedTurn], rng: random.Random) -> None:
    found = figures(table)
    assert 0 <= found.accuracy <= 1
    assert 0 <= found.brier <= 1
    assert found.kappa is None or -1 - 1e-9 <= found.kappa <= 1 + 1e-9
    assert sum(each.pairs for each in found.calibration) == len(table)
    for each in found.calibration:
        if each.judged is not None:
            assert each.start - 1e-9 <= each.judged <= each.end + 1e-9
    shuffled = rng.sample(table, len(table))
    assert figures(shuffled).brier == pytest.approx(found.brier)
    assert figures(shuffled).kappa == found.kappa


@given(st.lists(st.booleans(), min_size=2, max_size=100).filter(lambda goods: len(set(goods)) == 2))
def test_who_knows_agrees_and_who_says_the_base_rate_has_its_brier_score(goods: list[bool]) -> None:
    knows = figures([JudgedTurn(float(good), good) for good in goods])
    assert (knows.accuracy, knows.kappa, knows.brier) == (1.0, 1.0, 0.0)
    share = sum(goods) / len(goods)
    says = figures([JudgedTurn(share, good) for good in goods])
    assert says.brier == pytest.approx(says.brier_of_base_rate)
    assert says.kappa == pytest.approx(0.0)


# ---------------------------------------------------------------------------------------------- what happened


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("accepted", 1.0, True), ("accepted", 0.0, False), ("rejected", 1.0, False), ("rejected", 0.0, None),
        ("edited", 0.5, True), ("edited", 0.4, False), ("rating", -0.5, False), ("rating", 0.0, None),
        ("rating", 0.1, True), ("tests_passed", 0.0, False), ("latency_felt", 1.0, None), ("mine", 1.0, None),
    ],
)  # fmt: skip
def test_what_an_outcome_says(name: str, value: float, word: bool | None) -> None:
    assert word_of(USUAL.get(name), value) is word


def test_bad_wins() -> None:
    assert verdict({"accepted": 1.0, "tests_passed": 1.0}, USUAL) is True
    assert verdict({"accepted": 1.0, "follow_up": 1.0}, USUAL) is False
    assert verdict({"accepted": 1.0, "rejected": 0.0}, USUAL) is True
    assert verdict({"rejected": 0.0, "comment": 1.0}, USUAL) is None


def judged(events: Any, turn: Completion, value: float, version: str = "m/1", **fields: Any) -> Outcome:
    said: Outcome = events.outcome(turn, "judgement", value, 2, source="judge", source_version=version, **fields)
    return said


def test_pairs_are_of_what_stands_by_version_and_name(events: Any) -> None:
    turn = events.turn("s", 0)
    said = events.outcome(turn, "accepted", True, 3)
    amended = events.amendment(said, False, 4)
    passed = events.outcome(turn, "tests_passed", True, 3, source="environment")
    gone = events.outcome(turn, "answer_useful", True, 3)
    text = events.outcome(turn, "comment", "too long", 3)
    flattered = events.outcome(turn, "accepted", True, 9, source="judge", outcome_id=OutcomeId("other-judge"))
    about = [
        judged(events, turn, 0.75),
        judged(events, turn, 0.25, "m/2"),
        said,
        amended,
        passed,
        gone,
        text,
        flattered,
    ]
    about.append(events.withdrawal(gone, 5))
    silent = [judged(events, events.turn("t", 0), 0.5)]
    found = agreements([about] * LEAST + [silent], "judgement", USUAL)
    names = [(each.version, each.against, each.pairs) for each in found]
    assert names == [
        (version, against, LEAST) for version in ("m/1", "m/2") for against in (ALL, "accepted", "tests_passed")
    ]
    by_name = {(each.version, each.against): each.figures for each in found}
    assert [getattr(by_name[key], "accuracy", None) for key in by_name] == [0.0, 0.0, 1.0, 1.0, 1.0, 0.0]


def test_too_few_pairs_have_no_figures(events: Any) -> None:
    turn = events.turn("s", 0)
    about = [judged(events, turn, 0.75), events.outcome(turn, "accepted", True, 3)]
    found = agreements([about] * (LEAST - 1), "judgement", USUAL)
    assert [(each.against, each.pairs, each.figures) for each in found] == [
        (ALL, LEAST - 1, None),
        ("accepted", LEAST - 1, None),
    ]


# ---------------------------------------------------------------------------------------------- from a store


def store_a_past(world: Any, events: Any, count: int) -> None:
    """Store turns of which every other one is accepted.

    The judge gives 0.75 to two in three accepted turns, and to one in three others."""
    said: list[Event] = []
    for number in range(count):
        turn, good = events.turn(f"s{number}", number), number % 2 == 0
        high = (number // 2) % 3 < (2 if good else 1)
        said += [turn, judged(events, turn, 0.75 if high else 0.25, f"m/{number * 2 // count + 1}")]
        said.append(events.outcome(turn, "accepted" if good else "rejected", True, number))
    world.append(*said)
    writer = Writer(world.log, world.store, IngestSettings(), world.clock)
    while step(writer, 0):
        pass
    writer.close()


def command(directory: Path, *options: str) -> str:
    line = [sys.executable, "-m", "onward", "judge", "agreement", str(directory), *options]
    done = subprocess.run(line, capture_output=True, text=True, check=True, env={"PATH": "/bin"})
    return done.stdout


def test_the_command_tells_it_by_version(world: Any, events: Any) -> None:
    store_a_past(world, events, 240)
    told = json.loads(command(world.directory, "--json"))
    assert told["outcome"] == "judgement"
    assert told["provenance"]["command"] == f"onward judge agreement {world.directory} --json"
    everything = [each for each in told["agreements"] if each["against"] == ALL]
    assert [(each["version"], each["pairs"]) for each in everything] == [("m/1", 120), ("m/2", 120)]
    for each in everything:
        assert each["figures"]["accuracy"] == pytest.approx(2 / 3)
        assert each["figures"]["kappa"] == pytest.approx(1 / 3)
        assert each["figures"]["brier"] == pytest.approx(2 / 3 * 0.0625 + 1 / 3 * 0.5625)
        assert each["figures"]["brier_of_base_rate"] == pytest.approx(0.25)
    with world.store.look() as view:
        found: list[Agreement] = agreements(view.outcomes.of_judged_turns("judgement"), "judgement", USUAL)
    assert len(found) == len(told["agreements"]) == 6


def test_the_tables_and_what_is_too_little(world: Any, events: Any, capsys: pytest.CaptureFixture[str]) -> None:
    show_agreement(world.directory, {}, as_json=False)
    assert "no turn has both 'judgement' by a judge and an outcome to hold it against\n" in capsys.readouterr().out
    store_a_past(world, events, 140)
    show_agreement(world.directory, {}, as_json=False)
    shown = capsys.readouterr().out
    assert "Calibration of m/1" in shown
    assert "0.67" in shown
    assert "-: too few pairs; figures are shown from 50 on" in shown  # of each name there are 35


# ---------------------------------------------------------------------------------------------- the monitor


def test_a_judge_that_is_pleased_trips_the_monitor() -> None:
    """Judgements have a name of their own and are compared with the turns' outcomes."""

    def judge(turn: Any, rng: random.Random, flattery: float) -> dict[str, Any]:
        good = verdict(turn.told, turn.roles)
        honest = min(max(rng.gauss(0.7 if good else 0.3, 0.2), 0.0), 1.0)
        return {"judged": {"judgement": min(honest + flattery, 1.0)}}

    honest = watched_turns(1, lambda turn, rng: judge(turn, rng, 0.0))
    reference = watched_turns(101, lambda turn, rng: judge(turn, rng, 0.0))
    pleased = watched_turns(2, lambda turn, rng: judge(turn, rng, 0.5))
    content = judge_against_outcome(Window.of(honest, reference))
    assert content is not None
    assert not content.trips
    tripped = judge_against_outcome(Window.of(pleased, reference))
    assert tripped is not None
    assert tripped.trips
