"""Versions of policies and their releases.

A version's key is its policy and its number; queries for one of several versions look among those of one policy."""

from collections.abc import Collection
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Column, ColumnElement, Table, and_, bindparam, func, insert, literal, select, update

from core import codec
from core.clock import from_micros, to_micros
from core.events import GateVerdict, PolicyVersion, Release
from core.ids import BASE, PolicyName, PolicyRef, Version
from core.operations.servable import WEIGHTS_BYTES
from core.store.database import tables
from core.store.database.locks import Lock, hold
from core.store.database.repository import Repository
from core.store.database.statements import insert_new

_encode = codec.encoder().encode
_decode = codec.decoder(PolicyVersion).decode
_FIRST = Version(1)
_OF_LINEAGE = ("policy", "version", "parent", "parent_policy", "state")


def _is(table: Table, ref: PolicyRef) -> ColumnElement[bool]:
    return and_(table.c.policy == ref.policy, table.c.version == ref.version)


def _ref(row: Any) -> PolicyRef:
    return PolicyRef(PolicyName(row.policy), Version(row.version))


class PoliciesReader(Repository):
    """The policy versions."""

    def _last(self, policy: PolicyName) -> int | None:
        table = tables.policies
        return self._connection.execute(select(func.max(table.c.version)).where(table.c.policy == policy)).scalar()

    def get(self, version: PolicyRef) -> PolicyVersion | None:
        table = tables.policies
        record = self._connection.execute(select(table.c.record).where(_is(table, version))).scalar()
        return None if record is None else _decode(record)

    def newest(
        self, limit: int, policy: PolicyName = BASE, *, before: int | None = None
    ) -> list[tuple[PolicyVersion, str]]:
        """Return the newest (version, release state) pairs, the newest first, of versions before that number."""
        table = tables.policies
        older = () if before is None else (table.c.version < before,)
        rows = self._connection.execute(
            select(table.c.record, table.c.state)
            .where(table.c.policy == policy, table.c.record.is_not(None), *older)
            .order_by(table.c.version.desc())
            .limit(limit)
        )
        return [(_decode(row.record), row.state) for row in rows]

    def count_states(self, policy: PolicyName = BASE) -> dict[str, int]:
        """Count the published versions in each release state."""
        table = tables.policies
        published = table.c.policy == policy, table.c.record.is_not(None)
        query = select(table.c.state, func.count().label("versions")).where(*published)
        return {row.state: row.versions for row in self._connection.execute(query.group_by(table.c.state))}

    def versions(self, policy: PolicyName = BASE) -> list[PolicyRef]:
        """Return all versions that were allocated, the oldest first."""
        table = tables.policies
        query = select(table.c.policy, table.c.version).where(table.c.policy == policy).order_by(table.c.version)
        return [_ref(row) for row in self._connection.execute(query)]

    def allocated(self, since: datetime, policy: PolicyName = BASE) -> list[PolicyRef]:
        """Return the versions whose numbers were allocated since then, and which are not published yet."""
        table = tables.policies
        chosen = table.c.policy == policy, table.c.state == "allocated", table.c.created_at >= to_micros(since)
        query = select(table.c.policy, table.c.version).where(*chosen).order_by(table.c.version)
        return [_ref(row) for row in self._connection.execute(query)]

    def first(self, policy: PolicyName = BASE) -> PolicyRef:
        """Return the anchor's version."""
        table = tables.policies
        number = select(func.min(table.c.version)).where(table.c.policy == policy)
        return PolicyRef(policy, Version(self._connection.execute(number).scalar_one()))

    def candidates(self, policy: PolicyName = BASE) -> list[PolicyVersion]:
        """Return the versions that are published and not yet decided on, the oldest first."""
        return self.in_state("candidate", policy)

    def states_of_lineage(self, version: PolicyRef) -> list[tuple[PolicyRef, str]]:
        """Return (version, release state) of a version and its ancestors, itself first, as far as the live one."""
        table = tables.policies
        columns: list[Column[Any]] = [table.c[name] for name in _OF_LINEAGE]
        generation = literal(0).label("generation")
        lineage = select(*columns, generation).where(_is(table, version)).cte(recursive=True)
        is_parent = and_(table.c.policy == lineage.c.parent_policy, table.c.version == lineage.c.parent)
        before = (lineage.c.generation + 1).label("generation")
        parents = select(*columns, before).join(lineage, is_parent).where(lineage.c.state != "live")
        whole = lineage.union_all(parents)
        rows = self._connection.execute(select(whole).order_by(whole.c.generation))
        return [(_ref(row), row.state) for row in rows]

    def state_of(self, version: PolicyRef) -> str | None:
        """Return a version's ReleaseState, `allocated` while it is only a number, None if it is unknown."""
        table = tables.policies
        return self._connection.execute(select(table.c.state).where(_is(table, version))).scalar()

    def states_of(self, versions: Collection[PolicyRef]) -> dict[PolicyRef, str]:
        """Return the states of those of the versions that are known, by one query for each policy."""
        table = tables.policies
        found: dict[PolicyRef, str] = {}
        for policy in {version.policy for version in versions}:
            numbers = [version.version for version in versions if version.policy == policy]
            chosen = table.c.policy == policy, table.c.version.between(min(numbers), max(numbers))
            rows = self._connection.execute(select(table.c.policy, table.c.version, table.c.state).where(*chosen))
            found |= {_ref(row): row.state for row in rows}
        return {version: found[version] for version in versions if version in found}

    def in_state(self, state: str, policy: PolicyName = BASE) -> list[PolicyVersion]:
        """Return the versions in a release state, the oldest first."""
        table = tables.policies
        chosen = table.c.policy == policy, table.c.state == state
        rows = self._connection.execute(select(table.c.record).where(*chosen).order_by(table.c.version))
        return [_decode(row.record) for row in rows]


