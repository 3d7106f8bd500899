"""While releases are held, the time from feedback to served says nothing of learning, and is not taken."""

from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import made_events
import pytest
from ready_stores import open_ready

from core import telemetry
from core.clock import ManualClock
from core.events import Release, ReleaseState
from core.ids import base_ref
from core.operations.fleet import Switches
from core.store import SqlStore
from ingest.sqlite.log import SqliteEventLog
from onward.wiring.observer import PolicyObserver
from serving.releases import LoopTimer


def pin(store: SqlStore) -> None:
    with store.work() as work:
        work.fleet.put_switches("local", Switches(pinned=base_ref(1)))


def unpin(store: SqlStore) -> None:
    with store.work() as work:
        work.fleet.put_switches("local", Switches())


def alarm(store: SqlStore) -> None:
    with store.work() as work:
        assert work.alarms.open(made_events.opening("a"))


def close_alarm(store: SqlStore) -> None:
    with store.work() as work:
        work.alarms.close("a", made_events.NOW)


def counted(name: str) -> float:
    return telemetry.REGISTRY.get_sample_value(f"onward_feedback_{name}") or 0


@pytest.mark.parametrize(("hold", "let_go"), [(pin, unpin), (alarm, close_alarm)])
def test_what_arrives_while_releases_are_held_is_not_timed(
    tmp_path: Path, hold: Callable[[SqlStore], None], let_go: Callable[[SqlStore], None]
) -> None:
    clock = ManualClock(made_events.NOW)
    started = clock.now()
    with (
        closing(open_ready(tmp_path / "store.db")) as store,
        closing(SqliteEventLog(tmp_path / "log.db", 1, 0.01)) as log,
    ):
        observer = PolicyObserver(log, timer := LoopTimer(since=started), store, "local", clock)
        timed, held = counted("to_served_seconds_count"), counted("held_total")
        hold(store)
        clock.advance(60)
        observer.tick()
        let_go(store)
        clock.advance(5)
        observer.tick()
        arrivals = tuple(started + timedelta(seconds=after) for after in (30, 61))
        timer.published(made_events.policy(base_ref(2), parent=base_ref(1), outcome_arrivals=arrivals))
        timer.first_token(base_ref(2), clock.now())
        assert (counted("to_served_seconds_count") - timed, counted("held_total") - held) == (1, 1)


@pytest.mark.parametrize("state", ["candidate", "canary"])
def test_what_waits_while_an_operator_holds_a_version_is_not_timed(tmp_path: Path, state: ReleaseState) -> None:
    """Others wait only behind a canary: a held candidate lets them pass."""
    clock = ManualClock(made_events.NOW)
    started = clock.now()
    with (
        closing(open_ready(tmp_path / "store.db")) as store,
        closing(SqliteEventLog(tmp_path / "log.db", 1, 0.01)) as log,
    ):
        observer = PolicyObserver(log, timer := LoopTimer(since=started), store, "local", clock)
        timed, held = counted("to_served_seconds_count"), counted("held_total")
        arrival = (started + timedelta(seconds=1),)
        made = [made_events.policy(base_ref(2 + at), parent=base_ref(1), outcome_arrivals=arrival) for at in range(2)]
        with store.work() as work:
            work.policies.allocate_anchor(clock.now())
            for policy in made:
                work.policies.allocate(clock.now())
                work.policies.put(policy)
            work.releases.put(
                Release(version=base_ref(2), cluster="local", state=state, why="tried", by="gate", at=clock.now())
            )
            work.fleet.put_switches("local", Switches(held=(base_ref(2),)))
        for policy in made:
            timer.published(policy)
        clock.advance(60)
        observer.tick()
        unpin(store)
        observer.tick()
        for policy in made:
            timer.first_token(policy.version, clock.now())
        counts = (1, 1) if state == "candidate" else (0, 2)
        assert (counted("to_served_seconds_count") - timed, counted("held_total") - held) == counts
