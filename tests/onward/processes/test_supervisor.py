"""A stage that dies is restarted with growing delays, and readiness and alarms say which is down and why."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from ready_stores import open_ready
from waiting import wait_for

from core import telemetry
from core.clock import ManualClock, SystemClock, from_micros
from core.errors import Fenced, LogError, LogUnavailable, StoreUnavailable, Unavailable
from core.operations.alarms import StoredAlarm
from core.settings import StageSettings
from core.stages.backoff import Restarts
from core.stages.ending import Ending
from core.stages.lease import Lease
from core.stages.rounds import Rounds
from core.stages.runner import Runner
from core.stages.stage import Stage
from core.store import SqlStore
from onward.processes.stage_alarms import StageAlarms
from onward.processes.stages import _keep_going
from onward.processes.supervisor import ChildProcess
from onward.wiring.foundation import open_foundation

LEASE_S = 0.3  # by a clock that only its test moves: on a busy machine a renewal may be late
SETTINGS = StageSettings(restart_s=0.01, most_restart_s=0.02, well_s=0.05)


class Fragile(Stage):
    """A stage whose ticks raise the first of `errors` while there are any."""

    def __init__(self, errors: list[Exception], *, goes_on: bool = True, rest_s: float = 0.001) -> None:
        super().__init__()
        self.errors, self._goes_on, self._rest_s = errors, goes_on, rest_s
        self.steps = self.recovered = 0
        self.is_closed = False

    def tick(self) -> float:
        assert not self.is_closed
        if self.errors:
            raise self.errors[0]
        self.steps += 1
        return self._rest_s

    def recover(self, error: Unavailable | Fenced) -> None:
        self.recovered += 1
        if not self._goes_on:
            raise error

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    store = open_ready(tmp_path / "store.db")
    yield store
    store.close()


def all_alarms(store: SqlStore) -> list[StoredAlarm]:
    with store.look() as view:
        return view.alarms.newest(None, None, 100, only_open=False)


def gauge(name: str, part: str) -> float | None:
    return telemetry.REGISTRY.get_sample_value(name, {"part": part})


def test_waits_double_up_to_a_bound_and_begin_anew_after_it_was_well() -> None:
    now_s = 0.0
    settings = StageSettings(restart_s=1, most_restart_s=10, well_s=60)
    restarts = Restarts(settings, lambda: now_s)
    waits = [restarts.wait_s() for _ in range(50)]
    for wait_s, most_s in zip(waits, [1, 2, 4, 8, 10, *[10] * 45], strict=True):
        assert most_s / 2 <= wait_s <= most_s
    assert len(set(waits[4:])) > 40, "not all at the same moment"
    restarts.began()
    now_s = 59.0
    assert restarts.wait_s() >= 5
    restarts.began()
    now_s += 60.0
    assert restarts.wait_s() <= 1
    assert restarts.count == 52


def test_a_stage_that_dies_is_made_anew(store: SqlStore) -> None:
    errors: list[Exception] = [KeyError("what a client said")]
    made: list[Fragile] = []

    def make() -> Fragile:
        made.append(Fragile(errors))
        return made[-1]

    thread = Runner("fragile-1", make, SETTINGS)
    well_for_s = 0.0
    looking = StageAlarms([thread], store, SystemClock(), 60.0, lambda: well_for_s)
    thread.start()
    wait_for(lambda: thread.restarts >= 3)
    looking.look()
    assert thread.state.startswith("down: KeyError in test_supervisor.py:")
    assert "client" not in thread.state, "anybody may read it"
    (alarm,) = all_alarms(store)
    assert (alarm.opening.monitor, alarm.opening.workload, alarm.state) == ("stage_down", "fragile-1", "opened")
    assert alarm.opening.meaning.startswith("the stage fragile-1 is down: KeyError in ")
    assert gauge("onward_stage_up", "fragile-1") == 0
    wait_for(lambda: (gauge("onward_stage_restarts_total", "fragile-1") or 0) >= 3)  # counted after it is logged
    errors.clear()
    wait_for(lambda: thread.state == "ok")
    looking.look()
    assert gauge("onward_stage_up", "fragile-1") == 1
    assert all_alarms(store)[0].state == "opened", "it may die at its next step"
    well_for_s = 60.0
    looking.look()
    assert all_alarms(store)[0].state == "closed"
    thread.stop()
    assert made[-1].steps > 0
    assert all(stage.is_closed for stage in made)


def test_one_that_others_know_goes_on_as_it_is() -> None:
    errors: list[Exception] = [LogError("the log is not of one piece")]
    stage = Fragile(errors)
    thread = Runner("fragile-2", None, SETTINGS, made=stage)
    thread.start()
    wait_for(lambda: thread.restarts >= 2)
    assert thread.state == "down: LogError: the log is not of one piece"
    errors.clear()
    wait_for(lambda: stage.steps)
    thread.stop()
    assert stage.is_closed


def test_one_that_cannot_be_made_is_tried_again() -> None:
    failures: list[Exception] = [MemoryError(), OSError("no file")]

    def make() -> Fragile:
        if failures:
            raise failures.pop()
        return Fragile([])

    thread = Runner("fragile-3", make, SETTINGS, made=Fragile([ValueError()]))
    thread.start()
    wait_for(lambda: thread.restarts and thread.state == "ok")
    assert thread.restarts == 3
    thread.stop()


def test_an_alarm_that_another_process_left_open_is_closed(store: SqlStore) -> None:
    class OnePart:
        name, state, fault, restarts = "learner", "down", "was ended by SIGKILL", 1

    before, after = OnePart(), OnePart()
    StageAlarms([before], store, SystemClock(), 0.0).look()
    after.state, after.fault = "ok", None  # type: ignore[assignment]
    second = StageAlarms([after], store, SystemClock(), 0.0)
    second.look()
    assert [alarm.state for alarm in all_alarms(store)] == ["closed"]
    after.state, after.fault = "down", "was ended by SIGSEGV"
    second.look()
    assert [alarm.state for alarm in all_alarms(store)] == ["opened", "closed"]
    with store.work() as work:  # as the stage's own process does once it is well
        work.alarms.close(all_alarms(store)[0].alarm_id, SystemClock().now())
    after.state, after.fault = "starting", None  # type: ignore[assignment]
    second.look()
    after.state, after.fault = "down", "was ended by SIGKILL"
    second.look()
    assert [alarm.state for alarm in all_alarms(store)] == ["opened", "closed", "closed"]


def test_an_alarm_of_a_stage_that_was_taken_away_is_closed(store: SqlStore) -> None:
    """Any process closes it, ten minutes after the stage's last process; not before, however long it is down."""

    class OnePart:
        state, restarts = "down", 1

        def __init__(self, name: str, fault: str | None) -> None:
            self.name, self.fault = name, fault

    clock = ManualClock(datetime(2026, 7, 6, tzinfo=UTC))
    scorer = OnePart("scorer-2", "was ended by SIGKILL")
    keeper = StageAlarms([scorer], store, clock, 0.0)
    other = StageAlarms([OnePart("api", None)], store, clock, 0.0)
    for _ in range(30):
        keeper.look()
        other.look()
        clock.advance(60)
    assert [alarm.state for alarm in all_alarms(store)] == ["opened"]
    clock.advance(8 * 60)
    other.look()
    assert [alarm.state for alarm in all_alarms(store)] == ["opened"]
    clock.advance(60)
    other.look()
    assert [alarm.state for alarm in all_alarms(store)] == ["closed"]
    keeper.look()  # it was away, and is still down
    assert [alarm.state for alarm in all_alarms(store)] == ["opened", "closed"]


