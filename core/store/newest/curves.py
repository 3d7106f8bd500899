"""The data behind the console's curves: the newest rewards, each with its turn.

Queries are bounded by count and go along indexes, so their cost does not grow with the store. A turn whose latest
reward is void has none."""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Select, Subquery, bindparam, func, select

from core import codec
from core.clock import from_micros, to_micros
from core.events import Arm, Reward, VersionSpan
from core.ids import InferenceId, Namespace, PolicyName, PolicyRef, SessionId, Version
from core.store.database import tables
from core.store.database.repository import Repository

_rewards, _turns, _releases = tables.rewards, tables.turns, tables.releases


class Worth(msgspec.Struct, frozen=True, kw_only=True):
    """A turn and its latest reward. `version` is that of its last token, None for a turn without tokens.

    `arm` is None where nobody noted it."""

    inference_id: InferenceId
    session_id: SessionId
    user_id: str | None
    version: PolicyRef | None
    workload: str
    arm: Arm | None
    received_at: datetime
    decided_at: datetime
    value: float
    components: dict[str, float]


class CallMade(msgspec.Struct, frozen=True):
    name: str
    arguments: str


class Conduct(msgspec.Struct, frozen=True, tag="completion"):
    """The fields of a turn's record that say what the turn did. The rest is skipped, not decoded."""

    workload: str
    arm: Arm
    policy_versions: tuple[VersionSpan, ...]
    token_ids: tuple[int, ...]
    tool_calls: tuple[CallMade, ...]
    latency_ms: float


class Told(msgspec.Struct, frozen=True):
    """What a message of a turn's request tells of a tool call that was executed: when, in `onward`."""

    role: str = ""
    tool_call_id: str = ""
    onward: dict[str, str] | None = None


class TaskDeed(msgspec.Struct, frozen=True, tag="completion", kw_only=True):
    """The fields of a turn's record that say what it did for a task, and what that cost."""

    session_id: SessionId
    turn_index: int
    workload: str
    harness_version: str | None = None
    policy_versions: tuple[VersionSpan, ...]
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    tool_calls: tuple[CallMade, ...] = ()
    messages: tuple[Told, ...] = ()
    latency_ms: float


_NEWEST = (1 << 63) - 1
_decode_deed = codec.decoder(TaskDeed).decode
_decode_reward = codec.decoder(Reward).decode
_decode_conduct = codec.decoder(Conduct).decode


def _rewards_from(order: ColumnElement[Any], *which: ColumnElement[bool]) -> Subquery:
    """Build the query for a namespace's first `limit` rewards in that order, among `which`."""
    columns = select(_rewards.c.inference_id, _rewards.c.sequence, _rewards.c.record)
    chosen = columns.where(_rewards.c.namespace == bindparam("namespace"), *which).order_by(order)
    return chosen.limit(bindparam("limit")).subquery()


_newest = _rewards_from(_rewards.c.sequence.desc())
_oldest = _rewards_from(_rewards.c.sequence)
_first_before = _rewards_from(
    _rewards.c.sequence.desc(), _rewards.c.revision == 0, _rewards.c.sequence <= bindparam("newest")
)


def _with_turns(found: Subquery, *columns: ColumnElement[Any]) -> Select[Any]:
    """Build a query over those rewards and their turns, the newest first; it omits turns not written yet."""
    joined = select(found.c.inference_id, *columns).join(_turns, _turns.c.inference_id == found.c.inference_id)
    return joined.order_by(found.c.sequence.desc())


_SPOKEN = tuple(_turns.c[name] for name in ("policy", "policy_version", "workload", "arm", "received_at", "user_id"))
_WORTH = _with_turns(_newest, _newest.c.record.label("reward"), *_SPOKEN)
_OLDEST_WORTH = _with_turns(_oldest, _oldest.c.record.label("reward"), *_SPOKEN)
_FIRST_WORTH = _with_turns(_first_before, _first_before.c.record.label("reward"), *_SPOKEN)
_DEEDS = _with_turns(_newest, _newest.c.record.label("reward"), _turns.c.record)
_OLDEST_DEEDS = _with_turns(_oldest, _oldest.c.record.label("reward"), _turns.c.record)
_CONDUCT = _with_turns(_newest, _turns.c.record)


