"""What there is of versions' files, and so how soon each version can be served.

weights     lie in the blobs
checkpoint  the learner can go on from here, also to make later versions again
wanted      an order waits until the learner has made the weights again
lost        the learner could not, and says why

What an exclusion left behind serves no more, whatever there is of it.
"""

from collections.abc import Callable, Iterable, Mapping, Set
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from sqlalchemy import ColumnElement, and_, delete, select

from core import codec
from core.clock import from_micros
from core.events import PolicyVersion
from core.ids import BASE, PolicyName, PolicyRef, Version
from core.operations.servable import MOST_REMADE_S, NOW, Servable
from core.store.database import tables
from core.store.database.repository import Repository
from core.store.database.statements import insert_new, upsert
from core.store.operators.exclusions import ExclusionsReader, Left

Kind = Literal["weights", "checkpoint", "wanted", "lost"]
_PAGE: Final = 256  # versions that are read at once on the way back
_LOADING_S: Final = 1.0
_files, _policies = tables.version_files, tables.policies
_decode = codec.decoder(PolicyVersion).decode


class Kept(NamedTuple):
    """A version whose weights lie in the blobs."""

    version: PolicyRef
    made_at: datetime
    size: int
    is_rejected: bool = False


class VersionFilesReader(Repository):
    def kept(self, policy: PolicyName = BASE) -> list[Kept]:
        """Return the versions whose weights are kept, the oldest first."""
        same = and_(_policies.c.policy == _files.c.policy, _policies.c.version == _files.c.version)
        query = (
            select(_files.c.version, _files.c.bytes, _policies.c.created_at, _policies.c.state)
            .join(_policies, same)
            .where(_files.c.policy == policy, _files.c.kind == "weights")
            .order_by(_files.c.version)
        )
        return [
            Kept(_ref(policy, row.version), from_micros(row.created_at), row.bytes, row.state == "rejected")
            for row in self._connection.execute(query)
        ]

    def is_kept(self, version: PolicyRef) -> bool:
        query = select(_files.c.version).where(_is(version), _files.c.kind == "weights")
        return self._connection.execute(query).scalar() is not None

    def wanted(self, policy: PolicyName = BASE) -> list[PolicyRef]:
        """Return the versions that the learner shall make again."""
        return list(self._of_kind("wanted", policy))

    def servable(self, versions: Iterable[PolicyRef]) -> dict[PolicyRef, Servable]:
        """Return how soon each of these versions can be served."""
        pasts: dict[PolicyName, _Past] = {}
        found = {}
        for version in versions:
            if version.policy not in pasts:
                pasts[version.policy] = self._past(version.policy)
            found[version] = pasts[version.policy].servable(version)
        return found

    def _past(self, policy: PolicyName) -> "_Past":
        costs: dict[PolicyRef, float | str] = dict.fromkeys(self._of_kind("checkpoint", policy), 0.0)
        costs |= {version: why or "" for version, why in self._of_kind("lost", policy).items()}
        left = ExclusionsReader(self._connection).left()
        return _Past({kept.version for kept in self.kept(policy)}, costs, left, self._made_up_to)

    def _of_kind(self, kind: Kind, policy: PolicyName) -> dict[PolicyRef, str | None]:
        chosen = _files.c.policy == policy, _files.c.kind == kind
        query = select(_files.c.version, _files.c.why).where(*chosen).order_by(_files.c.version)
        return {_ref(policy, row.version): row.why for row in self._connection.execute(query)}

    def _made_up_to(self, version: PolicyRef) -> list[PolicyVersion]:
        """Return the newest published versions up to this one."""
        chosen = _policies.c.policy == version.policy, _policies.c.version <= version.version
        query = select(_policies.c.record).where(*chosen).order_by(_policies.c.version.desc()).limit(_PAGE)
        return [_decode(row.record) for row in self._connection.execute(query) if row.record is not None]


