"""The choice of a replica for a request, and the fleet's state read from the store."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fleet_table import LIVE, TIMEOUT_S, FleetTable
from hypothesis import given
from hypothesis import strategies as st
from stepping import step

from core import telemetry
from core.errors import StoreUnavailable
from core.ids import PolicyRef, base_ref
from core.operations.fleet import Lane
from serving.fleet.router import choose
from serving.fleet.snapshot import FleetSnapshot, Replica
from serving.fleet.view import FleetView

CANARY = base_ref(4)


def replica(name: str, **changes: object) -> Replica:
    plain = Replica(
        name=name, url=f"http://{name}", lane="live", state="ready", serving=LIVE, pinnable=frozenset({LIVE})
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def snapshot(*replicas: Replica) -> FleetSnapshot:
    return FleetSnapshot(live=LIVE, replicas=replicas)


def names(chosen: list[Replica]) -> list[str]:
    return [each.name for each in chosen]


members = st.sets(st.sampled_from([f"engine-{i}" for i in range(8)]), min_size=1).map(sorted)
sessions = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=20, unique=True)


# ------------------------------------------------------------------------------------------------ sessions


@given(members, sessions, st.randoms(use_true_random=False))
def test_a_session_stays_where_it_is_while_the_fleet_does(them: list[str], keys: list[str], random: object) -> None:
    """The order of the replicas and their light load do not matter."""
    for key in keys:
        first = choose(snapshot(*map(replica, them)), None, key, {})
        shuffled = sorted(them, key=lambda _: random.random())  # type: ignore[attr-defined]
        load = {name: random.randrange(4) for name in them}  # type: ignore[attr-defined]
        assert names(choose(snapshot(*map(replica, shuffled)), None, key, load)) == names(first)
        assert sorted(names(first)) == them


@given(members, sessions, st.data())
def test_a_replica_that_leaves_moves_its_own_sessions_alone(
    them: list[str], keys: list[str], data: st.DataObject
) -> None:
    gone = data.draw(st.sampled_from(them))
    for key in keys:
        before = names(choose(snapshot(*map(replica, them)), None, key, {}))
        after = names(choose(snapshot(*(replica(name) for name in them if name != gone)), None, key, {}))
        assert after == [name for name in before if name != gone]


def test_sessions_are_spread() -> None:
    fleet_of_four = snapshot(*(replica(f"engine-{i}") for i in range(4)))
    found = Counter(choose(fleet_of_four, None, f"session-{i}", {})[0].name for i in range(2000))
    assert all(400 < found[f"engine-{i}"] < 600 for i in range(4)), found


def test_without_a_session_the_least_busy_answers() -> None:
    three = snapshot(*map(replica, "abc"))
    assert names(choose(three, None, None, {"a": 2, "b": 1, "c": 0})) == ["c", "b", "a"]
    assert names(choose(three, None, None, {})) == ["a", "b", "c"]


# ------------------------------------------------------------------------------------------------ load


@given(members, st.lists(st.sampled_from(["one", "two", None]), min_size=1, max_size=200))
def test_no_replica_is_much_busier_than_the_rest(them: list[str], keys: list[str | None]) -> None:
    """Few sessions and no answers at all give each replica at most its share and a quarter, plus the slack."""
    load = Counter[str]()
    for under_way, key in enumerate(keys):
        load[choose(snapshot(*map(replica, them)), None, key, load)[0].name] += 1
        assert max(load.values()) <= 1.25 * (under_way + 1) / len(them) + 1 + 4


def test_what_is_above_its_share_goes_to_the_sessions_next() -> None:
    three = snapshot(*map(replica, "abc"))
    first, second, third = names(choose(three, None, "session", {}))
    assert names(choose(three, None, "session", {first: 8}))[0] == second
    assert names(choose(three, None, "session", {first: 5}))[0] == first
    assert names(choose(three, None, "session", {first: 40, second: 40}))[0] == third


def test_a_busy_suspect_is_behind_a_busy_replica() -> None:
    three = snapshot(*map(replica, "abc"))
    first, second, third = names(choose(three, None, "session", {}))
    assert names(choose(three, None, "session", {second: 50}, {first})) == [third, second, first]
    assert names(choose(three, None, "session", {}, {first, second, third})) == [first, second, third]


@given(members, st.data())
def test_suspects_are_asked_last_and_yet_are_asked(them: list[str], data: st.DataObject) -> None:
    suspects = data.draw(st.sets(st.sampled_from(them)))
    load = data.draw(st.dictionaries(st.sampled_from(them), st.integers(0, 40)))
    found = names(choose(snapshot(*map(replica, them)), None, data.draw(st.none() | st.text()), load, suspects))
    assert sorted(found) == them
    assert set(found[: len(them) - len(suspects)]) == set(them) - suspects


# ------------------------------------------------------------------------------------------------ who may answer


@pytest.mark.parametrize(
    ("changes", "is_asked"),
    [
        ({}, True),
        ({"state": "swapping"}, True),
        ({"state": "starting"}, False),
        ({"state": "draining"}, False),
        ({"state": "failed"}, False),
        ({"serving": None}, False),
        ({"avoid": frozenset({LIVE})}, False),
        ({"avoid": frozenset({CANARY})}, True),
    ],
)
@pytest.mark.parametrize("version", [None, LIVE])
def test_who_cannot_or_shall_not_serve_gets_nothing(
    changes: dict[str, object], is_asked: bool, version: PolicyRef | None
) -> None:
    found = choose(snapshot(replica("a", **changes), replica("b")), version, "session", {})
    assert sorted(names(found)) == (["a", "b"] if is_asked else ["b"])


def test_what_is_live_is_answered_by_the_live_lane_alone() -> None:
    lanes: list[Lane] = ["live", "canary", "holdback"]
    assert names(choose(snapshot(*(replica(lane, lane=lane) for lane in lanes)), None, "session", {})) == ["live"]


def test_a_version_is_answered_in_any_lane_by_those_who_have_it() -> None:
    them = snapshot(
        replica("live"),
        replica("canary", lane="canary", serving=CANARY, pinnable=frozenset({CANARY})),
        replica("many", pinnable=frozenset({LIVE, CANARY})),
        replica("leaving", state="draining", pinnable=frozenset({CANARY})),
    )
    assert sorted(names(choose(them, CANARY, "session", {}))) == ["canary", "many"]
    assert choose(them, base_ref(9), "session", {}) == []


def test_of_an_empty_fleet_nobody_answers() -> None:
    assert choose(FleetSnapshot(), None, "session", {}) == []


# ------------------------------------------------------------------------------------------------ the view


@pytest.fixture
def table(tmp_path: Path) -> Iterator[FleetTable]:
    table = FleetTable(tmp_path / "store.db")
    yield table
    table.store.close()


def test_before_anything_is_written_there_is_nobody(table: FleetTable) -> None:
    assert table.view.snapshot == FleetSnapshot()
    assert not table.view.refresh()


def test_what_hosts_and_controller_write_is_what_the_router_knows(table: FleetTable) -> None:
    table.beat("b")
    table.beat("a")
    table.beat("elsewhere", cluster="another")
    table.want("b", "canary", CANARY, avoid=(CANARY,))
    table.release(LIVE)
    assert table.view.refresh()
    assert table.view.snapshot == snapshot(replica("a"), replica("b", lane="canary", avoid=frozenset({CANARY})))
    assert not table.view.refresh(), "nothing is new"


def test_a_replica_whose_heart_stopped_is_gone_and_may_come_back(table: FleetTable) -> None:
    table.beat("a")
    table.beat("b", "failed")
    table.clock.advance(TIMEOUT_S)
    table.beat("b", "failed")
    table.view.refresh()
    assert table.seen() == ["a", "b"]
    table.clock.advance(0.001)
    assert table.view.refresh()
    assert table.seen() == ["b"]
    assert [figure(state) for state in ("ready", "failed", "gone")] == [0, 1, 1]
    table.beat("a")
    table.view.refresh()
    assert table.seen() == ["a", "b"]
    assert [figure(state) for state in ("ready", "failed", "gone")] == [1, 1, 0]


def figure(state: str) -> float:
    return telemetry.REGISTRY.get_sample_value("onward_replicas", {"state": state}) or 0


def test_while_the_store_is_away_the_last_view_stands(table: FleetTable) -> None:
    table.beat("a")
    table.view.refresh()
    looks: list[list[str]] = []
    table.view.on_look = lambda: looks.append(table.seen())
    with table.store.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE replicas RENAME TO away")
    with pytest.raises(StoreUnavailable):
        table.view.refresh()
    assert step(table.view, 0.01) == 0
    assert (table.seen(), looks) == (["a"], [])
    with table.store.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE away RENAME TO replicas")
    table.beat("b")
    step(table.view)
    assert looks == [["a", "b"]]


def test_who_knows_of_something_new_need_not_wait(tmp_path: Path) -> None:
    table = FleetTable(tmp_path / "store.db")
    slow = FleetView(table.store, "local", table.clock, TIMEOUT_S, period_s=3600)
    table.beat("a")
    step(slow)
    table.beat("b")
    slow.wake()
    step(slow, 3600)
    assert [replica.name for replica in slow.snapshot.replicas] == ["a", "b"]
    table.store.close()
