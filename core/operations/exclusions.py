"""What operators excluded from learning: turns of some users, of a period, or turns by their ids."""

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Final

import msgspec

from core.events import Completion, Reward
from core.ids import InferenceId, Namespace, PolicyRef, UserHash
from core.operations.servable import Servable

EXCLUDED: Final = "excluded"
"""The reason for which an excluded turn does not train."""


class Exclusion(msgspec.Struct, frozen=True, kw_only=True):
    """The turns that meet all conditions that are given here; an empty or None field is no condition."""

    namespace: Namespace | None = None
    users: frozenset[UserHash] = frozenset()
    turns: frozenset[InferenceId] = frozenset()
    begin: datetime | None = None
    end: datetime | None = None
    """The turns began at or after `begin`, and before `end`."""

    def covers(self, turn: Completion, reward: Reward | None = None) -> bool:
        """Return whether the turn, or this reward of it, is excluded; users are also those who spoke of the turn."""
        users = {turn.user_id, *(() if reward is None else reward.said_by)}
        return self.covers_one(turn.namespace, users, turn.inference_id, turn.received_at)

    def covers_one(
        self, namespace: str, users: Collection[str | None], inference_id: str, received_at: datetime
    ) -> bool:
        """Return whether a turn, which may be gone, is excluded. `users`: whose it was, and those who spoke of it."""
        return (
            self.namespace in (None, namespace)
            and (not self.users or not self.users.isdisjoint(users))
            and (not self.turns or inference_id in self.turns)
            and (self.begin is None or received_at >= self.begin)
            and (self.end is None or received_at < self.end)
        )


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody asks to exclude; `version`: only turns that this version learned from."""

    namespace: Namespace | None = None
    users: tuple[UserHash, ...] = ()
    turns: tuple[InferenceId, ...] = ()
    begin: datetime | None = None
    end: datetime | None = None
    version: PolicyRef | None = None


class Foreseen(msgspec.Struct, frozen=True, kw_only=True):
    """What an exclusion changes. The versions after `back_to` are abandoned; it is None where none learned from it."""

    selected: int
    """Turns in the store that are excluded."""
    learned: int = 0
    """Excluded turns, or turns of which excluded users spoke, that versions up to the newest learned from."""
    gone: int = 0
    """Turns that versions learned from and that were deleted: nobody can tell whether they are excluded."""
    abandoned: tuple[PolicyRef, ...] = ()
    updates: int = 0
    """Updates that made the versions whose other turns are learned again."""
    again: int = 0
    """Other turns of the abandoned versions, which are learned again; also of versions that were abandoned earlier, for
    whatever reason, and had learned from an excluded turn."""
    again_s: float = 0.0
    """About how many seconds that takes, by what it took the first time."""
    back_to: PolicyRef | None = None
    soon: Servable | None = None
    """How soon that version can be served."""
    rollback: PolicyRef | None = None
    """The version that is ordered to serve again; None where no abandoned version serves."""
    refused: tuple[PolicyRef, ...] = ()
    """Candidates that will serve nobody."""


RewardKey = tuple[InferenceId, int]
"""A reward by its turn and its revision."""


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What was found when an exclusion was ordered, while its turns were still in the store.

    By this the learner does the same whether it reads of the exclusion before the releases that follow, or after."""

    left: tuple[PolicyRef, ...] = ()
    """The first version that is left because of it, of each lineage that learned from it."""
    learned: frozenset[RewardKey] = frozenset()
    """The excluded rewards that versions learned from."""
    order_id: int | None = None
    """The order to roll back, where one was given."""


NO_FINDINGS: Final = Findings()


class Excluded(msgspec.Struct, frozen=True, kw_only=True):
    """An exclusion as it was ordered."""

    exclusion_id: int
    what: Exclusion
    why: str
    by: str
    at: datetime
    found: Findings = NO_FINDINGS


def is_excluded(turn: Completion, reward: Reward | None, ordered: Iterable[Excluded]) -> bool:
    return any(each.what.covers(turn, reward) for each in ordered)
