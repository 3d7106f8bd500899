"""Policy versions and their releases."""

from datetime import datetime

import msgspec
from sqlalchemy import func, insert, select, update

from core.clock import from_micros, to_micros
from core.events import GateVerdict, PolicyVersion, Release
from core.ids import ANCHOR, Version
from core.store.database import tables
from core.store.database.locks import Lock, hold
from core.store.database.repository import Repository

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(PolicyVersion).decode


class PoliciesReader(Repository):
    """The policy versions."""

    def _last(self) -> int | None:
        return self._connection.execute(select(func.max(tables.policies.c.version))).scalar()

    def get(self, version: Version) -> PolicyVersion | None:
        table = tables.policies
        record = self._connection.execute(select(table.c.record).where(table.c.version == version)).scalar()
        return None if record is None else _decode(record)

    def newest(self, limit: int) -> list[tuple[PolicyVersion, str]]:
        """Return the newest (version, release state) pairs, the newest first."""
        table = tables.policies
        rows = self._connection.execute(
            select(table.c.record, table.c.state)
            .where(table.c.record.is_not(None))
            .order_by(table.c.version.desc())
            .limit(limit)
        )
        return [(_decode(row.record), row.state) for row in rows]

    def count_states(self) -> dict[str, int]:
        """Count the published versions in each release state."""
        table = tables.policies
        query = select(table.c.state, func.count().label("versions")).where(table.c.record.is_not(None))
        return {row.state: row.versions for row in self._connection.execute(query.group_by(table.c.state))}

    def versions(self) -> list[Version]:
        """Return all versions that were allocated, the oldest first."""
        table = tables.policies
        return [
            Version(row.version) for row in self._connection.execute(select(table.c.version).order_by(table.c.version))
        ]

    def first(self) -> Version:
        """Return the anchor's version."""
        return Version(self._connection.execute(select(func.min(tables.policies.c.version))).scalar_one())

    def candidates(self) -> list[PolicyVersion]:
        """Return the versions that are published and not yet decided on, the oldest first."""
        table = tables.policies
        rows = self._connection.execute(
            select(table.c.record).where(table.c.state == "candidate").order_by(table.c.version)
        )
        return [_decode(row.record) for row in rows]

    def states_of_lineage(self, version: Version) -> list[tuple[Version, str]]:
        """Return (version, release state) of a version and its ancestors, itself first, as far as the live one."""
        table = tables.policies
        columns = (table.c.version, table.c.parent, table.c.state)
        lineage = select(*columns).where(table.c.version == version).cte(recursive=True)
        parents = select(*columns).join(lineage, table.c.version == lineage.c.parent).where(lineage.c.state != "live")
        whole = lineage.union_all(parents)
        rows = self._connection.execute(select(whole.c.version, whole.c.state).order_by(whole.c.version.desc()))
        return [(Version(row.version), row.state) for row in rows]

    def state_of(self, version: Version) -> str | None:
        """Return a version's ReleaseState, `allocated` while it is only a number, None if it is unknown."""
        table = tables.policies
        return self._connection.execute(select(table.c.state).where(table.c.version == version)).scalar()

    def in_state(self, state: str) -> list[PolicyVersion]:
        """Return the versions in a release state, the oldest first."""
        table = tables.policies
        rows = self._connection.execute(select(table.c.record).where(table.c.state == state).order_by(table.c.version))
        return [_decode(row.record) for row in rows]


class Policies(PoliciesReader):
    """The policy versions: their maker allocates and publishes one; the release controller adds its verdict."""

    def allocate(self, now: datetime) -> Version:
        """Allocate a version number that no learner, live or offline, has been given before.

        Versions count from 1 without gaps: a number allocated in a transaction that failed is allocated again. Others
        wait until the caller's transaction is over."""
        hold(self._connection, Lock.VERSIONS)
        return self._allocate((self._last() or 0) + 1, now)

    def allocate_anchor(self, now: datetime) -> Version:
        """Return the first version, allocating it if there is none."""
        hold(self._connection, Lock.VERSIONS)
        return self._allocate(ANCHOR, now) if self._last() is None else self.first()

    def _allocate(self, version: int, now: datetime) -> Version:
        self._connection.execute(
            insert(tables.policies).values(version=version, state="allocated", created_at=to_micros(now))
        )
        return Version(version)

    def put(self, policy: PolicyVersion) -> None:
        """Publish an allocated version. Publishing it again with the same content changes nothing."""
        table = tables.policies
        self._connection.execute(
            update(table)
            .where(table.c.version == policy.version, table.c.record.is_(None))
            .values(state="candidate", digest=policy.digest, parent=policy.parent, record=_encode(policy))
        )
        self._wake_watchers()

    def put_verdict(self, version: Version, verdict: GateVerdict) -> None:
        """Set a published version's verdict, in place of any earlier one."""
        policy = self.get(version)
        assert policy is not None, f"version {version} is not published"
        record = _encode(msgspec.structs.replace(policy, verdict=verdict))
        self._connection.execute(
            update(tables.policies).where(tables.policies.c.version == version).values(record=record)
        )


class ReleasesReader(Repository):
    """The history of releases: which version entered which state, in order."""

    def live_history(self, cluster: str) -> list[Version]:
        """Return the versions that served, in the order in which each last went live."""
        table = tables.releases
        rows = self._connection.execute(
            select(table.c.version)
            .where(table.c.cluster == cluster, table.c.state == "live")
            .group_by(table.c.version)
            .order_by(func.max(table.c.sequence))
        )
        return [Version(row.version) for row in rows]

    def live(self, cluster: str) -> Version | None:
        """Return the version that went live last."""
        table = tables.releases
        found = self._connection.execute(
            select(table.c.version)
            .where(table.c.cluster == cluster, table.c.state == "live")
            .order_by(table.c.sequence.desc())
            .limit(1)
        ).scalar()
        return None if found is None else Version(found)

    def live_since(self, cluster: str) -> datetime | None:
        """Return when the live version last went live."""
        table = tables.releases
        found = self._connection.execute(
            select(table.c.at)
            .where(table.c.cluster == cluster, table.c.state == "live")
            .order_by(table.c.sequence.desc())
            .limit(1)
        ).scalar()
        return None if found is None else from_micros(found)

    def last_sequence(self) -> int:
        """Return the newest release's sequence, 0 when there is none."""
        return self._connection.execute(select(func.max(tables.releases.c.sequence))).scalar() or 0

    def last_in_state(self, cluster: str, state: str) -> Version | None:
        """Return the version, of those now in `state`, whose last release is the newest."""
        releases, versions = tables.releases, tables.policies
        found = self._connection.execute(
            select(releases.c.version)
            .join(versions, versions.c.version == releases.c.version)
            .where(releases.c.cluster == cluster, versions.c.state == state)
            .order_by(releases.c.sequence.desc())
            .limit(1)
        ).scalar()
        return None if found is None else Version(found)

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


class Releases(ReleasesReader):
    """The history of releases, appended to by the release controller, and the versions' states that follow from it."""

    def lock(self) -> None:
        """Let nobody else append to the history until the end of the transaction.

        What the caller reads of it from here on still holds when it writes."""
        hold(self._connection, Lock.RELEASES)

    def put(self, release: Release) -> None:
        """Append to the history and set the version's state. Releases become visible in the order of their sequence."""
        self.lock()
        self._connection.execute(
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
        self._connection.execute(update(table).where(table.c.version == release.version).values(state=release.state))
        self._wake_watchers()
