"""Orders to erase what a user said, or a session, from everything that keeps it, and what became of each.

A session is erased whole: its later turns repeat the words of the earlier ones. An order erases the turns that arrived
before it, and all that is known of them; what is said afterwards is another matter. It is obeyed place by place (log,
store, archive, weights, ...), each of which is a step that may be repeated, and ends with a signed statement."""

from collections.abc import Iterable
from datetime import datetime
from typing import Final, Literal

import msgspec

from core.events import Completion, DeadLetter, Event, Outcome, Reward, SessionEnded
from core.ids import InferenceId, Namespace, SessionId, UserHash
from core.text.named import names
from core.unstored import without_words

ErasedKind = Literal["user", "session", "namespace", "organisation"]
ErasureState = Literal["ordered", "done"]
ERASED: Final = "erased"
"""The reason for which a turn that was erased never trains."""

FIRST: Final = "first"
"""Marks a step that was done with the order, and is to be done again once nobody brings words there any more."""


class Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was done in one place: `removed` counts things by their names, none of which is anybody's word.

    `digest` is of the list of what was removed there (BLAKE3 of ids, offsets or paths, a line each, in order). `note`
    says what could not be removed, and why."""

    removed: dict[str, int] = {}
    digest: str = ""
    note: str = ""
    names: tuple[str, ...] = ()  # of files that others have
    withdrawn: tuple[str, ...] = ()  # digests of versions that lost their weights: no host may keep them
    marks: dict[str, int] = {}  # where the log ended when it was read, for the steps that follow


class Foreseen(msgspec.Struct, frozen=True):
    """The cost of an order as it was said when it was given: updates to make again, and the time they took before."""

    updates: int
    seconds: float


class Erasure(msgspec.Struct, frozen=True, kw_only=True):
    """An order to erase. `subject` is a user's hash, a session's id, a namespace or an organisation's policy.

    An organisation's order has the `parts`, one for each of its `namespaces`, that erase what was said there; it does
    the rest itself. `waits_for`: what it waits for now.

    `sessions` are those found so far; `exclusions` are the orders that keep their turns out of learning; `steps` are
    the places that are done, and `statement` is what was signed at the end."""

    erasure_id: int
    namespace: Namespace
    kind: ErasedKind
    subject: str
    why: str
    by: str
    ordered_at: datetime
    deadline_at: datetime
    sessions: tuple[SessionId, ...] = ()
    exclusions: tuple[int, ...] = ()
    waits_for: str = ""
    done_at: datetime | None = None
    statement: str | None = None
    steps: dict[str, Step] = {}
    foreseen: Foreseen | None = None  # None: nobody looked
    namespaces: tuple[Namespace, ...] = ()
    parts: tuple[int, ...] = ()
    origins: tuple[str, ...] = ()  # the orders of other clusters, as `frankfurt/7`, that it stands for

    @property
    def state(self) -> ErasureState:
        return "ordered" if self.done_at is None else "done"


class Subjects:
    """What orders in force erase, for whoever reads the log: each event that touches it is to become a tombstone."""

    def __init__(self, orders: Iterable[Erasure] = (), turns: Iterable[InferenceId] = ()) -> None:
        """Name what orders erase; `turns` are those of their sessions, for outcomes that name nothing else."""
        self._users: dict[tuple[Namespace, UserHash], datetime] = {}
        self._sessions: dict[tuple[Namespace, SessionId], datetime] = {}
        self._whole: dict[Namespace, datetime] = {}
        self._namespaces = set[Namespace]()
        self.turns = set(turns)
        for order in orders:
            self._namespaces.add(order.namespace)
            if order.kind == "user":
                user = order.namespace, UserHash(order.subject)
                self._users[user] = max(order.ordered_at, self._users.get(user, order.ordered_at))
            elif order.kind == "namespace":
                self._whole[order.namespace] = max(order.ordered_at, self._whole.get(order.namespace, order.ordered_at))
            for session in order.sessions:
                self.add(order.namespace, session, order.ordered_at)

    def __bool__(self) -> bool:
        return bool(self._users or self._sessions or self._whole)

    def names(self, raw: bytes) -> bool:
        """Return whether bytes that are no event name one of them, in its namespace."""
        return any(names(raw, namespace, self._ids(namespace)) for namespace in self._namespaces)

    def _ids(self, namespace: Namespace) -> set[str]:
        known = (*self._users, *self._sessions)
        return {*self.turns, *(each for of, each in known if of == namespace)}

    def add(self, namespace: Namespace, session: SessionId, until: datetime) -> None:
        key = namespace, session
        self._sessions[key] = max(until, self._sessions.get(key, until))

    def are_of(self, event: Event) -> bool:
        """Return whether an event is to be erased. A user's turn makes its whole session be."""
        match event:
            case Completion():
                by_user = None if event.user_id is None else self._users.get((event.namespace, event.user_id))
                until = by_user or self._whole.get(event.namespace)
                if until is not None and event.received_at < until:
                    self.add(event.namespace, event.session_id, until)
                found = self._is_of_session(event.namespace, event.session_id, event.received_at)
                if found:
                    self.turns.add(event.inference_id)
                return found
            case Outcome():
                is_of_turn = event.inference_id is not None and event.inference_id in self.turns
                return is_of_turn or self._is_of_session(event.namespace, event.session_id, event.received_at)
            case Reward():
                return event.inference_id in self.turns
            case _:
                return False

    def add_turn(self, inference_id: InferenceId, namespace: Namespace, session: SessionId, at: datetime) -> None:
        """Note a turn that is known elsewhere, if it is to be erased."""
        if self._is_of_session(namespace, session, at):
            self.turns.add(inference_id)

    def _is_of_session(self, namespace: Namespace, session: SessionId | None, at: datetime) -> bool:
        until = None if session is None else self._sessions.get((namespace, session))
        return until is not None and at < until

    def left(self, event: Event) -> Event:
        """Return what is left of an event that is erased."""
        return event if is_erased(event) else tombstone(event)

    def found(self, namespace: Namespace) -> list[SessionId]:
        return [session for of, session in self._sessions if of == namespace]


