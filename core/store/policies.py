"""Policy versions and their releases."""

from datetime import datetime

import msgspec
from sqlalchemy import Connection, func, insert, select, update

from core.events import GateVerdict, PolicyVersion, Release
from core.ids import ANCHOR, Version
from core.store.database import tables
from core.store.database.connections import from_micros, to_micros
from core.store.database.locks import Lock, hold

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(PolicyVersion).decode


def allocate_version(connection: Connection, now: datetime) -> Version:
    """A number that no learner, live or offline, was given before. Versions count from 1, and leave none out: one that
    was given in a transaction that failed is given again. Others wait until the caller's is over."""
    hold(connection, Lock.VERSIONS)
    return _allocate(connection, (_last_version(connection) or 0) + 1, now)


def allocate_anchor(connection: Connection, now: datetime) -> Version:
    """The first version, allocated if there is none."""
    hold(connection, Lock.VERSIONS)
    return _allocate(connection, ANCHOR, now) if _last_version(connection) is None else first_version(connection)


def _allocate(connection: Connection, version: int, now: datetime) -> Version:
    connection.execute(insert(tables.policies).values(version=version, state="allocated", created_at=to_micros(now)))
    return Version(version)


def _last_version(connection: Connection) -> int | None:
    return connection.execute(select(func.max(tables.policies.c.version))).scalar()


def put_policy(connection: Connection, policy: PolicyVersion) -> None:
    """Fill an allocated row. Again with the same content: nothing changes."""
    table = tables.policies
    connection.execute(
        update(table)
        .where(table.c.version == policy.version, table.c.record.is_(None))
        .values(state="candidate", digest=policy.digest, parent=policy.parent, record=_encode(policy))
    )


def put_verdict(connection: Connection, version: Version, verdict: GateVerdict) -> None:
    """What was found of a published version, in place of what was found before."""
    policy = get_policy(connection, version)
    assert policy is not None, f"version {version} is not published"
    record = _encode(msgspec.structs.replace(policy, verdict=verdict))
    connection.execute(update(tables.policies).where(tables.policies.c.version == version).values(record=record))


def get_policy(connection: Connection, version: Version) -> PolicyVersion | None:
    table = tables.policies
    record = connection.execute(select(table.c.record).where(table.c.version == version)).scalar()
    return None if record is None else _decode(record)


def list_policies(connection: Connection, limit: int) -> list[tuple[PolicyVersion, str]]:
    """(version, release state), the newest first."""
    table = tables.policies
    rows = connection.execute(
        select(table.c.record, table.c.state)
        .where(table.c.record.is_not(None))
        .order_by(table.c.version.desc())
        .limit(limit)
    )
    return [(_decode(row.record), row.state) for row in rows]


def count_states(connection: Connection) -> dict[str, int]:
    """How many published versions are in each release state."""
    table = tables.policies
    query = select(table.c.state, func.count().label("versions")).where(table.c.record.is_not(None))
    return {row.state: row.versions for row in connection.execute(query.group_by(table.c.state))}


def list_versions(connection: Connection) -> list[Version]:
    """All that were allocated, the oldest first."""
    table = tables.policies
    return [Version(row.version) for row in connection.execute(select(table.c.version).order_by(table.c.version))]


def first_version(connection: Connection) -> Version:
    """The anchor's."""
    return Version(connection.execute(select(func.min(tables.policies.c.version))).scalar_one())


def list_candidates(connection: Connection) -> list[PolicyVersion]:
    """Published and not yet decided on, the oldest first."""
    table = tables.policies
    rows = connection.execute(select(table.c.record).where(table.c.state == "candidate").order_by(table.c.version))
    return [_decode(row.record) for row in rows]


