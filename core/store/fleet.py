"""Replicas with their statuses and targets, experiments, and operators' orders."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Row, delete, insert, select, update

from core import codec
from core.clock import from_micros, to_micros
from core.ids import BASE, PolicyName, PolicyRef, Version
from core.operations.fleet import Experiment, Order, OrderKind, ReplicaStatus, ReplicaTarget, Switches
from core.store.database import tables
from core.store.database.repository import Repository
from core.store.database.statements import upsert

_encode = codec.encoder().encode
_decode_status = codec.decoder(ReplicaStatus).decode
_decode_target = codec.decoder(ReplicaTarget).decode
_decode_experiment = codec.decoder(Experiment).decode
_decode_switches = codec.decoder(Switches).decode


class FleetReader(Repository):
    """Replicas: their statuses, as their hosts report them, and their targets, as the release controller sets them."""

    def statuses(self, cluster: str, policy: PolicyName = BASE) -> list[ReplicaStatus]:
        """Return the statuses by name, those of replicas that are gone too: their heartbeats tell."""
        table = tables.replicas
        chosen = table.c.cluster == cluster, table.c.policy == policy
        rows = self._connection.execute(
            select(table.c.record, table.c.heartbeat_at).where(*chosen).order_by(table.c.name)
        )
        return [_status(row.record, row.heartbeat_at) for row in rows]

    def target(self, name: str, policy: PolicyName = BASE) -> ReplicaTarget | None:
        table = tables.replica_targets
        chosen = table.c.name == name, table.c.policy == policy
        record = self._connection.execute(select(table.c.record).where(*chosen)).scalar()
        return None if record is None else _decode_target(record)

    def targets_of(self, name: str) -> dict[PolicyName, ReplicaTarget]:
        """Return a replica's targets, by policy."""
        table = tables.replica_targets
        rows = self._connection.execute(select(table.c.record).where(table.c.name == name))
        targets = (_decode_target(row.record) for row in rows)
        return {target.serve.policy: target for target in targets}

    def targets(self, cluster: str, policy: PolicyName = BASE) -> dict[str, ReplicaTarget]:
        table = tables.replica_targets
        chosen = table.c.cluster == cluster, table.c.policy == policy
        rows = self._connection.execute(select(table.c.record).where(*chosen).order_by(table.c.name))
        targets = (_decode_target(row.record) for row in rows)
        return {target.name: target for target in targets}

    def signs(
        self, cluster: str, oldest_heartbeat: datetime, policies: Sequence[PolicyName]
    ) -> dict[PolicyName, object]:
        """Return, for each policy, what differs when a decision on its releases may: equal signs, equal affairs.

        It is one look at all policies together; of what stands in the store beside, orders tell when it changes."""
        replicas, targets, versions = tables.replicas, tables.replica_targets, tables.policies
        there = replicas.c.heartbeat_at >= to_micros(oldest_heartbeat)
        queries = (
            select(replicas.c.policy, replicas.c.name, replicas.c.record, there).where(replicas.c.cluster == cluster),
            select(targets.c.policy, targets.c.name, targets.c.record).where(targets.c.cluster == cluster),
            select(versions.c.policy, versions.c.version, versions.c.state).where(
                versions.c.policy.in_(policies), versions.c.state.in_(("candidate", "canary", "live"))
            ),
            select(tables.orders.c.policy, tables.orders.c.order_id).where(
                tables.orders.c.cluster == cluster, tables.orders.c.done_at.is_(None)
            ),
        )
        alarms = self._connection.execute(
            select(tables.alarms.c.alarm_id, tables.alarms.c.acknowledged_at).where(tables.IS_OPEN)
        )
        of_all = tuple(tuple(row) for row in alarms)
        found: dict[PolicyName, list[object]] = {}
        for query in queries:
            for row in self._connection.execute(query):
                found.setdefault(PolicyName(row[0]), [of_all]).append(tuple(row)[1:])
        return {policy: tuple(rows) for policy, rows in found.items()}

    def switches(self, cluster: str, policy: PolicyName = BASE) -> Switches:
        table = tables.switches
        chosen = table.c.cluster == cluster, table.c.policy == policy
        record = self._connection.execute(select(table.c.record).where(*chosen)).scalar()
        return Switches() if record is None else _decode_switches(record)


def _status(record: bytes, heartbeat_at: int) -> ReplicaStatus:
    return msgspec.structs.replace(_decode_status(record), heartbeat_at=from_micros(heartbeat_at))


