"""Windows that move on say what plain sums over their turns say, whatever came, changed, ripened and went."""

import random
from collections.abc import Callable
from statistics import correlation
from typing import Any

import msgspec
import pytest
from clean_turns import turns as clean_turns

from core.ids import InferenceId
from core.settings import MonitorSettings
from core.statistics.clustered import effective_units, mean, squared_error
from scoring.monitors import MONITORS, Finding, WatchedTurn, Window, WindowTurns
from scoring.monitors.conduct import _edits, _log_surprisal, _surprisal, log_tokens
from scoring.monitors.level import _value
from scoring.monitors.signals import _components, _judge_excess, _length_and_value
from scoring.monitors.tally import Tally
from scoring.monitors.users import _mass
from scoring.watching.turns import WatchedTurns
from scoring.watching.workload import Held, Workload

MEASURES = (_value, _judge_excess, _surprisal, _log_surprisal, _edits, log_tokens)


def changed(turn: WatchedTurn, rng: random.Random) -> WatchedTurn:
    value = rng.choice([None, -0.5, 0.0, 0.1, 1.0, rng.gauss(0.5, 0.2), 1e9 * rng.random(), 1e-9])
    components = {} if value is None else {rng.choice(["accepted", "style"]): value, "effort": -0.1 * rng.random()}
    told = rng.choice([{}, {"accepted": 1.0}, {"accepted": 0.0, "tests_passed": -1.0}])
    return msgspec.structs.replace(turn, value=value, components=components, told=told, by_default=not told)


def said_by(turns: Any) -> list[Finding | None]:
    return [monitor.examine(turns[monitor.ripe, monitor.of_sides]) for monitor in MONITORS]


def anew(window: Window) -> Window:
    sides = window.recent, window.reference, window.best, window.all_users
    return Window(*(WindowTurns(list(turns)) for turns in sides))


def check_sums(turns: WindowTurns) -> None:
    """Hold what is known of the turns against a computation of it with nothing kept."""
    for measure in MEASURES:
        values = [(turn.unit, value) for turn in turns if (value := measure(turn)) is not None]
        found = turns.summary(measure)
        assert found.count == (len(values) if len(values) > 1 else 0)
        if found.count:
            centre = mean(values)
            assert (found.units, found.mean) == pytest.approx((effective_units([unit for unit, _ in values]), centre))
            assert found.error == pytest.approx(squared_error(values, centre), rel=1e-9, abs=1e-30)
    for shares in (_components, _mass):
        totals: dict[str, float] = {}
        for name, value in (each for turn in turns for each in shares(turn)):
            totals[name] = totals.get(name, 0.0) + value
        assert turns.totals(shares) == pytest.approx(totals)
    known = turns.correlation(_length_and_value)
    if known is not None:
        pairs = [pair for turn in turns if (pair := _length_and_value(turn)) is not None]
        assert known == (len(pairs), pytest.approx(correlation(*zip(*pairs, strict=True)), abs=1e-9))


SEEDS = (0, 1, 2, 7, 10)  # among whose settings is each of those that are drawn


@pytest.mark.parametrize(
    "seed", [seed if seed in SEEDS else pytest.param(seed, marks=pytest.mark.deep) for seed in range(12)]
)
def test_a_window_that_moved_on_says_what_one_made_anew_says(seed: int) -> None:
    rng = random.Random(seed)
    maturity_s = rng.choice([0.0, 20.0])
    settings = MonitorSettings(window_turns=rng.choice([50, 120]), reference_turns=60, window_s=rng.choice([90.0, 1e9]))
    known = WatchedTurns()
    workload = Workload(known, settings, maturity_s, {})
    flood = rng.choice([0.0, 0.5])
    come = iter(clean_turns(seed, quality=rng.random(), count=900))
    for at_once in rng.choices([1, 2, 10, 100], [6, 4, 4, 1], k=30):
        for _, turn in zip(range(at_once), come, strict=False):
            now_s = turn.at_s
            workload.add(msgspec.structs.replace(turn, unit="mallory") if rng.random() < flood else turn)
            known.change(InferenceId(str(int(now_s) - rng.randrange(90))), lambda turn: changed(turn, rng))
        workload.pass_time(now_s, now_s)
        sides = workload.sides()
        windows = {(ripe, False): workload.window(ripe=ripe) for ripe in (False, True)} | {(False, True): sides}
        assert said_by(windows) == said_by({name: anew(window) for name, window in windows.items()})
        for window in windows.values():
            check_sums(window.recent)
            check_sums(window.reference)
            check_sums(window.all_users)
    workload.close()
    assert len(known) == 0


@pytest.mark.parametrize("seed", range(5))
def test_a_window_holds_the_newest_and_few_of_each_user(seed: int) -> None:
    rng, known, most = random.Random(seed), WatchedTurns(), 50
    held, plain = Held(known, most), list[WatchedTurn]()
    for turn in clean_turns(seed, lambda _, rng: {"unit": rng.choice(["ada", "bob", *"cdefghijkl"][: 3 + seed * 2])}):
        held.add(turn)
        plain.append(turn)
        own = [each for each in plain if each.unit == turn.unit]
        if len(own) > most // 5:
            plain.remove(own[0])
        if rng.random() < 0.3:
            before_s = turn.at_s - rng.choice([20.0, 1e9])
            held.shorten(before_s)
            plain = [each for each in plain[-most:] if each.at_s >= before_s]
        assert known.get(held) == plain
        assert len(known) == len(held)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e300])
def test_a_value_without_end_hides_the_mean_only_while_it_is_there(value: float) -> None:
    some = clean_turns(0, count=60)
    endless = msgspec.structs.replace(some[0], value=value)
    tally = Tally(_value)
    tally.add([endless, *some[1:]])
    assert tally.summary().mean != tally.summary().mean
    tally.take_away([endless])
    assert tally.summary() == WindowTurns(some[1:]).summary(_value)


def test_what_a_measure_fails_on_fails_its_monitor_until_it_is_gone() -> None:
    """What had been summed for it is not gone on with, nor does it touch what others summed."""
    known, settings = WatchedTurns(), MonitorSettings(window_turns=50, reference_turns=60)
    workload, some = Workload(known, settings, 1e9, {}), clean_turns(0, count=130)

    def look(measure: Callable[[WatchedTurn], float | None]) -> WindowTurns:
        recent = workload.window(ripe=False).recent
        assert recent.summary(_surprisal) == WindowTurns(list(recent)).summary(_surprisal)
        recent.summary(measure)
        return recent

    def fails(turn: WatchedTurn) -> float | None:
        if turn.malformed:
            raise ValueError("hostile")
        return turn.value

    for place, turn in enumerate(some):
        workload.add(msgspec.structs.replace(turn, malformed=place == 60))
        if 60 <= place < 110:
            with pytest.raises(ValueError, match="hostile"):
                look(fails)
        else:
            recent = look(fails)
            assert recent.summary(fails) == WindowTurns(list(recent)).summary(_value)
