"""The store's contract for alarms, on each database."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import made_events
import msgspec

from core.ids import Namespace
from core.operations.alarms import Opening, StoredAlarm
from core.ports import Store

NOW = datetime(2026, 3, 1, 12, 30, 0, 123456, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)
LAST = NOW + timedelta(hours=1)


def opening(alarm_id: str, **fields: Any) -> Opening:
    return made_events.opening(alarm_id, **{"workload": "write", "window_start": NOW - timedelta(minutes=5)} | fields)


def put(store: Store, *openings: Opening) -> list[bool]:
    with store.work() as work:
        return [work.alarms.open(each) for each in openings]


def listed(store: Store, **fields: Any) -> list[str]:
    wanted: dict[str, Any] = {"namespace": None, "before": None, "limit": 10, "only_open": False} | fields
    with store.look() as view:
        return [alarm.alarm_id for alarm in view.alarms.newest(**wanted)]


def held_by(store: Store) -> list[str]:
    with store.look() as view:
        return [alarm.alarm_id for alarm in view.alarms.holding_releases()]


def close(store: Store, name: str, at: datetime = LATER) -> None:
    with store.work() as work:
        work.alarms.close(name, at)


def acknowledge(store: Store, name: str, note: str | None = None, at: datetime = LATER) -> StoredAlarm | None:
    with store.work() as work:
        return work.alarms.acknowledge(name, "ops", note, at)


def tell(store: Store) -> list[tuple[str, str]]:
    with store.work() as work:
        waiting = work.alarms.untold(100)
        work.alarms.mark_told(waiting)
    return [(alarm.alarm_id, alarm.event().state) for alarm in waiting]


def test_a_monitor_has_one_open_alarm_in_a_workload(store: Store) -> None:
    others = opening("b", workload="fix"), opening("c", namespace=Namespace("ada")), opening("d", monitor="silence")
    assert put(store, opening("a"), opening("again"), *others) == [True, False, True, True, True]
    assert put(store, opening("again")) == [False]
    close(store, "a")
    assert put(store, opening("again")) == [True]
    assert listed(store) == ["again", "d", "c", "b", "a"]
    assert listed(store, only_open=True) == ["again", "d", "c", "b"]


def test_two_stages_that_see_the_same_open_one(store: Store) -> None:
    with ThreadPoolExecutor(4) as threads:
        opened = list(threads.map(lambda name: put(store, opening(name)), "abcdefgh"))
    assert sum(map(sum, opened)) == 1
    assert len(listed(store)) == 1


def test_an_alarm_comes_back_whole(store: Store) -> None:
    put(store, opening("a"))
    with store.look() as view:
        (alarm,) = view.alarms.that_are_open()
        assert view.alarms.get("a") == alarm
        assert view.alarms.get("b") is None
    assert (alarm.opening, alarm.state, alarm.sequence) == (opening("a"), "opened", 1)
    acknowledged = acknowledge(store, "a", "looked at it")
    assert acknowledged == msgspec.structs.replace(
        alarm, acknowledged_at=LATER, acknowledged_by="ops", note="looked at it"
    )
    close(store, "a", LAST)
    with store.look() as view:
        closed = view.alarms.get("a")
    assert closed == msgspec.structs.replace(acknowledged, closed_at=LAST)
    assert (closed.state, closed.event().at) == ("closed", LAST)


def test_what_an_alarm_is_of_may_go_on(store: Store) -> None:
    """The alarm's other fields stay the same, and nobody is notified."""
    put(store, opening("a"), opening("b", workload="fix"))
    tell(store)
    acknowledge(store, "a")
    with store.work() as work:
        before = {alarm.alarm_id: alarm for alarm in work.alarms.that_are_open()}
        work.alarms.prolong(before["a"], LAST)
    with store.look() as view:
        after = {alarm.alarm_id: alarm for alarm in view.alarms.that_are_open()}
    longer = msgspec.structs.replace(before["a"].opening, window_end=LAST)
    assert after == before | {"a": msgspec.structs.replace(before["a"], opening=longer)}
    assert tell(store) == [("a", "acknowledged")]


def test_the_first_word_stands(store: Store) -> None:
    put(store, opening("a"), opening("b", workload="fix"))
    first = acknowledge(store, "a", "mine")
    assert acknowledge(store, "a", "no, mine", LAST) == first
    close(store, "b")
    close(store, "b", LAST)
    closed = acknowledge(store, "b", at=LAST)
    assert closed is not None
    assert (closed.closed_at, closed.acknowledged_at) == (LATER, None)
    assert acknowledge(store, "nobody's") is None