class Curves(Repository):
    """Queries over the newest rewards and their turns."""

    def worth(self, namespace: Namespace, limit: int) -> list[Worth]:
        """Return the turns of the newest `limit` revisions with their latest rewards, the newest first, each once."""
        return self._worth(_WORTH, namespace, limit)

    def oldest(self, namespace: Namespace, limit: int) -> list[Worth]:
        """Return the turns of the oldest `limit` revisions, each once, with the latest of these: before learning."""
        return self._worth(_OLDEST_WORTH, namespace, limit)

    def first_worth(self, namespace: Namespace, limit: int, before: datetime | None = None) -> list[Worth]:
        """Return the newest `limit` turns with the rewards they were first given, the newest first.

        So turns of any age are looked at alike, with none of what users said of them later. `before`: none that was
        rewarded after that."""
        newest = _NEWEST if before is None else self._sequence_at(namespace, before)
        return self._worth(_FIRST_WORTH, namespace, limit, newest=newest)

    def _sequence_at(self, namespace: Namespace, when: datetime) -> int:
        """Return the sequence of a reward about as old as `when`, before which all are: -1 where there is none.

        Rewards are numbered about in the order of their time, which has no index: this halves the span of numbers
        until it is there, each time with a step along an index."""
        last = self._connection.execute(select(func.max(_rewards.c.sequence))).scalar()
        at, low, high, found = to_micros(when), 0, last or 0, -1
        while low <= high:
            middle = (low + high) // 2
            row = self._connection.execute(
                select(_rewards.c.sequence, _rewards.c.decided_at)
                .where(_rewards.c.namespace == namespace, _rewards.c.sequence <= middle)
                .order_by(_rewards.c.sequence.desc())
                .limit(1)
            ).first()
            if row is None or row.decided_at <= at:
                found, low = found if row is None else row.sequence, middle + 1
            else:
                high = row.sequence - 1
        return found

    def first_rewarded(self, version: PolicyRef, limit: int) -> Counter[str]:
        """Count the turns of the version that was first to serve that have a reward, by user, or session without one.

        Of all namespaces together. It looks at the oldest `limit` rewards alone."""
        oldest = select(_rewards.c.inference_id).where(_rewards.c.revision == 0)
        found = oldest.order_by(_rewards.c.sequence).limit(limit).subquery()
        units = select(_turns.c.namespace, _turns.c.user_id, _turns.c.session_id).select_from(found)
        its = _turns.c.policy == version.policy, _turns.c.policy_version == version.version
        rows = self._connection.execute(units.join(_turns, _turns.c.inference_id == found.c.inference_id).where(*its))
        return Counter(f"{row.namespace} {row.user_id or row.session_id}" for row in rows)

    def arms(self, inference_ids: Iterable[InferenceId]) -> dict[InferenceId, Arm]:
        """Return the arms that these turns were served by. Reads whole records: meant for hundreds of turns."""
        rows = self._connection.execute(
            select(_turns.c.inference_id, _turns.c.record).where(_turns.c.inference_id.in_(list(inference_ids)))
        )
        return {InferenceId(row.inference_id): _decode_conduct(row.record).arm for row in rows}

    def conduct(self, namespace: Namespace, limit: int) -> list[Conduct]:
        """Return what those same turns did. Reads whole records: meant for hundreds of turns."""
        return [_decode_conduct(row.record) for row in self._once(_CONDUCT, namespace, limit)]

    def deeds(self, namespace: Namespace, limit: int) -> list[tuple[TaskDeed, Reward]]:
        """Return the same for what tasks cost, with each turn's latest reward."""
        return self._deeds(_DEEDS, namespace, limit)

    def oldest_deeds(self, namespace: Namespace, limit: int) -> list[tuple[TaskDeed, Reward]]:
        """Return the same of the turns of the oldest `limit` revisions: what tasks cost before learning."""
        return self._deeds(_OLDEST_DEEDS, namespace, limit)

    def live_since(self, after_sequence: int) -> dict[PolicyRef, datetime]:
        """Return when each version first went live, among the releases after the given sequence."""
        rows = self._connection.execute(
            select(_releases.c.policy, _releases.c.version, func.min(_releases.c.at).label("at"))
            .where(_releases.c.sequence > after_sequence, _releases.c.state == "live")
            .group_by(_releases.c.policy, _releases.c.version)
        )
        return {_ref(row.policy, row.version): from_micros(row.at) for row in rows}

    def _worth(self, query: Select[Any], namespace: Namespace, limit: int, **bounds: int) -> list[Worth]:
        found = [(row, _decode_reward(row.reward)) for row in self._once(query, namespace, limit, **bounds)]
        return [_worth(row, reward) for row, reward in found if not reward.void]

    def _deeds(self, query: Select[Any], namespace: Namespace, limit: int) -> list[tuple[TaskDeed, Reward]]:
        found = [(row, _decode_reward(row.reward)) for row in self._once(query, namespace, limit)]
        return [(_decode_deed(row.record), reward) for row, reward in found if not reward.void]

    def _once(self, query: Select[Any], namespace: Namespace, limit: int, **bounds: int) -> list[Any]:
        """Return the first row of each turn, which is that of its latest revision."""
        first: dict[str, Any] = {}
        for row in self._connection.execute(query, {"namespace": namespace, "limit": limit, **bounds}):
            first.setdefault(row.inference_id, row)
        return list(first.values())


@lru_cache(maxsize=4096)
def _ref(policy: str, version: int) -> PolicyRef:
    return PolicyRef(PolicyName(policy), Version(version))


def _worth(row: Any, reward: Reward) -> Worth:
    return Worth(
        inference_id=reward.inference_id,
        session_id=reward.session_id,
        user_id=row.user_id,
        version=None if row.policy_version is None else _ref(row.policy, row.policy_version),
        workload=row.workload,
        arm=row.arm,
        received_at=from_micros(row.received_at),
        decided_at=reward.decided_at,
        value=reward.value,
        components=reward.components,
    )
