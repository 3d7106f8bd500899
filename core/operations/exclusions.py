"""What operators excluded from learning: turns of some users, of a period, or turns by their ids."""

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Final

import msgspec

from core.events import Completion, Reward
from core.ids import InferenceId, Namespace, PolicyRef, UserHash
from core.operations.servable import Servable

EXCLUDED: Final = "excluded"
"""Why a turn teaches nothing that an operator excluded."""


class Exclusion(msgspec.Struct, frozen=True, kw_only=True):
    """The turns that meet all that is given here; what is empty or None asks for nothing."""

    namespace: Namespace | None = None
    users: frozenset[UserHash] = frozenset()
    turns: frozenset[InferenceId] = frozenset()
    begin: datetime | None = None
    end: datetime | None = None
    """The turns began at or after `begin`, and before `end`."""

    def covers(self, turn: Completion, reward: Reward | None = None) -> bool:
        """Return whether the turn is meant, or what this reward makes of it: users are also those who spoke of it."""
        users = {turn.user_id, *(() if reward is None else reward.said_by)}
        return self.covers_one(turn.namespace, users, turn.inference_id, turn.received_at)

    def covers_one(
        self, namespace: str, users: Collection[str | None], inference_id: str, received_at: datetime
    ) -> bool:
        """Return whether a turn is meant that may itself be gone. `users`: whose it was, and those who spoke of it."""
        return (
            self.namespace in (None, namespace)
            and (not self.users or not self.users.isdisjoint(users))
            and (not self.turns or inference_id in self.turns)
            and (self.begin is None or received_at >= self.begin)
            and (self.end is None or received_at < self.end)
        )


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody wants to exclude, in words of an exclusion; `version`: only turns that it learned from."""

    namespace: Namespace | None = None
    users: tuple[UserHash, ...] = ()
    turns: tuple[InferenceId, ...] = ()
    begin: datetime | None = None
    end: datetime | None = None
    version: PolicyRef | None = None


class Foreseen(msgspec.Struct, frozen=True, kw_only=True):
    """What an exclusion changes. The versions after `back_to` are abandoned; without one, none learned from it."""

    selected: int
    """Turns in the store that are excluded."""
    learned: int = 0
    """Turns of these, or of which its users spoke, that versions learned from, up to the newest."""
    gone: int = 0
    """Turns that versions learned from, and of which nobody can tell whether they are excluded: they were deleted."""
    abandoned: tuple[PolicyRef, ...] = ()
    updates: int = 0
    """Updates that made the versions of which others are learned again."""
    again: int = 0
    """Other turns that they learned from, which are learned again: also those of versions that were abandoned before,
    for whatever reason, and had learned from what is excluded."""
    again_s: float = 0.0
    """About how many seconds of learning that is, by what it took the first time."""
    back_to: PolicyRef | None = None
    soon: Servable | None = None
    """How soon that version can be served."""
    rollback: PolicyRef | None = None
    """The version that is ordered to serve again; None where nobody is served an abandoned one."""
    refused: tuple[PolicyRef, ...] = ()
    """Candidates that will serve nobody."""


RewardKey = tuple[InferenceId, int]
"""A reward by its turn and its revision."""


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What an exclusion found as it was ordered, when all that it meant was in the store. It says which way is gone.

    So it is the same whether the learner hears of the exclusion before the releases that follow it, or after them."""

    left: tuple[PolicyRef, ...] = ()
    """Of each line that learned from it, the first version that is left behind because of it."""
    learned: frozenset[RewardKey] = frozenset()
    """The excluded rewards that versions learned from."""
    order_id: int | None = None
    """The order to go back, where one was given."""


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
