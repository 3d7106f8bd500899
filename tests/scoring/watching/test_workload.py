"""The windows of one workload hold as many turns as they may, and a reference only once it is whole."""

from collections.abc import Callable

import msgspec
import pytest
from clean_turns import turns

from core.ids import InferenceId
from core.settings import MonitorSettings
from scoring.monitors.users import feedback_rate, reward_mass
from scoring.monitors.window import Finding, Window
from scoring.watching.turns import WatchedTurns
from scoring.watching.workload import Workload

SETTINGS = MonitorSettings(window_turns=50, reference_turns=60)


def workload_after(count: int) -> Workload:
    made = Workload(WatchedTurns(), SETTINGS, maturity_s=1e9, roles={})
    for turn in turns(0, count=count):
        made.add(turn)
    return made


def test_the_latest_window_holds_the_newest_turns_and_no_more() -> None:
    recent = workload_after(80).window(ripe=False).recent
    assert [turn.inference_id for turn in recent] == [turn.inference_id for turn in turns(0, count=80)[-50:]]


def test_nothing_is_compared_before_there_is_enough_to_compare_with() -> None:
    assert not workload_after(59).window(ripe=False).reference


def test_what_is_ripe_is_compared_with_nothing_that_is_not() -> None:
    workload = workload_after(60)
    assert len(workload.window(ripe=False).reference) == 60
    assert not workload.window(ripe=True).reference


def test_a_burst_of_simulated_turns_pushes_no_user_out() -> None:
    workload = Workload(WatchedTurns(), SETTINGS, maturity_s=1e9, roles={})
    for number, turn in enumerate(turns(0, count=80)):
        workload.add(msgspec.structs.replace(turn, environment="production" if number < 20 else "simulated"))
    sides = workload.sides()
    assert (len(sides.recent), {turn.environment for turn in sides.recent}) == (50, {"simulated"})
    assert (len(sides.reference), {turn.environment for turn in sides.reference}) == (20, {"production"})


@pytest.mark.parametrize("monitor", [reward_mass, feedback_rate])
def test_who_teaches_for_all_is_seen_however_many_turns_she_has(monitor: Callable[[Window], Finding | None]) -> None:
    """A window of which a fifth is hers at most cannot show that most of the feedback is."""
    workload = Workload(WatchedTurns(), MonitorSettings(), maturity_s=0.0, roles={})
    for number, turn in enumerate(turns(0, count=3000)):
        if number >= 1000 and number % 10:
            turn = msgspec.structs.replace(turn, unit="mallory", told={"rejected": 1.0}, value=-1.0)
        else:
            turn = msgspec.structs.replace(turn, unit=f"u{number // 10 % 25}")
        workload.add(turn)
        workload.pass_time(turn.at_s + 1, turn.at_s + 1)
    found = monitor(workload.window(ripe=True))
    assert found is not None
    assert found.trips, found.figures


def test_who_asks_much_leaves_room_for_others_where_turns_ripen() -> None:
    """Turns ripen as one each so many seconds. Who asks twenty times as often as all others had all of them."""
    workload = Workload(WatchedTurns(), SETTINGS, maturity_s=500.0, roles={})
    alone = Workload(WatchedTurns(), SETTINGS, maturity_s=500.0, roles={})
    for turn in turns(0, count=300):
        turn = msgspec.structs.replace(turn, at_s=10 * turn.at_s)
        alone.add(turn)
        for number in range(20):
            more = {"inference_id": InferenceId(f"{turn.inference_id}-{number}"), "at_s": turn.at_s + number / 2.2}
            workload.add(msgspec.structs.replace(turn, unit="mallory", **more))
        workload.add(msgspec.structs.replace(turn, at_s=turn.at_s + 9.5))
        for each in (alone, workload):
            each.pass_time(turn.at_s + 10, turn.at_s + 10)
    others, without = (
        sum(turn.unit != "mallory" for turn in each.window(ripe=True).recent) for each in (workload, alone)
    )
    assert others >= without / 2


def test_who_asks_much_has_no_monitor_look_away() -> None:
    """Not by being the first in a workload, nor by pushing everybody else out of what is looked at later."""
    workload = Workload(WatchedTurns(), SETTINGS, maturity_s=0.0, roles={})
    flood, others = turns(0, count=900), turns(0, count=1200)[900:]
    flood = [msgspec.structs.replace(turn, unit="mallory") for turn in flood]
    for turn in [*flood[:300], *others[:150], *flood[300:600], *others[150:], *flood[600:]]:
        workload.add(turn)
        workload.pass_time(turn.at_s + 1, turn.at_s + 1)
    for ripe in (False, True):
        window = workload.window(ripe=ripe)
        for side in (window.recent, window.reference):
            assert len(side) >= 50
            assert sum(turn.unit == "mallory" for turn in side) <= len(side) / 4
    ripe = workload._ripe, workload._ripening, workload._ripe_of_all, workload._ripening_of_all
    held = {each for kept in (workload._latest, *ripe, *workload._sides.values()) for each in kept}
    assert set(workload._turns._turns) == held
    workload.close()
    assert len(workload._turns) == 0