class Fleet(FleetReader):
    """The replicas: hosts write their statuses, the release controller writes targets."""

    def put_status(self, status: ReplicaStatus, *, is_news: bool = True) -> None:
        """Store a replica's status; `is_news` says that more of it has changed than its heartbeat."""
        row = {
            "name": status.name,
            "policy": status.policy,
            "cluster": status.cluster,
            "heartbeat_at": to_micros(status.heartbeat_at),
            "record": _encode(status),
        }
        upsert(self._connection, tables.replicas, [row])
        if is_news:
            self._wake_watchers()

    def beat(self, name: str, now: datetime) -> int:
        """Note that a replica's host is there, and return for how many policies its statuses are stored."""
        table = tables.replicas
        beating = update(table).where(table.c.name == name).values(heartbeat_at=to_micros(now))
        return self._connection.execute(beating).rowcount

    def forget(self, name: str) -> None:
        """Forget a replica, with its targets, whatever policies it served."""
        self._connection.execute(delete(tables.replicas).where(tables.replicas.c.name == name))
        self._connection.execute(delete(tables.replica_targets).where(tables.replica_targets.c.name == name))
        self._wake_watchers()

    def put_target(self, cluster: str, target: ReplicaTarget) -> None:
        row = {
            "name": target.name,
            "policy": target.serve.policy,
            "cluster": cluster,
            "record": _encode(target),
        }
        upsert(self._connection, tables.replica_targets, [row])
        self._wake_watchers()

    def put_switches(self, cluster: str, switches: Switches, policy: PolicyName = BASE) -> None:
        row = {"cluster": cluster, "policy": policy, "record": _encode(switches)}
        upsert(self._connection, tables.switches, [row])


class ExperimentsReader(Repository):
    """Canary experiments, running and past."""

    def running(self, cluster: str, policy: PolicyName = BASE) -> Experiment | None:
        table = tables.experiments
        record = self._connection.execute(
            select(table.c.record)
            .where(table.c.cluster == cluster, table.c.policy == policy, table.c.ended_at.is_(None))
            .order_by(table.c.started_at.desc())
            .limit(1)
        ).scalar()
        return None if record is None else _decode_experiment(record)

    def newest(self, cluster: str, limit: int, policy: PolicyName = BASE) -> list[Experiment]:
        """Return the newest experiments, the newest first."""
        table = tables.experiments
        chosen = table.c.cluster == cluster, table.c.policy == policy
        rows = self._connection.execute(
            select(table.c.record).where(*chosen).order_by(table.c.started_at.desc()).limit(limit)
        )
        return [_decode_experiment(row.record) for row in rows]


class Experiments(ExperimentsReader):
    """The experiments, written by the release controller alone."""

    def put(self, experiment: Experiment) -> None:
        row = {
            "experiment_id": experiment.experiment_id,
            "cluster": experiment.cluster,
            "policy": experiment.canary.policy,
            "canary": experiment.canary.version,
            "started_at": to_micros(experiment.started_at),
            "ended_at": None if experiment.ended_at is None else to_micros(experiment.ended_at),
            "record": _encode(experiment),
        }
        upsert(self._connection, tables.experiments, [row])
        self._wake_watchers()


class OrdersReader(Repository):
    """The orders to the release controller, and their results."""

    def unfinished(self, cluster: str, policy: PolicyName = BASE) -> list[Order]:
        """Return the orders that are not done yet, the oldest first."""
        table = tables.orders
        chosen = table.c.cluster == cluster, table.c.policy == policy, table.c.done_at.is_(None)
        rows = self._connection.execute(select(table).where(*chosen).order_by(table.c.order_id))
        return [_order(row) for row in rows]

    def newest(self, cluster: str, limit: int, policy: PolicyName = BASE) -> list[Order]:
        """Return the newest orders, the newest first."""
        table = tables.orders
        chosen = table.c.cluster == cluster, table.c.policy == policy
        query = select(table).where(*chosen).order_by(table.c.order_id.desc()).limit(limit)
        return [_order(row) for row in self._connection.execute(query)]

    def get(self, order_id: int) -> Order | None:
        table = tables.orders
        row = self._connection.execute(select(table).where(table.c.order_id == order_id)).one_or_none()
        return None if row is None else _order(row)


class Orders(OrdersReader):
    """The orders: the API accepts them, the release controller finishes them."""

    def give(
        self,
        cluster: str,
        kind: OrderKind,
        version: PolicyRef,
        why: str,
        by: str,
        now: datetime,
    ) -> int:
        """Store an order, and return its number, by which `get` finds its result."""
        values = {
            "cluster": cluster,
            "kind": kind,
            "policy": version.policy,
            "version": version.version,
            "why": why,
            "by": by,
            "created_at": to_micros(now),
        }
        result = self._connection.execute(insert(tables.orders).values(values))
        assert result.inserted_primary_key is not None
        self._wake_watchers()
        return int(result.inserted_primary_key[0])

    def finish(self, order_id: int, now: datetime, error_code: str | None = None, error: str | None = None) -> None:
        table = tables.orders
        values = {"done_at": to_micros(now), "error_code": error_code, "error": error}
        self._connection.execute(
            update(table).where(table.c.order_id == order_id, table.c.done_at.is_(None)).values(values)
        )


def _order(row: Row[Any]) -> Order:
    values = row._mapping  # SQLAlchemy's public way to a row's columns
    return Order(
        order_id=values["order_id"],
        kind=values["kind"],
        version=PolicyRef(PolicyName(values["policy"]), Version(values["version"])),
        why=values["why"],
        by=values["by"],
        done_at=None if values["done_at"] is None else from_micros(values["done_at"]),
        error_code=values["error_code"],
        error=values["error"],
    )