def test_releases_wait_for_a_critical_one_that_nobody_acknowledged(store: Store) -> None:
    warning = opening("w", monitor="effort", severity="warning")
    put(store, opening("a"), opening("b", workload="fix"), opening("n", monitor="silence", holds=()), warning)
    assert held_by(store) == ["a", "b"]
    acknowledge(store, "a")
    assert held_by(store) == ["b"]
    close(store, "b")
    assert held_by(store) == []


def test_an_acknowledgement_is_taken_back_while_the_alarm_is_open(store: Store) -> None:
    """The log is told that it is open, and releases wait again."""
    put(store, opening("a"))
    with store.look() as view:
        opened = view.alarms.get("a")
    acknowledge(store, "a", "mine")
    assert tell(store) == [("a", "acknowledged")]
    with store.work() as work:
        assert work.alarms.reopen("a") == opened
        assert work.alarms.reopen("nobody's") is None
    assert held_by(store) == ["a"]
    assert tell(store) == [("a", "opened")]
    with store.work() as work:
        assert work.alarms.reopen("a") == opened
    assert tell(store) == []
    acknowledge(store, "a")
    close(store, "a")
    with store.work() as work:
        closed = work.alarms.reopen("a")
    assert closed is not None
    assert (closed.state, closed.acknowledged_by) == ("closed", "ops")


def test_a_page_goes_on_where_the_last_ended(store: Store) -> None:
    put(store, *(opening(f"a{n}", workload=f"w{n}") for n in range(5)))
    put(store, opening("theirs", namespace=Namespace("ada")))
    assert listed(store, limit=2) == ["theirs", "a4"]
    assert listed(store, limit=2, before=5) == ["a3", "a2"]
    assert listed(store, namespace=Namespace("ada")) == ["theirs"]
    assert listed(store, namespace=Namespace("default"), limit=1) == ["a4"]


def test_each_change_is_told_until_it_is_known(store: Store) -> None:
    put(store, opening("a"), opening("b", workload="fix"))
    assert tell(store) == [("a", "opened"), ("b", "opened")]
    assert tell(store) == []
    acknowledge(store, "a")
    acknowledge(store, "a", at=LAST)
    close(store, "b")
    assert tell(store) == [("a", "acknowledged"), ("b", "closed")]
    close(store, "b", LAST)
    assert tell(store) == []


def test_what_changes_while_it_is_told_is_told_again(store: Store) -> None:
    put(store, opening("a"))
    with store.look() as view:
        waiting = view.alarms.untold(10)
    acknowledge(store, "a")
    with store.work() as work:
        work.alarms.mark_told(waiting)
    assert tell(store) == [("a", "acknowledged")]


def test_references_replace_what_was_there(store: Store) -> None:
    ada = Namespace("ada")
    with store.work() as work:
        work.references.put([(ada, "write", b"1"), (ada, "fix", b"2")])
        work.references.put([(ada, "fix", b"3")])
        work.references.put([])
    with store.look() as view:
        assert view.references.get(ada, "write") == b"1"
        assert view.references.get(ada, "fix") == b"3"
        assert view.references.get(Namespace("bob"), "fix") is None


# ------------------------------------------------------------------------------------------ who was told


def due(store: Store, target: str = "ops", limit: int = 10) -> list[str]:
    with store.look() as view:
        return [alert.key for alert in view.told.due(target, limit)]


def settle(store: Store, *keys: str, target: str = "ops") -> list[bool]:
    with store.work() as work:
        alerts = {alert.key: alert for alert in work.told.due(target, 10)}
        return [work.told.settle(target, alerts[key], "delivered", LATER) for key in keys]


def test_a_target_is_told_each_change_once_and_in_order(store: Store) -> None:
    with store.work() as work:
        work.told.know("ops", NOW)
    put(store, opening("a"), opening("b", workload="fix"))
    close(store, "a")
    assert due(store) == ["a.opened", "a.closed", "b.opened"]
    assert due(store, limit=1) == ["a.opened", "a.closed"]
    assert settle(store, "a.opened", "b.opened") == [True, True]
    assert due(store) == ["a.closed"]
    with store.work() as work:
        (alert,) = work.told.due("ops", 10)
        assert work.told.result("ops", alert) is None
        assert [work.told.settle("ops", alert, result, LATER) for result in ("refused", "delivered")] == [True, False]
        assert work.told.result("ops", alert) == "refused"
    assert due(store) == []
    close(store, "b")
    assert due(store) == ["b.closed"]


def test_a_new_target_hears_of_what_is_open_or_closes_later(store: Store) -> None:
    put(store, opening("before"), opening("open", workload="fix"))
    close(store, "before", NOW)
    for moment in (LATER, LAST):  # known once
        with store.work() as work:
            work.told.know("ops", moment)
    assert due(store) == ["open.opened"]
    close(store, "open", LATER)
    assert due(store) == ["open.opened", "open.closed"]
    assert due(store, "unknown") == []