SLEEPER = "import os, sys, time\nwhile os.path.exists(sys.argv[2]): time.sleep(0.01)\n"
SLEEPER += "open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"


def test_a_child_that_is_killed_is_started_again(tmp_path: Path, store: SqlStore) -> None:
    ready, held = tmp_path / "ready", tmp_path / "held"
    child = ChildProcess("child-1", [], ready, {}, SETTINGS)
    child._command = [child._command[0], "-c", SLEEPER, str(ready), str(held)]
    looking = StageAlarms([child], store, SystemClock(), SETTINGS.well_s)
    child.start()
    try:
        wait_for(lambda: child.state == "ok")
        first = child.pid
        assert first is not None
        held.touch()  # until it was looked at, no other is ready
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: child.fault is not None)
        assert child.state == "down: was ended by SIGKILL"
        looking.look()
        assert all_alarms(store)[0].opening.meaning == "the stage child-1 is down: was ended by SIGKILL"
        held.unlink()
        wait_for(lambda: child.state == "ok")
        assert child.pid != first

        def is_closed() -> bool:
            looking.look()
            return all_alarms(store)[0].state == "closed"

        wait_for(is_closed)
    finally:
        child.stop()


def test_a_child_that_never_lives_is_not_started_all_the_time(tmp_path: Path) -> None:
    settings = StageSettings(restart_s=0.05, most_restart_s=60, well_s=60)
    child = ChildProcess("child-2", [], tmp_path / "ready", {}, settings)
    child._command = ["/bin/false"]
    began_s = time.monotonic()
    child.start()
    wait_for(lambda: child.restarts >= 5)
    assert time.monotonic() - began_s >= 0.35, "half of 0.05, 0.1, 0.2 and 0.4 s at the least"
    assert child.state == "down: ended with 1"
    child.stop()


