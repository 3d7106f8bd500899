"""The rows of an organisation's policy, which go with it: versions, releases, canaries, orders, targets, alarms."""

from collections.abc import Collection

from sqlalchemy import delete

from core.ids import Namespace, PolicyName
from core.store.database import tables
from core.store.database.repository import Repository


class PolicyRows(Repository):
    """The rows, deleted by the eraser once no process works for the policy any more."""

    def delete_all(self, policy: PolicyName, namespaces: Collection[Namespace]) -> dict[str, int]:
        """Delete what the store knows of a policy, and the alarms about its namespaces; return how many rows went."""
        going = {
            "versions": delete(tables.policies).where(tables.policies.c.policy == policy),
            "releases": delete(tables.releases).where(tables.releases.c.policy == policy),
            "experiments": delete(tables.experiments).where(tables.experiments.c.policy == policy),
            "orders": delete(tables.orders).where(tables.orders.c.policy == policy),
            "switches": delete(tables.switches).where(tables.switches.c.policy == policy),
            "targets": delete(tables.replica_targets).where(tables.replica_targets.c.policy == policy),
            "statuses": delete(tables.replicas).where(tables.replicas.c.policy == policy),
            "alarms": delete(tables.alarms).where(tables.alarms.c.namespace.in_(namespaces)),
            "monitor_references": delete(tables.monitor_references).where(
                tables.monitor_references.c.namespace.in_(namespaces)
            ),
        }
        counts = {name: self._connection.execute(rows).rowcount for name, rows in going.items()}
        self._wake_watchers()
        return {name: count for name, count in counts.items() if count}
