"""The store's contract for replicas, targets, experiments, switches and orders."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import msgspec

from core.ids import BASE, PolicyName, PolicyRef, Version, base_ref
from core.operations.fleet import Experiment, Order, ReplicaStatus, ReplicaTarget, Switches
from core.ports import Store

HERE, ELSEWHERE = "local", "elsewhere"
NOW = datetime(2026, 3, 1, 12, 30, 0, 123456, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)


def status(name: str, cluster: str = HERE) -> ReplicaStatus:
    return ReplicaStatus(
        name=name,
        cluster=cluster,
        url=f"http://{name}",
        state="swapping",
        detail="of 2",
        serving=base_ref(2),
        pinnable=(base_ref(2), base_ref(3)),
        holds_many=True,
        figures={base_ref(3): {"kl": 0.25}},
        refused={base_ref(4): "corrupt"},
        heartbeat_at=NOW,
    )


def target(name: str) -> ReplicaTarget:
    return ReplicaTarget(
        name=name, lane="canary", serve=base_ref(2), hold=(base_ref(2), base_ref(3)), avoid=(base_ref(4),)
    )


def experiment(name: str, started_at: datetime = NOW, cluster: str = HERE) -> Experiment:
    return Experiment(
        experiment_id=name,
        cluster=cluster,
        canary=base_ref(3),
        control=base_ref(2),
        share=0.1,
        salt="s",
        started_at=started_at,
        rings=("staff", "early"),
    )


# ------------------------------------------------------------------------------------------------ replicas


def test_a_replicas_word_replaces_its_last_and_comes_back_whole_by_name(store: Store) -> None:
    with store.work() as work:
        for each in (status("b"), status("a"), status("c", ELSEWHERE)):
            work.fleet.put_status(each)
    again = msgspec.structs.replace(status("b"), state="failed", serving=None, heartbeat_at=LATER)
    with store.work() as work:
        work.fleet.put_status(again)
    with store.look() as view:
        assert view.fleet.statuses(HERE) == [status("a"), again]
        assert view.fleet.statuses(ELSEWHERE) == [status("c", ELSEWHERE)]


def test_a_replica_has_a_word_and_a_target_for_each_policy_and_one_heart(store: Store) -> None:
    acme = PolicyName("acme")
    version = PolicyRef(acme, Version(2))
    theirs = msgspec.structs.replace(status("a"), policy=acme, serving=version)
    wanted = msgspec.structs.replace(target("a"), serve=version, hold=(version,))
    with store.work() as work:
        for each in (status("a"), theirs):
            work.fleet.put_status(each)
        for each_target in (target("a"), wanted):
            work.fleet.put_target(HERE, each_target)
        before = work.fleet.signs(HERE, NOW, (BASE, acme))
        assert work.fleet.beat("a", LATER) == 2
        assert work.fleet.beat("nobody", LATER) == 0
    with store.look() as view:
        assert view.fleet.statuses(HERE) == [msgspec.structs.replace(status("a"), heartbeat_at=LATER)]
        assert view.fleet.statuses(HERE, acme) == [msgspec.structs.replace(theirs, heartbeat_at=LATER)]
        assert view.fleet.targets_of("a") == {BASE: target("a"), acme: wanted}
        assert view.fleet.target("a", acme) == wanted
        assert view.fleet.signs(HERE, NOW, (BASE, acme)) == before, "a heart that beats is no news"
        late = view.fleet.signs(HERE, LATER + timedelta(seconds=1), (BASE, acme))
        assert late[acme] != before[acme], "one that stopped is"
    with store.work() as work:
        work.orders.give(HERE, "pin", version, "a test", "ada", NOW)
        after = work.fleet.signs(HERE, NOW, (BASE, acme))
        assert after[acme] != before[acme]
        assert after[BASE] == before[BASE], "an order about another policy is none of its affair"
        work.fleet.forget("a")
        assert work.fleet.statuses(HERE, acme) == []
        assert work.fleet.targets_of("a") == {}


def test_what_is_wanted_of_a_replica_is_found_by_its_name(store: Store) -> None:
    with store.work() as work:
        assert work.fleet.target("a") is None
        work.fleet.put_target(HERE, target("b"))
        work.fleet.put_target(HERE, target("a"))
        work.fleet.put_target(ELSEWHERE, target("c"))
        changed = msgspec.structs.replace(target("a"), lane="live")
        work.fleet.put_target(HERE, changed)
    with store.look() as view:
        assert view.fleet.target("a") == changed
        assert list(view.fleet.targets(HERE).items()) == [("a", changed), ("b", target("b"))]


def test_a_replica_is_forgotten_with_what_was_wanted_of_it(store: Store) -> None:
    with store.work() as work:
        for name in "ab":
            work.fleet.put_status(status(name))
            work.fleet.put_target(HERE, target(name))
        work.fleet.forget("a")
        work.fleet.forget("nobody")
    with store.look() as view:
        assert view.fleet.statuses(HERE) == [status("b")]
        assert list(view.fleet.targets(HERE)) == ["b"]


def test_hosts_may_speak_at_once(store: Store) -> None:
    """Two hosts of one name are an operator's mistake: the last write stands, and neither fails."""

    def speak(name: str) -> None:
        for _ in range(10):
            with store.work() as work:
                work.fleet.put_status(status(name))

    with ThreadPoolExecutor() as threads:
        list(threads.map(speak, "aab"))
    with store.look() as view:
        assert view.fleet.statuses(HERE) == [status("a"), status("b")]


