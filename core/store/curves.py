"""The data behind the console's curves: the newest rewards, each with its turn.

Queries are bounded by count and go along indexes, so their cost does not grow with the store."""

from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Select, bindparam, func, select

from core import codec
from core.clock import from_micros
from core.events import Arm, Reward, VersionSpan
from core.ids import InferenceId, Namespace, PolicyName, PolicyRef, Version
from core.store.database import tables
from core.store.database.repository import Repository

_rewards, _turns, _releases = tables.rewards, tables.turns, tables.releases


class Worth(msgspec.Struct, frozen=True, kw_only=True):
    """A turn and its latest reward. `version` is that of its last token, None for a turn without tokens."""

    inference_id: InferenceId
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


_decode_reward = codec.decoder(Reward).decode
_decode_conduct = codec.decoder(Conduct).decode


_newest = (
    select(_rewards.c.inference_id, _rewards.c.sequence, _rewards.c.record)
    .where(_rewards.c.namespace == bindparam("namespace"))
    .order_by(_rewards.c.sequence.desc())
    .limit(bindparam("limit"))
    .subquery()
)


def _with_turns(*columns: ColumnElement[Any]) -> Select[Any]:
    """Build a query over the newest rewards and their turns, the newest first; it omits turns not written yet."""
    joined = select(_newest.c.inference_id, *columns).join(_turns, _turns.c.inference_id == _newest.c.inference_id)
    return joined.order_by(_newest.c.sequence.desc())


_SPOKEN = (_turns.c.policy, _turns.c.policy_version)
_WORTH = _with_turns(_newest.c.record.label("reward"), *_SPOKEN, _turns.c.workload, _turns.c.received_at)
_CONDUCT = _with_turns(_turns.c.record)


class Curves(Repository):
    """Queries over the newest rewards and their turns."""

    def worth(self, namespace: Namespace, limit: int) -> list[Worth]:
        """Return the turns of the newest `limit` revisions with their latest rewards, the newest first, each once."""
        return [_worth(row) for row in self._once(_WORTH, namespace, limit)]

    def conduct(self, namespace: Namespace, limit: int) -> list[Conduct]:
        """Return what those same turns did. Reads whole records: meant for hundreds of turns."""
        return [_decode_conduct(row.record) for row in self._once(_CONDUCT, namespace, limit)]

    def live_since(self, after_sequence: int) -> dict[PolicyRef, datetime]:
        """Return when each version first went live, among the releases after the given sequence."""
        rows = self._connection.execute(
            select(_releases.c.policy, _releases.c.version, func.min(_releases.c.at).label("at"))
            .where(_releases.c.sequence > after_sequence, _releases.c.state == "live")
            .group_by(_releases.c.policy, _releases.c.version)
        )
        return {_ref(row.policy, row.version): from_micros(row.at) for row in rows}

    def _once(self, query: Select[Any], namespace: Namespace, limit: int) -> list[Any]:
        """Return the first row of each turn, which is that of its latest revision."""
        first: dict[str, Any] = {}
        for row in self._connection.execute(query, {"namespace": namespace, "limit": limit}):
            first.setdefault(row.inference_id, row)
        return list(first.values())


def _ref(policy: str, version: int) -> PolicyRef:
    return PolicyRef(PolicyName(policy), Version(version))


def _worth(row: Any) -> Worth:
    reward = _decode_reward(row.reward)
    return Worth(
        inference_id=reward.inference_id,
        version=None if row.policy_version is None else _ref(row.policy, row.policy_version),
        workload=row.workload,
        received_at=from_micros(row.received_at),
        decided_at=reward.decided_at,
        value=reward.value,
        components=reward.components,
    )
