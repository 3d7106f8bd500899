"""What the store promises of replicas, targets, experiments, switches and orders."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from stores import KINDS, database

from core.ids import Version
from core.operations.fleet import Experiment, Order, ReplicaStatus, ReplicaTarget, Switches
from core.ports import Store
from core.store import fleet

HERE, ELSEWHERE = "local", "elsewhere"
NOW = datetime(2026, 3, 1, 12, 30, 0, 123456, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with database(request.param, tmp_path) as home:
        store = home.open()
        yield store
        store.close()


def status(name: str, cluster: str = HERE) -> ReplicaStatus:
    return ReplicaStatus(
        name=name,
        cluster=cluster,
        url=f"http://{name}",
        state="swapping",
        detail="of 2",
        serving=Version(2),
        pinnable=(Version(2), Version(3)),
        holds_many=True,
        figures={Version(3): {"kl": 0.25}},
        refused={Version(4): "corrupt"},
        heartbeat_at=NOW,
    )


def target(name: str) -> ReplicaTarget:
    return ReplicaTarget(name=name, lane="canary", serve=Version(2), hold=(Version(2), Version(3)), avoid=(Version(4),))


def experiment(name: str, started_at: datetime = NOW, cluster: str = HERE) -> Experiment:
    return Experiment(
        experiment_id=name,
        cluster=cluster,
        canary=Version(3),
        control=Version(2),
        share=0.1,
        salt="s",
        started_at=started_at,
    )


# ------------------------------------------------------------------------------------------------ replicas


def test_a_replicas_word_replaces_its_last_and_comes_back_whole_by_name(store: Store) -> None:
    with store.begin() as connection:
        for each in (status("b"), status("a"), status("c", ELSEWHERE)):
            fleet.put_status(connection, each)
    again = msgspec.structs.replace(status("b"), state="failed", serving=None, heartbeat_at=LATER)
    with store.begin() as connection:
        fleet.put_status(connection, again)
    with store.read() as connection:
        assert fleet.list_statuses(connection, HERE) == [status("a"), again]
        assert fleet.list_statuses(connection, ELSEWHERE) == [status("c", ELSEWHERE)]


def test_what_is_wanted_of_a_replica_is_found_by_its_name(store: Store) -> None:
    with store.begin() as connection:
        assert fleet.get_target(connection, "a") is None
        fleet.put_target(connection, HERE, target("b"))
        fleet.put_target(connection, HERE, target("a"))
        fleet.put_target(connection, ELSEWHERE, target("c"))
        changed = msgspec.structs.replace(target("a"), lane="live")
        fleet.put_target(connection, HERE, changed)
    with store.read() as connection:
        assert fleet.get_target(connection, "a") == changed
        assert list(fleet.list_targets(connection, HERE).items()) == [("a", changed), ("b", target("b"))]


def test_a_replica_is_forgotten_with_what_was_wanted_of_it(store: Store) -> None:
    with store.begin() as connection:
        for name in "ab":
            fleet.put_status(connection, status(name))
            fleet.put_target(connection, HERE, target(name))
        fleet.forget_replica(connection, "a")
        fleet.forget_replica(connection, "nobody")
    with store.read() as connection:
        assert fleet.list_statuses(connection, HERE) == [status("b")]
        assert list(fleet.list_targets(connection, HERE)) == ["b"]


def test_hosts_may_speak_at_once(store: Store) -> None:
    """Two of one name are a mistake of the operator's: the last word stands, and nobody fails."""

    def speak(name: str) -> None:
        for _ in range(10):
            with store.begin() as connection:
                fleet.put_status(connection, status(name))

    with ThreadPoolExecutor() as threads:
        list(threads.map(speak, "aab"))
    with store.read() as connection:
        assert fleet.list_statuses(connection, HERE) == [status("a"), status("b")]


# ------------------------------------------------------------------------------------------------ experiments


def test_an_experiment_runs_until_it_is_ended(store: Store) -> None:
    with store.begin() as connection:
        assert fleet.running_experiment(connection, HERE) is None
        fleet.put_experiment(connection, experiment("x"))
    with store.read() as connection:
        assert fleet.running_experiment(connection, HERE) == experiment("x")
        assert fleet.running_experiment(connection, ELSEWHERE) is None
    ended = msgspec.structs.replace(
        experiment("x"), ended_at=LATER, verdict="promote", why="better", figures={"effect": 0.5}
    )
    with store.begin() as connection:
        fleet.put_experiment(connection, ended)
    with store.read() as connection:
        assert fleet.running_experiment(connection, HERE) is None
        assert fleet.list_experiments(connection, HERE, 10) == [ended]


def test_experiments_are_listed_the_newest_first(store: Store) -> None:
    made = [experiment(str(hours), NOW + timedelta(hours=hours)) for hours in (1, 3, 2)]
    with store.begin() as connection:
        for each in (*made, experiment("there", LATER, ELSEWHERE)):
            fleet.put_experiment(connection, each)
    with store.read() as connection:
        assert [each.experiment_id for each in fleet.list_experiments(connection, HERE, 2)] == ["3", "2"]


# ------------------------------------------------------------------------------------------------ an operator's words


def test_switches_are_off_until_they_are_set(store: Store) -> None:
    with store.begin() as connection:
        assert fleet.get_switches(connection, HERE) == Switches()
        fleet.put_switches(connection, HERE, Switches(pinned=Version(2)))
        fleet.put_switches(connection, HERE, Switches(held=(Version(3),)))
    with store.read() as connection:
        assert fleet.get_switches(connection, HERE) == Switches(held=(Version(3),))
        assert fleet.get_switches(connection, ELSEWHERE) == Switches()


def test_orders_are_open_in_the_order_in_which_they_were_given_until_they_are_done(store: Store) -> None:
    with store.begin() as connection:
        first = fleet.give_order(connection, HERE, "promote", Version(2), "good", "ada", NOW)
        second = fleet.give_order(connection, HERE, "rollback", Version(3), "bad", "guard", NOW)
        fleet.give_order(connection, ELSEWHERE, "pin", Version(2), "", "ada", NOW)
    with store.read() as connection:
        assert fleet.open_orders(connection, HERE) == [
            Order(order_id=first, kind="promote", version=Version(2), why="good", by="ada"),
            Order(order_id=second, kind="rollback", version=Version(3), why="bad", by="guard"),
        ]
        assert fleet.get_order(connection, 10**6) is None
        assert [order.order_id for order in fleet.latest_orders(connection, HERE, 1)] == [second]
    with store.begin() as connection:
        fleet.finish_order(connection, first, LATER, "refused", "its digest is wrong")
    with store.read() as connection:
        assert [order.order_id for order in fleet.open_orders(connection, HERE)] == [second]
        done = fleet.get_order(connection, first)
    assert done is not None
    assert (done.done_at, done.error_code, done.error) == (LATER, "refused", "its digest is wrong")


def test_what_came_of_an_order_is_said_once(store: Store) -> None:
    """Who finishes it again, after a crash, changes nothing."""
    with store.begin() as connection:
        order = fleet.give_order(connection, HERE, "hold", Version(2), "", "ada", NOW)
        fleet.finish_order(connection, order, NOW)
        fleet.finish_order(connection, order, LATER, "refused", "too late")
        done = fleet.get_order(connection, order)
    assert done is not None
    assert (done.done_at, done.error_code, done.error) == (NOW, None, None)