class VersionFiles(VersionFilesReader):
    """The files of versions: whoever makes or deletes some says so here."""

    def keep(self, version: PolicyRef, size: int) -> None:
        """Note that a version's weights lie in the blobs, again or for the first time."""
        self._connection.execute(delete(_files).where(_is(version), _files.c.kind.in_(("wanted", "lost"))))
        upsert(self._connection, _files, [_row(version, "weights", size)])
        self._wake_watchers()

    def find(self, version: PolicyRef) -> None:
        """Note weights that were found in the blobs, where they are not known."""
        insert_new(self._connection, _files, [_row(version, "weights")])

    def drop(self, version: PolicyRef) -> None:
        """Note that a version's weights are no longer in the blobs."""
        self._remove(version, "weights")

    def want(self, version: PolicyRef) -> None:
        insert_new(self._connection, _files, [_row(version, "wanted")])

    def want_no_more(self, version: PolicyRef) -> None:
        self._remove(version, "wanted")

    def give_up(self, version: PolicyRef, why: str) -> None:
        """Note that a version that was wanted cannot be made again."""
        self._remove(version, "wanted")
        upsert(self._connection, _files, [_row(version, "lost", why=why)])
        self._wake_watchers()

    def try_again(self, policy: PolicyName = BASE) -> None:
        """Forget what could not be made: another learner may know how."""
        self._connection.execute(delete(_files).where(_files.c.policy == policy, _files.c.kind == "lost"))

    def put_checkpoints(self, versions: Iterable[PolicyRef], policy: PolicyName = BASE) -> None:
        """Note the checkpoints that there are now."""
        self._connection.execute(delete(_files).where(_files.c.policy == policy, _files.c.kind == "checkpoint"))
        insert_new(self._connection, _files, [_row(version, "checkpoint") for version in versions])

    def _remove(self, version: PolicyRef, kind: Kind) -> None:
        self._connection.execute(delete(_files).where(_is(version), _files.c.kind == kind))


class _Past:
    """The versions of one policy, with what it costs to make each again."""

    def __init__(
        self,
        there: Set[PolicyRef],
        costs: Mapping[PolicyRef, float | str],
        left: Mapping[PolicyRef, Left],
        made_up_to: Callable[[PolicyRef], Iterable[PolicyVersion]],
    ) -> None:
        """`costs`: seconds from where the making of a version begins, or why it cannot be made, as far as known.

        `left`: of the lines that exclusions left behind the first versions."""
        self._there, self._costs, self._made_up_to = there, dict(costs), made_up_to
        self._left: dict[PolicyRef, Left | None] = dict(left)
        self._first_left = {each.policy: each for each in sorted(left, key=lambda each: -each.version)}
        self._made: dict[PolicyRef, PolicyVersion] = {}

    def servable(self, version: PolicyRef) -> Servable:
        left = self._left_by(version)
        if left is not None:
            why = f"exclusion {left.exclusion_id} took out what it, or a version before it, learned: {left.why}"
            return Servable(servable="lost", lost=why, exclusion_id=left.exclusion_id)
        if version in self._there:
            return NOW
        cost = self._cost(version)
        if not isinstance(cost, str) and cost > MOST_REMADE_S:
            cost = f"making it again would take about {cost:.0f} s, of at most {MOST_REMADE_S:.0f}"
        if isinstance(cost, str):
            return Servable(servable="lost", lost=cost)
        return Servable(servable="rebuild", about_s=round(cost + _LOADING_S, 1))

    def _left_by(self, version: PolicyRef) -> Left | None:
        """Go back to the first version that was left behind, if it descends from one."""
        way: list[PolicyRef] = []
        step: PolicyRef | None = version
        while step is not None and step not in self._left:
            first = self._first_left.get(step.policy)
            if first is None or step < first:
                step = None
                break
            way.append(step)
            made = self._find(step)
            step = None if made is None else made.parent
        left = None if step is None else self._left.get(step)
        self._left |= dict.fromkeys(way, left)
        return left

    def _cost(self, version: PolicyRef) -> float | str:
        """Go back to where its making may begin, and add up what the updates since took."""
        way: list[PolicyVersion] = []
        while (cost := self._costs.get(version)) is None:
            made = self._find(version)
            if made is None or made.is_proposed:
                cost = f"version {version} " + ("is unknown" if made is None else "was proposed, and not made here")
            elif made.parent is None:
                cost = 0.0  # the given model
            else:
                way.append(made)
                version = made.parent
                continue
            self._costs[version] = cost
        for made in reversed(way):
            cost = cost if isinstance(cost, str) else cost + made.metrics.get("seconds_updating", 0.0)
            self._costs[made.version] = cost
        return cost

    def _find(self, version: PolicyRef) -> PolicyVersion | None:
        if version not in self._made:
            self._made |= {made.version: made for made in self._made_up_to(version)}
        return self._made.get(version)


def _ref(policy: PolicyName, version: int) -> PolicyRef:
    return PolicyRef(policy, Version(version))


def _is(version: PolicyRef) -> ColumnElement[bool]:
    return and_(_files.c.policy == version.policy, _files.c.version == version.version)


def _row(version: PolicyRef, kind: Kind, size: int = 0, why: str | None = None) -> dict[str, Any]:
    return {"policy": version.policy, "version": version.version, "kind": kind, "bytes": size, "why": why}
