"""The rows of an organisation's policy go with it, on each database, and nobody else's."""

from made_events import NOW, opening, policy

from core.events import Release
from core.ids import BASE, Namespace, PolicyName
from core.operations.fleet import ReplicaStatus, ReplicaTarget, Switches
from core.ports import Store

ACME, REST = PolicyName("acme"), PolicyName("rest")


def test_all_of_one_policy_goes_and_its_number_begins_anew(store: Store) -> None:
    for name in (ACME, REST, BASE):
        with store.work() as work:
            version = work.policies.allocate(NOW, name)
            work.policies.put(policy(version))
            work.releases.put(Release(version=version, cluster="local", state="live", why="", by="gate", at=NOW))
            work.orders.give("local", "pin", version, "a test", "ops", NOW)
            work.fleet.put_switches("local", Switches(pinned=version), name)
            work.fleet.put_target("local", ReplicaTarget(name="one", lane="live", serve=version, hold=(version,)))
            status = ReplicaStatus(
                name="one", cluster="local", policy=name, url="", state="ready", serving=version, heartbeat_at=NOW
            )
            work.fleet.put_status(status)
            work.alarms.open(opening(f"of-{name}", namespace=Namespace(f"{name}-eu"), workload="chat"))
    with store.work() as work:
        gone = work.policy_rows.delete_all(ACME, [Namespace("acme-eu")])
    kinds = ("versions", "releases", "orders", "switches", "targets", "statuses", "alarms")
    assert gone == dict.fromkeys(kinds, 1)
    with store.look() as view:
        assert view.policies.names() == [BASE, REST]
        assert [str(release.version) for _, release in view.releases.after(0, 10)] == ["rest@1", "1"]
        assert {each.opening.namespace for each in view.alarms.that_are_open()} == {"rest-eu", "base-eu"}
        assert set(view.fleet.targets_of("one")) == {BASE, REST}
        for name in (BASE, REST):
            assert len(view.orders.newest("local", 10, name)) == len(view.fleet.statuses("local", name)) == 1
            assert view.fleet.switches("local", name).pinned
    with store.work() as work:
        assert work.policy_rows.delete_all(ACME, [Namespace("acme-eu")]) == {}