def is_erased(event: Event) -> bool:
    """Return whether an event is a tombstone already."""
    match event:
        case Completion():
            return ERASED in event.untrainable_reasons
        case Outcome():
            return event.source_version == ERASED
        case Reward():
            return event.why == ERASED
        case DeadLetter():
            return event.reason == ERASED
        case _:
            return False


def tombstone(event: Event) -> Event:
    """Return what is left of an event: its ids and times, and how much it was; no word, and nobody's name."""
    replace = msgspec.structs.replace
    match event:
        case Completion():
            return tombstone_of_turn(event)
        case Outcome():
            return replace(
                event, value=None, withdrawn=True, evidence=None, edits=(), tags={}, user_id=None, key_id=None,
                target_range=None, target_call=None, source_version=ERASED,
            )  # fmt: skip
        case Reward():
            return replace(
                event, value=0.0, void=True, components={}, credits=(), hints=(), edits=(), outcome_ids=(), why=ERASED
            )
        case DeadLetter():
            return replace(event, raw=b"", reason=ERASED)
        case SessionEnded():
            return event
    raise AssertionError(f"a {type(event).__name__} is nobody's word")


def tombstone_of_turn(turn: Completion) -> Completion:
    """Return what is left of a turn, as `tombstone` says."""
    left = without_words(turn)
    reasons = tuple(dict.fromkeys((*left.untrainable_reasons, ERASED)))
    return msgspec.structs.replace(
        left, user_id=None, key_id=None, learn=False, tool_calls=(), ignored=(), untrainable_reasons=reasons,
        harness_version=None, environment_image=None,
    )  # fmt: skip


def without_hints(reward: Reward) -> Reward:
    """Return a reward without what users said or wrote: what manifests and journals keep of one that was erased."""
    return msgspec.structs.replace(reward, hints=(), edits=(), components={}, why=ERASED)
