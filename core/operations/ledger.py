"""Records of the ledger: a turn, the outcomes reported about it, and its session."""

from datetime import datetime
from typing import NewType

import msgspec

from core.events import Environment, Outcome, Purpose
from core.ids import GroupId, InferenceId, Namespace, SessionId
from core.reward_spec import EffortSpec

SessionKey = NewType("SessionKey", tuple[Namespace, SessionId])


class Effort(msgspec.Struct, frozen=True, array_like=True):
    """Tokens by kind, calls, turns, and seconds on the critical path of tools.

    `tool_output` is the share of the prompt's new tokens that belongs to tools' answers, by length in characters."""

    thinking: int = 0
    tool_call: int = 0
    tool_output: int = 0
    answer: int = 0
    calls: int = 0  # the first of a turn
    parallel_calls: int = 0  # each further one
    turns: int = 0
    seconds: float = 0.0  # of the calls whose results the turn reads, where their times are told

    def __add__(self, other: "Effort") -> "Effort":
        return Effort(*map(sum, zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)))

    def weighed(self, spec: EffortSpec) -> float:
        return (
            spec.thinking * self.thinking
            + spec.tool_call * self.tool_call
            + spec.tool_output * self.tool_output
            + spec.answer * self.answer
            + spec.call * self.calls
            + spec.parallel_call * self.parallel_calls
            + spec.turn * self.turns
            + spec.second * self.seconds
        )


class CallPlace(msgspec.Struct, frozen=True, array_like=True):
    """A tool call of a turn, and the output tokens [start, end) that it was read from; `refused`: by its tool."""

    id: str
    start: int
    end: int
    refused: bool = False


class Facts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Facts about a turn.

    `before`: the effort of the path that leads to the turn. `context_tokens`: prompt and answer. `asked`: a digest of
    what the turn adds to its conversation. `whole`: neither cut off nor failed. `reports_shown`: its client says
    when it is shown. `tokens`: of the output; 0 where spans of them are not credited. `calls`: those whose place is
    known. `answers`: output tokens [start, end) of the answer's text, where there are others, too. `claims`: those that
    make a claim without evidence."""

    parent_id: InferenceId | None = None
    group_id: GroupId | None = None
    asked: str = ""
    whole: bool = True
    effort: Effort = Effort()
    before: Effort = Effort()
    context_tokens: int = 0
    malformed_call: bool = False
    cut_off: bool = False
    empty_answer: bool = False
    repeated_answer: bool = False
    unbacked_claim: bool = False
    reports_shown: bool = False
    tokens: int = 0
    calls: tuple[CallPlace, ...] = ()
    answers: tuple[tuple[int, int], ...] = ()
    claims: tuple[tuple[int, int], ...] = ()
    environment: Environment = "production"


class LedgerEntry(msgspec.Struct, kw_only=True):
    """One row of `ledger_turns`.

    `due_at` is None when no wait runs; `closed` says that the waits ran out for good; `revision` is -1, `value` and
    `decided_at` None before the first reward; outcomes whose log offset is at least `seen_offset` came after the last
    reward; `on_spans` is a digest of what that says of some of the turn's tokens, None when it is nothing."""

    inference_id: InferenceId
    session_id: SessionId
    namespace: Namespace
    workload: str
    purpose: Purpose
    turn_index: int
    empty: bool
    partition: int
    facts: Facts
    opened_at: datetime
    due_at: datetime | None = None
    closed: bool = False
    revision: int = -1
    value: float | None = None
    decided_at: datetime | None = None
    seen_offset: int = 0
    on_spans: str | None = None

    @property
    def silent(self) -> bool:
        """A suggestion that suggests nothing: nobody saw it."""
        return self.purpose == "suggestion" and self.empty

    @property
    def order(self) -> tuple[datetime, int, str]:
        return self.opened_at, self.turn_index, self.inference_id


class DueTurn(msgspec.Struct, frozen=True):
    """A turn whose wait is over at `due_at`."""

    inference_id: InferenceId
    session_id: SessionId
    namespace: Namespace
    partition: int
    due_at: datetime


class Heard(msgspec.Struct, frozen=True):
    """An outcome and its offset in the log."""

    outcome: Outcome
    offset: int


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    """`last_at` is the arrival of its latest turn; `ended_at` is None while it goes on."""

    key: SessionKey
    last_at: datetime
    ended_at: datetime | None