class Policies(PoliciesReader):
    """The policy versions: their maker allocates and publishes one; the release controller adds its verdict."""

    def allocate(self, now: datetime, policy: PolicyName = BASE) -> PolicyRef:
        """Allocate a version number that no learner, live or offline, has been given before.

        Each policy's versions count from 1 without gaps: a number allocated in a transaction that failed is allocated
        again. Others wait until the caller's transaction is over."""
        hold(self._connection, Lock.VERSIONS)
        return self._allocate(PolicyRef(policy, Version((self._last(policy) or 0) + 1)), now)

    def allocate_anchor(self, now: datetime, policy: PolicyName = BASE) -> PolicyRef:
        """Return the first version, allocating it if there is none."""
        hold(self._connection, Lock.VERSIONS)
        is_first = self._last(policy) is None
        return self._allocate(PolicyRef(policy, _FIRST), now) if is_first else self.first(policy)

    def _allocate(self, version: PolicyRef, now: datetime) -> PolicyRef:
        values = {"policy": version.policy, "version": version.version, "created_at": to_micros(now)}
        self._connection.execute(insert(tables.policies).values(**values, state="allocated"))
        return version

    def put(self, policy: PolicyVersion) -> None:
        """Publish an allocated version. Publishing it again with the same content changes nothing."""
        table, parent = tables.policies, policy.parent
        values: dict[str, Any] = {"state": "candidate", "digest": policy.digest, "record": _encode(policy)}
        if parent is not None:
            values |= {"parent": parent.version, "parent_policy": parent.policy}
        is_allocated = _is(table, policy.version), table.c.record.is_(None)
        published = self._connection.execute(update(table).where(*is_allocated).values(values))
        if published.rowcount:  # its weights are there now; later on they may be gone
            key = {"policy": policy.version.policy, "version": policy.version.version, "kind": "weights"}
            size = int(policy.metrics.get(WEIGHTS_BYTES, 0))
            insert_new(self._connection, tables.version_files, [key | {"bytes": size, "why": None}])
        self._wake_watchers()

    def put_verdict(self, version: PolicyRef, verdict: GateVerdict) -> None:
        """Set a published version's verdict, in place of any earlier one."""
        policy = self.get(version)
        assert policy is not None, f"version {version} is not published"
        record = _encode(msgspec.structs.replace(policy, verdict=verdict))
        self._connection.execute(update(tables.policies).where(_is(tables.policies, version)).values(record=record))