def states_of_lineage(connection: Connection, version: Version) -> list[tuple[Version, str]]:
    """(version, release state) of a version and its ancestors, itself first, as far as the live one."""
    table = tables.policies
    columns = (table.c.version, table.c.parent, table.c.state)
    lineage = select(*columns).where(table.c.version == version).cte(recursive=True)
    parents = select(*columns).join(lineage, table.c.version == lineage.c.parent).where(lineage.c.state != "live")
    whole = lineage.union_all(parents)
    rows = connection.execute(select(whole.c.version, whole.c.state).order_by(whole.c.version.desc()))
    return [(Version(row.version), row.state) for row in rows]


def live_history(connection: Connection, cluster: str) -> list[Version]:
    """The versions that served, in the order in which each last went live."""
    table = tables.releases
    rows = connection.execute(
        select(table.c.version)
        .where(table.c.cluster == cluster, table.c.state == "live")
        .group_by(table.c.version)
        .order_by(func.max(table.c.sequence))
    )
    return [Version(row.version) for row in rows]


def lock_releases(connection: Connection) -> None:
    """Until the end of the transaction nobody else appends to the history: what is read of it from here on is so when
    the caller writes."""
    hold(connection, Lock.RELEASES)


def put_release(connection: Connection, release: Release) -> None:
    """Append to the history and set the version's state. Releases become visible in the order of their sequence."""
    lock_releases(connection)
    connection.execute(
        insert(tables.releases).values(
            version=release.version,
            cluster=release.cluster,
            state=release.state,
            why=release.why,
            by=release.by,
            at=to_micros(release.at),
        )
    )
    table = tables.policies
    connection.execute(update(table).where(table.c.version == release.version).values(state=release.state))


def live_version(connection: Connection, cluster: str) -> Version | None:
    """The version that went live last."""
    table = tables.releases
    found = connection.execute(
        select(table.c.version)
        .where(table.c.cluster == cluster, table.c.state == "live")
        .order_by(table.c.sequence.desc())
        .limit(1)
    ).scalar()
    return None if found is None else Version(found)


def live_since(connection: Connection, cluster: str) -> datetime | None:
    """When the version that is live went live last."""
    table = tables.releases
    found = connection.execute(
        select(table.c.at)
        .where(table.c.cluster == cluster, table.c.state == "live")
        .order_by(table.c.sequence.desc())
        .limit(1)
    ).scalar()
    return None if found is None else from_micros(found)


def get_state(connection: Connection, version: Version) -> str | None:
    """Its ReleaseState, `allocated` while it is only a number, None for an unknown one."""
    table = tables.policies
    return connection.execute(select(table.c.state).where(table.c.version == version)).scalar()


def versions_in_state(connection: Connection, state: str) -> list[PolicyVersion]:
    """The oldest first."""
    table = tables.policies
    rows = connection.execute(select(table.c.record).where(table.c.state == state).order_by(table.c.version))
    return [_decode(row.record) for row in rows]


def last_sequence(connection: Connection) -> int:
    """Of the newest release; 0 when there is none."""
    return connection.execute(select(func.max(tables.releases.c.sequence))).scalar() or 0


def last_in_state(connection: Connection, cluster: str, state: str) -> Version | None:
    """Of the versions that are now in `state`, the one whose last release is the newest."""
    releases, versions = tables.releases, tables.policies
    found = connection.execute(
        select(releases.c.version)
        .join(versions, versions.c.version == releases.c.version)
        .where(releases.c.cluster == cluster, versions.c.state == state)
        .order_by(releases.c.sequence.desc())
        .limit(1)
    ).scalar()
    return None if found is None else Version(found)


def list_releases(connection: Connection, after_sequence: int, limit: int) -> list[tuple[int, Release]]:
    """(sequence, release) in order."""
    table = tables.releases
    rows = connection.execute(
        select(table).where(table.c.sequence > after_sequence).order_by(table.c.sequence).limit(limit)
    )
    return [
        (
            row.sequence,
            Release(
                version=Version(row.version),
                cluster=row.cluster,
                state=row.state,
                why=row.why,
                by=row.by,
                at=from_micros(row.at),
            ),
        )
        for row in rows
    ]
