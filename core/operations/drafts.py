"""Drafts of eval cases, mined from sessions of users, and what a person decided about them."""

from datetime import datetime
from typing import Any, Literal, Protocol

import msgspec

from core.ids import InferenceId, Namespace, SessionId

DraftKind = Literal["answer", "task"]
Verdict = Literal["accept", "refuse", "edit"]
DraftState = Literal["waiting", "accepted", "refused"]
REUSE = "Only to evaluate: never trained on, and not passed on. It ends with the consent of the session."
"""The rules of reuse that a draft begins with."""


class DraftCase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a person may change of a draft before it becomes a case.

    An `answer` is one answer to `messages`, which `checker` judges (JSON, as in a case's file). A `task` is work on a
    repository, which `instruction` asks for: `dockerfile` makes the state that it was in, and `tests`, a command,
    judges. `answer` is what the user kept: it is the case's solution, and so kept out of training."""

    name: str
    kind: DraftKind
    group: str
    messages: tuple[dict[str, Any], ...] = ()
    instruction: str = ""
    answer: str = ""
    checker: str = ""
    tests: str = ""
    dockerfile: str = ""
    reuse: str = REUSE


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A draft, and where it comes from.

    `repository` is its state, as far as turns and tags tell; `why` names the outcomes that show a good answer."""

    draft_id: str
    session_id: SessionId
    inference_id: InferenceId
    namespace: Namespace
    workload: str
    repository: dict[str, str]
    why: str
    case: DraftCase
    state: DraftState = "waiting"
    decided_by: str | None = None
    decided_at: datetime | None = None
    note: str | None = None
    file: str | None = None  # of the case that it became, within the suite


class Reviewed(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the audit: who decided what, when; `case` is what an edit left."""

    at: datetime
    by: str
    draft_id: str
    verdict: Verdict
    note: str | None = None
    case: DraftCase | None = None


class Drafts(Protocol):
    """The drafts of a suite. Its methods read and write a disk: keep them off the event loop."""

    def listed(self, namespace: Namespace | None) -> list[Draft]:
        """Return the drafts of a namespace, or of all, those first that wait."""
        ...

    def decide(self, namespace: Namespace | None, reviewed: Reviewed) -> Draft:
        """Carry a decision out, and put it into the audit; an accepted draft is a case of the suite from then on.

        Raises NotFound, Conflict for one that was decided already, and InvalidRequest naming what is wrong with the
        case."""
        ...
