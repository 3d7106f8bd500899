"""Replicas and what is wanted of them, experiments, and an operator's orders."""

from datetime import datetime

import msgspec
from sqlalchemy import Connection, delete, insert, select, update

from core.ids import Version
from core.operations.fleet import Experiment, Order, OrderKind, ReplicaStatus, ReplicaTarget, Switches
from core.store.database import tables
from core.store.database.connections import from_micros, to_micros
from core.store.database.statements import upsert

_encode = msgspec.msgpack.Encoder().encode
_decode_status = msgspec.msgpack.Decoder(ReplicaStatus).decode
_decode_target = msgspec.msgpack.Decoder(ReplicaTarget).decode
_decode_experiment = msgspec.msgpack.Decoder(Experiment).decode
_decode_switches = msgspec.msgpack.Decoder(Switches).decode


def put_status(connection: Connection, status: ReplicaStatus) -> None:
    row = {
        "name": status.name,
        "cluster": status.cluster,
        "heartbeat_at": to_micros(status.heartbeat_at),
        "record": _encode(status),
    }
    upsert(connection, tables.replicas, [row])


def list_statuses(connection: Connection, cluster: str) -> list[ReplicaStatus]:
    """By name, the gone ones too: judge their heartbeats."""
    table = tables.replicas
    rows = connection.execute(select(table.c.record).where(table.c.cluster == cluster).order_by(table.c.name))
    return [_decode_status(row.record) for row in rows]


def forget_replica(connection: Connection, name: str) -> None:
    for table in (tables.replicas, tables.replica_targets):
        connection.execute(delete(table).where(table.c.name == name))


def put_target(connection: Connection, cluster: str, target: ReplicaTarget) -> None:
    row = {"name": target.name, "cluster": cluster, "record": _encode(target)}
    upsert(connection, tables.replica_targets, [row])


def get_target(connection: Connection, name: str) -> ReplicaTarget | None:
    table = tables.replica_targets
    record = connection.execute(select(table.c.record).where(table.c.name == name)).scalar()
    return None if record is None else _decode_target(record)


def list_targets(connection: Connection, cluster: str) -> dict[str, ReplicaTarget]:
    table = tables.replica_targets
    rows = connection.execute(select(table.c.record).where(table.c.cluster == cluster).order_by(table.c.name))
    targets = (_decode_target(row.record) for row in rows)
    return {target.name: target for target in targets}


def put_experiment(connection: Connection, experiment: Experiment) -> None:
    row = {
        "experiment_id": experiment.experiment_id,
        "cluster": experiment.cluster,
        "canary": experiment.canary,
        "started_at": to_micros(experiment.started_at),
        "ended_at": None if experiment.ended_at is None else to_micros(experiment.ended_at),
        "record": _encode(experiment),
    }
    upsert(connection, tables.experiments, [row])


def running_experiment(connection: Connection, cluster: str) -> Experiment | None:
    table = tables.experiments
    record = connection.execute(
        select(table.c.record)
        .where(table.c.cluster == cluster, table.c.ended_at.is_(None))
        .order_by(table.c.started_at.desc())
        .limit(1)
    ).scalar()
    return None if record is None else _decode_experiment(record)


def list_experiments(connection: Connection, cluster: str, limit: int) -> list[Experiment]:
    """The newest first."""
    table = tables.experiments
    rows = connection.execute(
        select(table.c.record).where(table.c.cluster == cluster).order_by(table.c.started_at.desc()).limit(limit)
    )
    return [_decode_experiment(row.record) for row in rows]


def get_switches(connection: Connection, cluster: str) -> Switches:
    table = tables.switches
    record = connection.execute(select(table.c.record).where(table.c.cluster == cluster)).scalar()
    return Switches() if record is None else _decode_switches(record)


def put_switches(connection: Connection, cluster: str, switches: Switches) -> None:
    upsert(connection, tables.switches, [{"cluster": cluster, "record": _encode(switches)}])


def give_order(
    connection: Connection,
    cluster: str,
    kind: OrderKind,
    version: Version,
    why: str,
    by: str,
    now: datetime,
) -> int:
    """Its number, under which `get_order` tells what came of it."""
    values = {"cluster": cluster, "kind": kind, "version": version, "why": why, "by": by, "created_at": to_micros(now)}
    result = connection.execute(insert(tables.orders).values(values))
    assert result.inserted_primary_key is not None
    return int(result.inserted_primary_key[0])


def open_orders(connection: Connection, cluster: str) -> list[Order]:
    """The oldest first."""
    table = tables.orders
    rows = connection.execute(
        select(table).where(table.c.cluster == cluster, table.c.done_at.is_(None)).order_by(table.c.order_id)
    )
    return [_order(row) for row in rows]


def latest_orders(connection: Connection, cluster: str, limit: int) -> list[Order]:
    """The newest first."""
    table = tables.orders
    query = select(table).where(table.c.cluster == cluster).order_by(table.c.order_id.desc()).limit(limit)
    return [_order(row) for row in connection.execute(query)]


def get_order(connection: Connection, order_id: int) -> Order | None:
    table = tables.orders
    row = connection.execute(select(table).where(table.c.order_id == order_id)).one_or_none()
    return None if row is None else _order(row)


def finish_order(
    connection: Connection, order_id: int, now: datetime, error_code: str | None = None, error: str | None = None
) -> None:
    table = tables.orders
    values = {"done_at": to_micros(now), "error_code": error_code, "error": error}
    connection.execute(update(table).where(table.c.order_id == order_id, table.c.done_at.is_(None)).values(values))


def _order(row: object) -> Order:
    values = row._mapping  # type: ignore[attr-defined]  # SQLAlchemy's public way to a row's columns
    return Order(
        order_id=values["order_id"],
        kind=values["kind"],
        version=Version(values["version"]),
        why=values["why"],
        by=values["by"],
        done_at=None if values["done_at"] is None else from_micros(values["done_at"]),
        error_code=values["error_code"],
        error=values["error"],
    )
