"""Drafts of eval cases as an operator sees them, who let them be used, and what was decided on them."""

from datetime import datetime
from typing import Literal

import msgspec

DraftState = Literal["waiting", "accepted", "rejected"]


class DraftDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What a person decided. `by` and `at` are None where a former build did not write them down."""

    by: str | None = None
    at: datetime | None = None
    why: str | None = None
    checker: str | None = None  # as TOML, of what was accepted
    group: str | None = None


class ListedDraft(msgspec.Struct, frozen=True, kw_only=True):
    """A draft in a list. `seen` names what its file says: whoever decides says what was looked at."""

    suite: str
    name: str
    state: DraftState
    seen: str
    namespace: str
    asks: str  # the first line of what the user said first
    received_at: datetime
    reward: float
    outcomes: tuple[str, ...]
    edited: bool  # the solution is what the user made of the answer
    decision: DraftDecision | None = None


class DraftMessage(msgspec.Struct, frozen=True):
    role: str
    content: str


class DraftChange(msgspec.Struct, frozen=True, kw_only=True):
    """An agent's change of a file: `write` its whole text, or replace `old` by `new`, once or everywhere."""

    kind: str
    path: str
    old: str
    new: str
    by_helper: bool  # a helper made it: another agent of the session


class DraftCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command that an agent ran, and how its last run ended; `doubt`: why it cannot be a test."""

    command: str
    exit_code: int | None
    failed_before: bool
    doubt: str | None
    chosen: bool


class DraftedWork(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent did with tools; `state`: the task in whose environment it began, None where nobody knows.

    `unseen`: what else may have changed files."""

    changes: tuple[DraftChange, ...]
    commands: tuple[DraftCommand, ...]
    unseen: tuple[str, ...]
    image: str | None
    state: str | None


class WholeDraft(msgspec.Struct, frozen=True, kw_only=True):
    """All of a draft: the request, the curated answer, the turn that it is of, and the rules of its reuse."""

    listed: ListedDraft
    messages: tuple[DraftMessage, ...]
    solution: str
    session: str
    turn: str
    versions: tuple[str, ...]
    reward_spec: str
    user: str | None  # its keyed hash
    key: str | None
    only_for: str
    work: DraftedWork | None = None  # of an agent's session


class SuiteDrafts(msgspec.Struct, frozen=True, kw_only=True):
    """The drafts of suites, the newest first, and those on which somebody decided, the last decision first.

    `problems`: what cannot be read, and why; `unlisted`: files of drafts beyond those that are looked at."""

    suites: tuple[str, ...]
    waiting: tuple[ListedDraft, ...] = ()
    decided: tuple[ListedDraft, ...] = ()
    problems: tuple[str, ...] = ()
    unlisted: int = 0


class Acceptance(msgspec.Struct, frozen=True, kw_only=True):
    """How a draft becomes a case: by a checker, or, for an agent's work, with a person's changes.

    `tests`: the numbers, from 1, of the commands that are its tests; None: all that can be."""

    checker: str | None = None
    group: str | None = None
    instruction: str | None = None
    tests: tuple[int, ...] | None = None


class Decider(msgspec.Struct, frozen=True, kw_only=True):
    """Whoever decides on a draft, and what of it was looked at."""

    namespace: str
    by: str
    seen: str
