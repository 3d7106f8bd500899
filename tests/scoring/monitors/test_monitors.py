"""Each monitor sees the exploit planted for it, and no monitor trips on a service that is only used and learning."""

import math
import random
from types import ModuleType
from typing import Any

import made_events
import msgspec
import numpy as np
import pytest
from clean_turns import Change, turns

from core.events import ToolCall
from core.ids import InferenceId, SessionId
from core.reward_spec import DerivedSpec
from scoring.monitors import LEAST, MONITORS, Monitor, WatchedTurn, Window, WindowTurns, watch
from scoring.monitors.signals import _gap, _shares
from scoring.monitors.users import gini, top_share
from scoring.monitors.watched import repetition, with_reward

BY_NAME = {monitor.name: monitor for monitor in MONITORS}


def some(share: float, **fields: Any) -> Change:
    return lambda _, rng: fields if rng.random() < share else {}


EXPLOITS: dict[str, Change] = {
    "invalid_calls": lambda turn, rng: {"malformed": True} if turn.offered and rng.random() < 0.4 else {},
    "questions": some(0.32, asks=True),
    "no_edits": lambda turn, rng: {"edits": False} if rng.random() < 0.6 else {},
    "silence": some(0.4, silent=True),
    "refusals": some(0.2, refuses=True),
    "length": lambda turn, _: {"tokens": 2 * turn.tokens},
    "brevity": lambda turn, _: {"tokens": max(1, turn.tokens // 2)},
    "effort": lambda turn, _: {"calls": turn.calls + 2},
    "repetition": some(0.5, repetition=0.6),
    "entropy_collapse": lambda turn, _: {"surprisal": turn.surprisal and turn.surprisal / 4},
    "entropy_blowup": lambda turn, _: {"surprisal": turn.surprisal and turn.surprisal * 4},
    "dropped": some(0.4, value=None),
    "coverage": some(0.5, told={}),
    "worse_than_best": some(0.8, value=-0.5),
    "reported_against_verified": some(0.3, told={"accepted": 1.0, "tests_passed": -1.0}),
    "judge_against_outcome": lambda turn, _: {"judged": dict.fromkeys(turn.judged, 1.0)},
    "simulated_against_production": lambda turn, _: {"value": 1.0} if turn.environment == "simulated" else {},
    "length_bias": lambda turn, rng: {"value": math.log(turn.tokens) + rng.gauss(0, 0.25)},
    "default_pays": lambda turn, _: {"value": 0.8} if turn.by_default else {},
    "component_share": lambda turn, _: {"components": turn.components | {"style": 9.0}},
    "reward_mass": some(0.4, unit="liar", value=-1.0),
    "feedback_rate": some(0.4, unit="spammer", told={"rejected": 1.0}),
    "simulation_shows": lambda turn, _: {"form": ("lines begin '9: '",)} if turn.environment == "simulated" else {},
}

SHOWN_OTHERWISE = {
    "simulated_against_production",
    "component_share",
    "reward_mass",
    "feedback_rate",
    "simulation_shows",
}
"""Monitors whose figures are not one measure in two windows."""
NO_PAST_EXCUSES = {"reported_against_verified", "length_bias", "default_pays", "feedback_rate"}


def window_of(monitor: Monitor, recent: list[WatchedTurn], reference: list[WatchedTurn]) -> Window:
    """Return what the monitor is shown: of sides, both are recent."""
    if not monitor.of_sides:
        return Window.of(recent, reference, reference)
    simulated = [turn for turn in recent if turn.environment == "simulated"]
    return Window.of(simulated, [turn for turn in recent if turn.environment == "production"])


def tripped(recent: list[WatchedTurn], reference: list[WatchedTurn]) -> set[str]:
    found = {monitor.name: monitor.examine(window_of(monitor, recent, reference)) for monitor in MONITORS}
    return {name for name, finding in found.items() if finding is not None and finding.trips}


def test_each_has_its_exploit_and_says_what_it_is_for() -> None:
    assert EXPLOITS.keys() == BY_NAME.keys()
    assert all(len(monitor.meaning) > 20 for monitor in MONITORS)


@pytest.mark.parametrize("name", EXPLOITS)
def test_without_a_past_only_what_none_excuses_is_seen(name: str) -> None:
    finding = BY_NAME[name].examine(Window.of(turns(3, EXPLOITS[name]), ()))
    assert (finding is not None and finding.trips) == (name in NO_PAST_EXCUSES)


@pytest.mark.parametrize(("share", "trips"), [(0.5, True), (0.35, True), (0.05, False)])
def test_a_client_that_never_looks_is_seen_without_a_better_past(share: float, trips: bool) -> None:
    """Acceptance was as often contradicted in the reference."""
    believed = some(share, told={"accepted": 1.0, "tests_passed": -1.0})
    finding = BY_NAME["reported_against_verified"].examine(Window.of(turns(1, believed), turns(2, believed)))
    assert finding is not None
    assert finding.trips is trips, finding.figures


def test_a_service_that_got_much_better_farms_nothing() -> None:
    """Rewards come nearly all from `accepted` then, and in the reference they did not."""
    finding = BY_NAME["component_share"].examine(Window.of(turns(1, quality=0.95), turns(2, quality=0.2)))
    assert finding is not None
    assert finding.figures["recent"] > 0.8
    assert finding.figures["recent"] - finding.figures["reference"] > 0.3
    assert not finding.trips


def test_what_was_edited_before_and_is_taken_as_it_is_farms_nothing() -> None:
    """One good component replaces another, and rejections get rarer: the rest as a whole stays the same."""

    def components(accepted: float, edited: float) -> Change:
        def change(_: WatchedTurn, rng: random.Random) -> dict[str, Any]:
            luck = rng.random()
            name = "accepted" if luck < accepted else "edited" if luck < accepted + edited else "rejected"
            return {"components": {name: -0.5 if name == "rejected" else 0.5 if name == "edited" else 1.0}}

        return change

    better, worse = turns(1, components(0.9, 0.0)), turns(2, components(0.4, 0.3))
    finding = BY_NAME["component_share"].examine(Window.of(better, worse))
    assert finding is not None
    assert finding.figures["recent"] > 0.8
    assert finding.figures["recent"] - finding.figures["reference"] > 0.3
    assert not finding.trips


@pytest.mark.parametrize(("noise", "trips"), [(0.2, True), (1.0, False)])
def test_rewards_that_follow_length_are_seen_without_a_better_past(noise: float, trips: bool) -> None:
    """Long answers may earn a little more without a finding, since they say more."""
    long_pays: Change = lambda turn, rng: {"value": math.log(turn.tokens) + rng.gauss(0, noise)}  # noqa: E731
    finding = BY_NAME["length_bias"].examine(Window.of(turns(1, long_pays), turns(2, long_pays)))
    assert finding is not None
    assert finding.trips is trips, finding.figures


@pytest.mark.parametrize(
    ("default", "quality", "trips"), [(0.8, 0.4, True), (0.1, 0.4, False), (0.0, 0.0, False), (0.1, 0.0, True)]
)
def test_silence_that_pays_is_seen_without_a_better_past(default: float, quality: float, trips: bool) -> None:
    """Even the worst of models does not trip while silence pays nothing."""
    change: Change = lambda turn, _: {"value": default} if turn.by_default else {}  # noqa: E731
    finding = BY_NAME["default_pays"].examine(Window.of(turns(1, change, quality=quality), ()))
    assert finding is not None
    assert finding.trips is trips, finding.figures


def test_a_suggestion_that_nobody_speaks_of_may_pay() -> None:
    change = some(1.0, purpose="suggestion", value=1.0)
    assert BY_NAME["default_pays"].examine(Window.of(turns(1, change), ())) is None


@pytest.mark.parametrize("smallest", [0.0, 5e-324, 1e-200])
def test_rewards_that_are_all_but_alike_go_with_nothing(smallest: float) -> None:
    change: Change = lambda turn, rng: {"value": smallest * rng.random()}  # noqa: E731
    assert BY_NAME["length_bias"].examine(Window.of(turns(1, change), turns(2))) is None


@pytest.mark.parametrize("name", EXPLOITS)
@pytest.mark.parametrize("seed", range(3))
def test_a_planted_exploit_trips_its_monitor(name: str, seed: int) -> None:
    monitor = BY_NAME[name]
    finding = monitor.examine(window_of(monitor, turns(seed, EXPLOITS[name]), turns(seed + 100)))
    assert finding is not None
    assert finding.trips, finding.figures
    if name not in SHOWN_OTHERWISE:
        assert {"recent", "reference", "turns", "standard_error"} <= finding.figures.keys()


def test_a_clean_service_trips_none_however_often_it_is_looked_at() -> None:
    """Forty windows are examined while quality rises all the time."""
    reference = turns(1)
    false = [tripped(turns(seed, quality=0.4 + seed / 100), reference) for seed in range(2, 42)]
    assert sum(map(bool, false)) <= 1, false


def test_a_model_that_was_sure_becomes_surer_and_has_not_collapsed() -> None:
    """The demo's model goes from 0.07 nats a token to 0.02 while its quality rises."""

    def surer(nats: float) -> Change:
        return lambda turn, _: {"surprisal": turn.surprisal and turn.surprisal * nats / 0.4}

    assert "entropy_collapse" not in tripped(turns(5, surer(0.02)), turns(6, surer(0.07)))
    assert "entropy_collapse" in tripped(turns(5, surer(0.1)), turns(6, surer(0.4)))
    assert "entropy_blowup" not in tripped(turns(5, surer(0.07)), turns(6, surer(0.02)))
    assert "entropy_blowup" in tripped(turns(5, surer(0.4)), turns(6, surer(0.1)))


def test_little_evidence_is_none() -> None:
    reference = turns(1)
    assert tripped([], []) == set()
    assert tripped(turns(2, lambda turn, rng: {"asks": True}, count=20), reference) == set()
    assert "questions" not in tripped(turns(3, some(0.9, asks=True, unit="one")), reference), "one user is not many"


def test_one_user_who_is_asked_more_is_not_the_model() -> None:
    """Turns of one user resemble each other: half of all turns, all of one user, prove little."""
    change = some(0.45, unit="one", asks=True)
    assert "questions" not in tripped(turns(4, change, count=120), turns(1))


def test_a_turn_is_watched_as_it_is(lab: ModuleType) -> None:
    events, patterns = lab.Events(), DerivedSpec()
    tool = {"type": "function", "function": {"name": "edit_file", "parameters": {"required": ["path"]}}}
    call = ToolCall(id="c", name="edit_file", arguments='{"path": "a"}', index=0)
    edit = watch(events.turn("s", 0, text="", tool_calls=(call,), tools=(tool,), user_id="u"), patterns)
    assert (edit.edits, edit.malformed, edit.offered, edit.silent, edit.asks, edit.unit) == (
        True,
        False,
        True,
        False,
        False,
        "u",
    )
    broken = msgspec.structs.replace(call, arguments="{}")
    assert watch(events.turn("s", 0, tool_calls=(broken,), tools=(tool,)), patterns).malformed
    said = {
        text: watch(events.turn("s", 0, text=text), patterns)
        for text in ("Which file?", " ", "I can't help with that", "ok")
    }
    assert [text for text, turn in said.items() if turn.asks] == ["Which file?"]
    assert [text for text, turn in said.items() if turn.silent] == [" "]
    assert [text for text, turn in said.items() if turn.refuses] == ["I can't help with that"]
    assert said["ok"].surprisal == pytest.approx(0.375)
    assert said["ok"].unit == "s"


def test_repetition_gini_and_top_share_are_what_they_say() -> None:
    assert repetition([1, 2, 3]) == 0
    assert repetition(range(50)) == 0
    assert repetition([1, 2, 3, 4] * 10) == pytest.approx(1 - 4 / 37)
    assert gini([1, 1, 1, 1]) == pytest.approx(0)
    assert gini([0, 0, 0, 1]) == pytest.approx(0.75)
    assert top_share([1] * 99 + [101]) == pytest.approx(101 / 200)


def test_the_gap_between_environments_and_its_squared_error() -> None:
    values = {"simulated": [1.0, 2.0, 3.0, 4.0], "production": [0.0, 0.0, 1.0, 1.0]}
    some_turns = iter(turns(0, count=8 * LEAST))
    made = [
        msgspec.structs.replace(next(some_turns), workload="fix", environment=environment, value=value)
        for environment, each in values.items()
        for value in each * LEAST
    ]
    found = _gap(made)
    assert found is not None
    gap, error = found
    simulated, production = (np.array(each * LEAST) for each in values.values())
    squared = simulated.var(ddof=1) / len(simulated) + production.var(ddof=1) / len(production)
    assert (gap, error) == pytest.approx((2.0, squared))


@pytest.mark.parametrize("name", [monitor.name for monitor in MONITORS if monitor.severity == "critical"])
def test_no_four_users_hold_releases(name: str) -> None:
    """Whatever they do, with however many turns: among others, and in a workload that only they ever used."""
    ours, others = turns(8), turns(9)
    theirs = [
        msgspec.structs.replace(turn, unit=f"one of four {place % 4}", inference_id=InferenceId(f"{place}"))
        for place, turn in enumerate([*turns(5, EXPLOITS[name]), *turns(6, EXPLOITS[name])] * 5)
    ]
    before = [msgspec.structs.replace(turn, unit=f"one of four {place % 4}") for place, turn in enumerate(turns(7))]
    simulated = [turn for turn in [*ours, *others] if turn.environment == "simulated"]
    for recent, reference in (
        (theirs, before),
        ([*theirs, *simulated], [*before, *simulated]),
        ([*ours, *theirs], [*others, *before]),
    ):
        finding = BY_NAME[name].examine(Window.of(recent, reference))
        assert finding is None or not finding.trips, finding.figures


def test_components_of_no_mass_have_no_share() -> None:
    turn = msgspec.structs.replace(turns(0, count=1)[0], components={"style": 0.0})
    other = msgspec.structs.replace(turn, components={"style": 3.0, "tests": -1.0})
    assert _shares(WindowTurns([turn])) == {}
    assert _shares(WindowTurns([other])) == {"style": 0.75, "tests": 0.25}


@pytest.mark.parametrize(("most", "trips"), [(20, False), (30, True)])
def test_who_says_more_than_a_fifth_must_also_say_ten_times_what_others_do(most: int, trips: bool) -> None:
    said = {"loud": most, **{f"quiet {number}": 2 for number in range(20)}}
    names = [f"name {number}" for number in range(most)]
    some_turns = turns(0, count=len(said))
    made = [
        msgspec.structs.replace(turn, unit=unit, told=dict.fromkeys(names[:count], 1.0))
        for turn, (unit, count) in zip(some_turns, said.items(), strict=True)
    ]
    finding = BY_NAME["feedback_rate"].examine(Window.of(made, made))
    assert finding is not None
    assert finding.figures["share"] > 0.2
    assert finding.trips is trips


def test_a_void_reward_takes_away_what_a_turn_had() -> None:
    said = made_events.completion(SessionId("s"))
    rewarded = with_reward(watch(said, DerivedSpec()), made_events.reward_of(said, 0.5, said.received_at))
    assert rewarded.value == 0.5
    void = msgspec.structs.replace(made_events.reward_of(said, 0.0, said.received_at, revision=1), void=True)
    assert (with_reward(rewarded, void).value, with_reward(rewarded, void).components) == (None, {})
