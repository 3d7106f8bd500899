"""The data behind the console's curves: the newest rewards, each with its turn.

Queries are bounded by count and go along indexes, so their cost does not grow with the store. A turn whose latest
reward is void has none."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Select, Subquery, bindparam, func, select

from core import codec
from core.clock import from_micros
from core.events import Arm, Reward, VersionSpan
from core.ids import InferenceId, Namespace, PolicyName, PolicyRef, SessionId, Version
from core.store.database import tables
from core.store.database.repository import Repository

_rewards, _turns, _releases = tables.rewards, tables.turns, tables.releases


class Worth(msgspec.Struct, frozen=True, kw_only=True):
    """A turn and its latest reward. `version` is that of its last token, None for a turn without tokens."""

    inference_id: InferenceId
    session_id: SessionId
    version: PolicyRef | None
    workload: str
    received_at: datetime
    decided_at: datetime
    value: float
    components: dict[str, float]


class Call(msgspec.Struct, frozen=True):
    name: str
    arguments: str


class Conduct(msgspec.Struct, frozen=True, tag="completion"):
    """The fields of a turn's record that say what the turn did. The rest is skipped, not decoded."""

    workload: str
    arm: Arm
    policy_versions: tuple[VersionSpan, ...]
    token_ids: tuple[int, ...]
    tool_calls: tuple[Call, ...]
    latency_ms: float


class Told(msgspec.Struct, frozen=True):
    """What a message of a turn's request tells of a tool call that was executed: when, in `onward`."""

    role: str = ""
    tool_call_id: str = ""
    onward: dict[str, str] | None = None


class Deed(msgspec.Struct, frozen=True, tag="completion", kw_only=True):
    """The fields of a turn's record that say what it did for a task, and what that cost."""

    session_id: SessionId
    turn_index: int
    workload: str
    harness_version: str | None = None
    policy_versions: tuple[VersionSpan, ...]
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    tool_calls: tuple[Call, ...] = ()
    messages: tuple[Told, ...] = ()
    latency_ms: float


_decode_deed = codec.decoder(Deed).decode
_decode_reward = codec.decoder(Reward).decode
_decode_conduct = codec.decoder(Conduct).decode


def _rewards_from(order: ColumnElement[Any]) -> Subquery:
    """Build the query for a namespace's first `limit` rewards in that order."""
    columns = select(_rewards.c.inference_id, _rewards.c.sequence, _rewards.c.record)
    chosen = columns.where(_rewards.c.namespace == bindparam("namespace")).order_by(order)
    return chosen.limit(bindparam("limit")).subquery()


_newest = _rewards_from(_rewards.c.sequence.desc())
_oldest = _rewards_from(_rewards.c.sequence)


def _with_turns(found: Subquery, *columns: ColumnElement[Any]) -> Select[Any]:
    """Build a query over those rewards and their turns, the newest first; it omits turns not written yet."""
    joined = select(found.c.inference_id, *columns).join(_turns, _turns.c.inference_id == found.c.inference_id)
    return joined.order_by(found.c.sequence.desc())


_SPOKEN = (_turns.c.policy, _turns.c.policy_version, _turns.c.workload, _turns.c.received_at)
_WORTH = _with_turns(_newest, _newest.c.record.label("reward"), *_SPOKEN)
_OLDEST_WORTH = _with_turns(_oldest, _oldest.c.record.label("reward"), *_SPOKEN)
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

    def arms(self, inference_ids: Iterable[InferenceId]) -> dict[InferenceId, Arm]:
        """Return the arms that these turns were served by. Reads whole records: meant for hundreds of turns."""
        rows = self._connection.execute(
            select(_turns.c.inference_id, _turns.c.record).where(_turns.c.inference_id.in_(list(inference_ids)))
        )
        return {InferenceId(row.inference_id): _decode_conduct(row.record).arm for row in rows}

    def conduct(self, namespace: Namespace, limit: int) -> list[Conduct]:
        """Return what those same turns did. Reads whole records: meant for hundreds of turns."""
        return [_decode_conduct(row.record) for row in self._once(_CONDUCT, namespace, limit)]

    def deeds(self, namespace: Namespace, limit: int) -> list[tuple[Deed, Reward]]:
        """Return the same for what tasks cost, with each turn's latest reward."""
        return self._deeds(_DEEDS, namespace, limit)

    def oldest_deeds(self, namespace: Namespace, limit: int) -> list[tuple[Deed, Reward]]:
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

    def _worth(self, query: Select[Any], namespace: Namespace, limit: int) -> list[Worth]:
        found = [(row, _decode_reward(row.reward)) for row in self._once(query, namespace, limit)]
        return [_worth(row, reward) for row, reward in found if not reward.void]

    def _deeds(self, query: Select[Any], namespace: Namespace, limit: int) -> list[tuple[Deed, Reward]]:
        found = [(row, _decode_reward(row.reward)) for row in self._once(query, namespace, limit)]
        return [(_decode_deed(row.record), reward) for row, reward in found if not reward.void]

    def _once(self, query: Select[Any], namespace: Namespace, limit: int) -> list[Any]:
        """Return the first row of each turn, which is that of its latest revision."""
        first: dict[str, Any] = {}
        for row in self._connection.execute(query, {"namespace": namespace, "limit": limit}):
            first.setdefault(row.inference_id, row)
        return list(first.values())


def _ref(policy: str, version: int) -> PolicyRef:
    return PolicyRef(PolicyName(policy), Version(version))


def _worth(row: Any, reward: Reward) -> Worth:
    return Worth(
        inference_id=reward.inference_id,
        session_id=reward.session_id,
        version=None if row.policy_version is None else _ref(row.policy, row.policy_version),
        workload=row.workload,
        received_at=from_micros(row.received_at),
        decided_at=reward.decided_at,
        value=reward.value,
        components=reward.components,
    )