def _went_live(cluster: str, policy: PolicyName) -> tuple[ColumnElement[bool], ...]:
    table = tables.releases
    return table.c.cluster == cluster, table.c.policy == policy, table.c.state == "live"


class ReleasesReader(Repository):
    """The history of releases: which version entered which state, in order."""

    def live_history(self, cluster: str, policy: PolicyName = BASE) -> list[PolicyRef]:
        """Return the versions that served, in the order in which each last went live."""
        table = tables.releases
        rows = self._connection.execute(
            select(table.c.policy, table.c.version)
            .where(*_went_live(cluster, policy))
            .group_by(table.c.policy, table.c.version)
            .order_by(func.max(table.c.sequence))
        )
        return [_ref(row) for row in rows]

    def live(self, cluster: str, policy: PolicyName = BASE) -> PolicyRef | None:
        """Return the version that went live last."""
        table = tables.releases
        steps = select(table.c.policy, table.c.version).where(*_went_live(cluster, policy))
        row = self._connection.execute(steps.order_by(table.c.sequence.desc()).limit(1)).first()
        return None if row is None else _ref(row)

    def live_since(self, cluster: str, policy: PolicyName = BASE) -> datetime | None:
        """Return when the live version last went live."""
        return next(iter(self.went_live(cluster, 1, policy)), None)

    def went_live(self, cluster: str, limit: int, policy: PolicyName = BASE) -> list[datetime]:
        """Return when the last `limit` versions went live, the newest first."""
        table = tables.releases
        steps = select(table.c.at).where(*_went_live(cluster, policy))
        rows = self._connection.execute(steps.order_by(table.c.sequence.desc()).limit(limit))
        return [from_micros(at) for at in rows.scalars()]

    def last_sequence(self) -> int:
        """Return the newest release's sequence, 0 when there is none."""
        return self._connection.execute(select(func.max(tables.releases.c.sequence))).scalar() or 0

    def last_in_state(self, cluster: str, state: str, policy: PolicyName = BASE) -> PolicyRef | None:
        """Return the version, of those now in `state`, whose last release is the newest."""
        releases, versions = tables.releases, tables.policies
        same = and_(versions.c.policy == releases.c.policy, versions.c.version == releases.c.version)
        row = self._connection.execute(
            select(releases.c.policy, releases.c.version)
            .join(versions, same)
            .where(releases.c.cluster == cluster, releases.c.policy == policy, versions.c.state == state)
            .order_by(releases.c.sequence.desc())
            .limit(1)
        ).first()
        return None if row is None else _ref(row)

    def after(self, after_sequence: int, limit: int) -> list[tuple[int, Release]]:
        """Return (sequence, release) pairs after a sequence, in order."""
        table = tables.releases
        rows = self._connection.execute(
            select(table).where(table.c.sequence > after_sequence).order_by(table.c.sequence).limit(limit)
        )
        return [
            (
                row.sequence,
                Release(
                    version=_ref(row),
                    cluster=row.cluster,
                    state=row.state,
                    why=row.why,
                    by=row.by,
                    at=from_micros(row.at),
                ),
            )
            for row in rows
        ]


class Releases(ReleasesReader):
    """The history of releases, appended to by the release controller, and the versions' states that follow from it."""

    def lock(self) -> None:
        """Let nobody else append to the history until the end of the transaction.

        What the caller reads of it from here on still holds when it writes."""
        hold(self._connection, Lock.RELEASES)

    def put(self, *releases: Release) -> None:
        """Append to the history and set the versions' states, each version's once.

        Releases become visible in the order of their sequence. A rollback may have a thousand, while others wait."""
        self.lock()
        steps = [
            {
                "policy": release.version.policy,
                "version": release.version.version,
                "cluster": release.cluster,
                "state": release.state,
                "why": release.why,
                "by": release.by,
                "at": to_micros(release.at),
            }
            for release in releases
        ]
        self._connection.execute(insert(tables.releases), steps)
        table = tables.policies
        is_its = table.c.policy == bindparam("of_policy"), table.c.version == bindparam("of_version")
        states = [
            {"of_policy": release.version.policy, "of_version": release.version.version, "entered": release.state}
            for release in releases
        ]
        self._connection.execute(update(table).where(*is_its).values(state=bindparam("entered")), states)
        self._wake_watchers()