# ------------------------------------------------------------------------------------------------ experiments


def test_an_experiment_runs_until_it_is_ended(store: Store) -> None:
    with store.work() as work:
        assert work.experiments.running(HERE) is None
        work.experiments.put(experiment("x"))
    with store.look() as view:
        assert view.experiments.running(HERE) == experiment("x")
        assert view.experiments.running(ELSEWHERE) is None
    ended = msgspec.structs.replace(
        experiment("x"), ended_at=LATER, verdict="promote", why="better", figures={"effect": 0.5}
    )
    with store.work() as work:
        work.experiments.put(ended)
    with store.look() as view:
        assert view.experiments.running(HERE) is None
        assert view.experiments.newest(HERE, 10) == [ended]


def test_experiments_are_listed_the_newest_first(store: Store) -> None:
    made = [experiment(str(hours), NOW + timedelta(hours=hours)) for hours in (1, 3, 2)]
    with store.work() as work:
        for each in (*made, experiment("there", LATER, ELSEWHERE)):
            work.experiments.put(each)
    with store.look() as view:
        assert [each.experiment_id for each in view.experiments.newest(HERE, 2)] == ["3", "2"]


# ------------------------------------------------------------------------------------------------ an operator's words


def test_switches_are_off_until_they_are_set(store: Store) -> None:
    with store.work() as work:
        assert work.fleet.switches(HERE) == Switches()
        work.fleet.put_switches(HERE, Switches(pinned=base_ref(2)))
        work.fleet.put_switches(HERE, Switches(held=(base_ref(3),)))
    with store.look() as view:
        assert view.fleet.switches(HERE) == Switches(held=(base_ref(3),))
        assert view.fleet.switches(ELSEWHERE) == Switches()


def test_orders_are_open_in_the_order_in_which_they_were_given_until_they_are_done(store: Store) -> None:
    with store.work() as work:
        first = work.orders.give(HERE, "promote", base_ref(2), "good", "ada", NOW)
        second = work.orders.give(HERE, "rollback", base_ref(3), "bad", "guard", NOW)
        work.orders.give(ELSEWHERE, "pin", base_ref(2), "", "ada", NOW)
    with store.look() as view:
        assert view.orders.unfinished(HERE) == [
            Order(order_id=first, kind="promote", version=base_ref(2), why="good", by="ada"),
            Order(order_id=second, kind="rollback", version=base_ref(3), why="bad", by="guard"),
        ]
        assert view.orders.get(10**6) is None
        assert [order.order_id for order in view.orders.newest(HERE, 1)] == [second]
    with store.work() as work:
        work.orders.finish(first, LATER, "refused", "its digest is wrong")
    with store.look() as view:
        assert [order.order_id for order in view.orders.unfinished(HERE)] == [second]
        done = view.orders.get(first)
    assert done is not None
    assert (done.done_at, done.error_code, done.error) == (LATER, "refused", "its digest is wrong")


def test_what_came_of_an_order_is_said_once(store: Store) -> None:
    """Finishing an order again, after a crash, changes nothing."""
    with store.work() as work:
        order = work.orders.give(HERE, "hold", base_ref(2), "", "ada", NOW)
        work.orders.finish(order, NOW)
        work.orders.finish(order, LATER, "refused", "too late")
        done = work.orders.get(order)
    assert done is not None
    assert (done.done_at, done.error_code, done.error) == (NOW, None, None)
