"""What operators excluded from learning: turns of some users, of a period, or turns by their ids."""

from collections.abc import Iterable
from datetime import datetime

import msgspec

from core.events import Completion
from core.ids import InferenceId, Namespace, UserHash


class Exclusion(msgspec.Struct, frozen=True, kw_only=True):
    """The turns that meet all that is given here; what is empty or None asks for nothing."""

    namespace: Namespace | None = None
    users: frozenset[UserHash] = frozenset()
    turns: frozenset[InferenceId] = frozenset()
    begin: datetime | None = None
    end: datetime | None = None
    """The turns began at or after `begin`, and before `end`."""

    def covers(self, turn: Completion) -> bool:
        return (
            self.namespace in (None, turn.namespace)
            and (not self.users or turn.user_id in self.users)
            and (not self.turns or turn.inference_id in self.turns)
            and (self.begin is None or turn.received_at >= self.begin)
            and (self.end is None or turn.received_at < self.end)
        )


class Excluded(msgspec.Struct, frozen=True, kw_only=True):
    """An exclusion as it was ordered."""

    exclusion_id: int
    what: Exclusion
    why: str
    by: str
    at: datetime


def is_excluded(turn: Completion, ordered: Iterable[Excluded]) -> bool:
    return any(each.what.covers(turn) for each in ordered)