STUBBORN = "import os, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
STUBBORN += "open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"


def test_a_child_that_does_not_end_shows_what_it_is_doing_and_is_killed(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("onward.processes.supervisor._SHOW_S", 120.0)  # it may take long to write on a busy machine
    ready = tmp_path / "ready"
    child = ChildProcess("child-6", [], ready, {}, SETTINGS.model_copy(update={"end_s": 0.2}))
    child._command = [child._command[0], "-c", STUBBORN, str(ready)]
    child.start()
    wait_for(lambda: child.state == "ok")
    child.stop()
    assert child.state == "down: was ended by SIGABRT"
    assert "child-6 has not ended, 0.2 s after it was told to" in caplog.text
    assert "most recent call first" in capfd.readouterr().err


def test_a_stage_process_says_why_before_it_ends(tmp_path: Path) -> None:
    foundation = open_foundation(tmp_path / "service", {"ONWARD_STAGES__WELL_S": "0.05"})
    with pytest.raises(RecursionError):
        _keep_going(Runner("score", lambda: Fragile([RecursionError("what a client said")]), SETTINGS), foundation)
    (alarm,) = all_alarms(foundation.store)
    assert alarm.opening.meaning.startswith("the stage score is down: RecursionError in test_supervisor.py:")
    ending = Ending()

    def end_once_closed(_health: str) -> None:
        if all_alarms(foundation.store)[0].state == "closed":
            ending.tell()

    _keep_going(Runner("score", lambda: Fragile([]), SETTINGS, ending=ending, on_round=end_once_closed), foundation)
    foundation.close()


# ------------------------------------------------------------------------------------------------ what is away


def test_what_is_away_is_waited_for_without_an_end(caplog: pytest.LogCaptureFixture) -> None:
    stage = Fragile([LogUnavailable("the log is away")])
    runner = Runner("fragile-4", lambda: stage, SETTINGS)
    runner.start()
    wait_for(lambda: stage.recovered >= 3)
    assert (runner.restarts, runner.fault) == (0, None)
    assert caplog.text.count("fragile-4 waits: the log is away") == 1
    stage.errors.clear()
    wait_for(lambda: stage.steps and runner.health == "ok")
    runner.stop()


def test_one_that_cannot_go_on_after_an_outage_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.stages.runner.AGAIN_S", 0.01)
    made: list[Fragile] = []

    def make() -> Fragile:
        made.append(Fragile([StoreUnavailable("the store is away")] if len(made) < 2 else [], goes_on=False))
        return made[-1]

    runner = Runner("fragile-5", make, SETTINGS)
    runner.start()
    wait_for(lambda: len(made) == 3 and runner.state == "ok")
    assert (runner.restarts, made[-1].steps > 0) == (0, True)
    runner.stop()
    assert all(stage.is_closed for stage in made)


def test_one_waits_less_than_it_was_told_where_it_is_woken() -> None:
    stage = Fragile([], rest_s=3600.0)
    rounds = Rounds("fragile-6", stage)
    rounds.step(0.0)
    stage.wake()
    rounds.step(3600.0)  # longer than a test may take
    assert stage.steps == 2


# ------------------------------------------------------------------------------------------------ leases


def leased(store: SqlStore, holder: str, made: list[Fragile], clock: ManualClock) -> Runner:
    def make() -> Fragile:
        made.append(Fragile([]))
        return made[-1]

    return Runner(holder, make, SETTINGS, lease=Lease("fragile", holder, store, clock, LEASE_S))


def expiry(store: SqlStore) -> datetime:
    with store.begin() as connection:
        return from_micros(connection.exec_driver_sql("SELECT expires_at FROM leases").scalar_one())


def test_of_two_one_works_and_the_other_follows(store: SqlStore) -> None:
    made, clock = list[Fragile](), ManualClock(datetime(2026, 7, 6, tzinfo=UTC))
    first, second = leased(store, "first", made, clock), leased(store, "second", made, clock)
    first.start()
    wait_for(lambda: made and made[0].steps)
    second.start()
    wait_for(lambda: second.health == "ok")
    for _ in range(4):
        clock.advance(LEASE_S / 2)
        wait_for(lambda: expiry(store) == clock.now() + timedelta(seconds=LEASE_S))
    assert len(made) == 1, "it is renewed, and the other stands by"
    first.stop()
    wait_for(lambda: len(made) == 2 and made[1].steps)
    assert made[0].is_closed, "before the lease was given back"
    second.stop()


def test_a_lease_that_was_lost_ends_the_stage(store: SqlStore) -> None:
    made: list[Fragile] = []
    runner = leased(store, "first", made, ManualClock(datetime(2026, 7, 6, tzinfo=UTC)))
    runner.start()
    wait_for(lambda: made and made[0].steps)
    with store.begin() as connection:
        connection.exec_driver_sql("UPDATE leases SET holder = 'another', epoch = epoch + 1, expires_at = 0")
    wait_for(lambda: made[0].is_closed and len(made) == 2 and made[1].steps)
    assert runner.restarts == 1
    runner.stop()


def test_users_are_served_while_a_child_that_they_do_not_need_starts_or_starts_again(tmp_path: Path) -> None:
    needed = ChildProcess("child-3", [], tmp_path / "ready", {}, SETTINGS)
    beside = ChildProcess("child-4", [], tmp_path / "ready", {}, SETTINGS, serves_users=False)
    assert (needed.state, beside.state) == ("starting", "degraded: starting")
    needed._ended = beside._ended = "ended with 1"
    assert (needed.state, beside.state) == ("down: ended with 1", "degraded: down: ended with 1")


def test_a_child_told_to_end_while_it_is_being_made_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = subprocess.Popen

    def slowly(*given: Any, **named: Any) -> "subprocess.Popen[bytes]":
        making.set()
        told.wait(120)
        return made([sys.executable, "-c", "import time; time.sleep(300)"])

    making, told = threading.Event(), threading.Event()
    monkeypatch.setattr(subprocess, "Popen", slowly)
    child = ChildProcess("child-5", [], tmp_path / "ready", {}, SETTINGS)
    child.start()
    assert making.wait(120)
    child.terminate()
    told.set()
    stopping = threading.Thread(target=child.stop, daemon=True)
    stopping.start()
    stopping.join(120)
    assert not stopping.is_alive()
