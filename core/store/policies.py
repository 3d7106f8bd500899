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
    """Policy versions."""

    def _last(self) -> int | None:
        return self._connection.execute(select(func.max(tables.policies.c.version))).scalar()

    def get(self, version: Version) -> PolicyVersion | None:
        table = tables.policies
        record = self._connection.execute(select(table.c.record).where(table.c.version == version)).scalar()
        return None if record is None else _decode(record)

    def newest(self, limit: int) -> list[tuple[PolicyVersion, str]]:
        """(version, release state), the newest first."""
        table = tables.policies
        rows = self._connection.execute(
            select(table.c.record, table.c.state)
            .where(table.c.record.is_not(None))
            .order_by(table.c.version.desc())
            .limit(limit)
        )
        return [(_decode(row.record), row.state) for row in rows]

    def count_states(self) -> dict[str, int]:
        """How many published versions are in each release state."""
        table = tables.policies
        query = select(table.c.state, func.count().label("versions")).where(table.c.record.is_not(None))
        return {row.state: row.versions for row in self._connection.execute(query.group_by(table.c.state))}

    def versions(self) -> list[Version]:
        """All that were allocated, the oldest first."""
        table = tables.policies
        return [
            Version(row.version) for row in self._connection.execute(select(table.c.version).order_by(table.c.version))
        ]

    def first(self) -> Version:
        """The anchor's."""
        return Version(self._connection.execute(select(func.min(tables.policies.c.version))).scalar_one())

    def candidates(self) -> list[PolicyVersion]:
        """Published and not yet decided on, the oldest first."""
        table = tables.policies
        rows = self._connection.execute(
            select(table.c.record).where(table.c.state == "candidate").order_by(table.c.version)
        )
        return [_decode(row.record) for row in rows]

    def states_of_lineage(self, version: Version) -> list[tuple[Version, str]]:
        """(version, release state) of a version and its ancestors, itself first, as far as the live one."""
        table = tables.policies
        columns = (table.c.version, table.c.parent, table.c.state)
        lineage = select(*columns).where(table.c.version == version).cte(recursive=True)
        parents = select(*columns).join(lineage, table.c.version == lineage.c.parent).where(lineage.c.state != "live")
        whole = lineage.union_all(parents)
        rows = self._connection.execute(select(whole.c.version, whole.c.state).order_by(whole.c.version.desc()))
        return [(Version(row.version), row.state) for row in rows]

    def state_of(self, version: Version) -> str | None:
        """Its ReleaseState, `allocated` while it is only a number, None for an unknown one."""
        table = tables.policies
        return self._connection.execute(select(table.c.state).where(table.c.version == version)).scalar()

    def in_state(self, state: str) -> list[PolicyVersion]:
        """The oldest first."""
        table = tables.policies
        rows = self._connection.execute(select(table.c.record).where(table.c.state == state).order_by(table.c.version))
        return [_decode(row.record) for row in rows]


class Policies(PoliciesReader):
    """Whoever makes a version takes a number for it and publishes it; the release controller adds its verdict."""

    def allocate(self, now: datetime) -> Version:
        """A number that no learner, live or offline, was given before. Versions count from 1, and leave none out: one
        that was given in a transaction that failed is given again. Others wait until the caller's is over."""
        hold(self._connection, Lock.VERSIONS)
        return self._allocate((self._last() or 0) + 1, now)

    def allocate_anchor(self, now: datetime) -> Version:
        """The first version, allocated if there is none."""
        hold(self._connection, Lock.VERSIONS)
        return self._allocate(ANCHOR, now) if self._last() is None else self.first()

    def _allocate(self, version: int, now: datetime) -> Version:
        self._connection.execute(
            insert(tables.policies).values(version=version, state="allocated", created_at=to_micros(now))
        )
        return Version(version)

    def put(self, policy: PolicyVersion) -> None:
        """Fill an allocated row. Again with the same content: nothing changes."""
        table = tables.policies
        self._connection.execute(
            update(table)
            .where(table.c.version == policy.version, table.c.record.is_(None))
            .values(state="candidate", digest=policy.digest, parent=policy.parent, record=_encode(policy))
        )
        self._wake_watchers()

    def put_verdict(self, version: Version, verdict: GateVerdict) -> None:
        """What was found of a published version, in place of what was found before."""
        policy = self.get(version)
        assert policy is not None, f"version {version} is not published"
        record = _encode(msgspec.structs.replace(policy, verdict=verdict))
        self._connection.execute(
            update(tables.policies).where(tables.policies.c.version == version).values(record=record)
        )


class ReleasesReader(Repository):
    """What became of which version, in order."""

    def live_history(self, cluster: str) -> list[Version]:
        """The versions that served, in the order in which each last went live."""
        table = tables.releases
        rows = self._connection.execute(
            select(table.c.version)
            .where(table.c.cluster == cluster, table.c.state == "live")
            .group_by(table.c.version)
            .order_by(func.max(table.c.sequence))
        )
        return [Version(row.version) for row in rows]

    def live(self, cluster: str) -> Version | None:
        """The version that went live last."""
        table = tables.releases
        found = self._connection.execute(
            select(table.c.version)
            .where(table.c.cluster == cluster, table.c.state == "live")
            .order_by(table.c.sequence.desc())
            .limit(1)
        ).scalar()
        return None if found is None else Version(found)

    def live_since(self, cluster: str) -> datetime | None:
        """When the version that is live went live last."""
        table = tables.releases
        found = self._connection.execute(
            select(table.c.at)
            .where(table.c.cluster == cluster, table.c.state == "live")
            .order_by(table.c.sequence.desc())
            .limit(1)
        ).scalar()
        return None if found is None else from_micros(found)

    def last_sequence(self) -> int:
        """Of the newest release; 0 when there is none."""
        return self._connection.execute(select(func.max(tables.releases.c.sequence))).scalar() or 0

    def last_in_state(self, cluster: str, state: str) -> Version | None:
        """Of the versions that are now in `state`, the one whose last release is the newest."""
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
        """(sequence, release) in order."""
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
    """The release controller appends to the history, and sets a version's state with it."""

    def lock(self) -> None:
        """Until the end of the transaction nobody else appends to the history: what is read of it from here on is so
        when the caller writes."""
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
