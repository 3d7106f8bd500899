"""Orders that exclude turns from learning, and what became of them.

An order selects turns by who, where and when. From then on no reward of theirs trains, early or late, and what was
learned from them is unlearned: the learner goes back to before their first use and learns the rest again. An order that
names users means what they said of others' turns, too: a reward that has any of it does not train. Orders have
numbers, in which they become visible; a learner and a replay apply all that they find, so that the order in which two
were given does not matter.
"""

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Literal, Protocol

import msgspec

from core.events import VersionSpan
from core.ids import BASE, InferenceId, Namespace, PolicyName, PolicyRef, SessionId, UserHash


class SpokenTurn(Protocol):
    """What of a turn an order selects it by; `core.events.Completion` has it."""

    @property
    def inference_id(self) -> InferenceId: ...
    @property
    def session_id(self) -> SessionId: ...
    @property
    def namespace(self) -> Namespace: ...
    @property
    def user_id(self) -> UserHash | None: ...
    @property
    def key_id(self) -> str | None: ...
    @property
    def workload(self) -> str: ...
    @property
    def received_at(self) -> datetime: ...
    @property
    def policy_versions(self) -> tuple[VersionSpan, ...]: ...


class UsedTurn(Protocol):
    """What a manifest keeps of a turn that a version learned from; `core.events.Reward` has it."""

    @property
    def inference_id(self) -> InferenceId: ...
    @property
    def session_id(self) -> SessionId: ...
    @property
    def namespace(self) -> Namespace: ...
    @property
    def workload(self) -> str: ...
    @property
    def decided_at(self) -> datetime: ...
    @property
    def said_by(self) -> tuple[UserHash, ...]: ...


class Decided(Protocol):
    """What of a reward an order rules it by; `core.events.Reward` has it."""

    @property
    def decided_at(self) -> datetime: ...
    @property
    def said_by(self) -> tuple[UserHash, ...]: ...


class Selection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Turns of one namespace: those that fit each criterion that is given, by any of its values.

    `versions`: those that spoke the turn, or some of its tokens. `since` is the first moment and `until` the first one
    after, of the turns' arrival."""

    namespace: Namespace
    users: tuple[UserHash, ...] = ()
    sessions: tuple[SessionId, ...] = ()
    turns: tuple[InferenceId, ...] = ()
    keys: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    versions: tuple[PolicyRef, ...] = ()
    since: datetime | None = None
    until: datetime | None = None

    @property
    def is_empty(self) -> bool:
        """True when nothing but the namespace is given."""
        return self == Selection(namespace=self.namespace)

    def selects(self, turn: SpokenTurn, said_by: Collection[UserHash] = ()) -> bool:
        """Return whether a turn is among those that are meant, or one of which the users meant said something."""
        return (
            turn.namespace == self.namespace
            and (not self.users or turn.user_id in self.users or self.names_any(said_by))
            and (not self.sessions or turn.session_id in self.sessions)
            and (not self.turns or turn.inference_id in self.turns)
            and (not self.keys or turn.key_id in self.keys)
            and (not self.workloads or turn.workload in self.workloads)
            and (not self.versions or any(span.version in self.versions for span in turn.policy_versions))
            and (self.since is None or turn.received_at >= self.since)
            and (self.until is None or turn.received_at < self.until)
        )

    def selects_gone(self, used: UsedTurn) -> bool | None:
        """Return whether a turn was meant that is gone from the store; None where its reward does not say."""
        may_be = (
            used.namespace == self.namespace
            and (not self.sessions or used.session_id in self.sessions)
            and (not self.turns or used.inference_id in self.turns)
            and (not self.workloads or used.workload in self.workloads)
            and (self.since is None or used.decided_at >= self.since)
        )
        if not may_be:
            return False
        asks_for_others = self.users and not self.names_any(used.said_by)
        is_more_asked = asks_for_others or self.keys or self.versions or self.since or self.until
        return None if is_more_asked else True

    def names_any(self, users: Collection[UserHash]) -> bool:
        return any(user in self.users for user in users)


class Relearning(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the learner did about an order, and how far it has come; written by the learner, but for `withdrawn`.

    `first_use` is the first version of its line that learned from what is excluded, None where none did, and `start`
    the one before, from which it goes on. `made_again` of `updates` are done, at `per_s`, which leaves `left_s`.
    `emptied` updates held nothing else, `lost` ones could not be made again. `unknown` turns that the line learned from
    are gone from the store, and may have been meant. `version` is the newest that this made.

    `state`: `failed` where the learner could not go back, for the reason in `note`: what was learned stays, and none
    of it trains from then on; `withdrawn` where the order was lifted before any learner saw it: it never held."""

    first_use: PolicyRef | None = None
    start: PolicyRef | None = None
    updates: int = 0
    unknown: int = 0
    made_again: int = 0
    emptied: int = 0
    lost: int = 0
    per_s: float | None = None
    left_s: float | None = None
    version: PolicyRef | None = None
    note: str = ""
    state: Literal["taken", "failed", "withdrawn"] = "taken"
    began_at: datetime
    ended_at: datetime | None = None


class Exclusion(msgspec.Struct, frozen=True, kw_only=True):
    """An order to exclude turns; `lifted_at` is when another order took it back, for rewards decided from then on.

    `by` and `lifted_by` are names or fingerprints of API keys. `relearning` is None until the base policy's learner has
    seen it; those of other policies are in `relearnings`, once these learners have."""

    exclusion_id: int
    selection: Selection
    why: str
    by: str
    ordered_at: datetime
    lifted_at: datetime | None = None
    lifted_by: str | None = None
    lifted_why: str | None = None
    relearning: Relearning | None = None
    relearnings: dict[PolicyName, Relearning] = {}

    @property
    def is_obeyed(self) -> bool:
        """True once the base policy's learner has seen it, and no learner has anything left to make again."""
        found = (self.relearning, *self.relearnings.values())
        return all(each is not None and each.ended_at is not None for each in found)

    def of(self, policy: PolicyName) -> Relearning | None:
        """Return what a policy's learner did about it."""
        return self.relearning if policy == BASE else self.relearnings.get(policy)

    @property
    def is_failed(self) -> bool:
        """True where one policy's learner could not obey it."""
        return any(self.failed_in(policy) for policy in (BASE, *self.relearnings))

    def failed_in(self, policy: PolicyName) -> bool:
        found = self.of(policy)
        return found is not None and found.state == "failed"

    @property
    def is_withdrawn(self) -> bool:
        return self.relearning is not None and self.relearning.state == "withdrawn"

    def covers(self, decided_at: datetime) -> bool:
        """Return whether it rules a reward that was decided then."""
        return not self.is_withdrawn and (self.lifted_at is None or decided_at < self.lifted_at)


def is_excluded(exclusions: Iterable[Exclusion], turn: SpokenTurn, reward: Decided) -> bool:
    """Return whether a turn must not train with this reward."""
    return any(each.covers(reward.decided_at) and each.selection.selects(turn, reward.said_by) for each in exclusions)
