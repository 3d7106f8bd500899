"""What the ledger knows of a session, in memory: its turns, what was said of them, and whether it is over.

All of a session's records share one partition of the log, so nothing here depends on another session.
"""

from datetime import datetime
from typing import NewType

import msgspec

from core.events import Completion, Outcome, Purpose
from core.ids import InferenceId, Namespace, OutcomeId, SessionId
from scoring.amendments import Standing, standing
from scoring.facts import Facts

SessionKey = NewType("SessionKey", tuple[Namespace, SessionId])


class Turn(msgspec.Struct, kw_only=True):
    """One row of `ledger_turns`. `due_at` is None when no wait runs; `closed` says that the waits ran out for good;
    `revision` is -1, `value` and `decided_at` None before the first reward; outcomes whose offset in the log is at
    least `seen_offset` are news to the last reward."""

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

    @property
    def silent(self) -> bool:
        """A suggestion that suggests nothing: nobody saw it."""
        return self.purpose == "suggestion" and self.empty

    @property
    def order(self) -> tuple[datetime, int, str]:
        return self.opened_at, self.turn_index, self.inference_id


def open_turn(completion: Completion, partition: int, facts: Facts) -> Turn:
    return Turn(
        inference_id=completion.inference_id,
        session_id=completion.session_id,
        namespace=completion.namespace,
        workload=completion.workload,
        purpose=completion.purpose,
        turn_index=completion.turn_index,
        empty=not completion.num_characters and not completion.tool_calls,
        partition=partition,
        facts=facts,
        opened_at=completion.received_at,
    )


class Heard(msgspec.Struct, frozen=True):
    """An outcome and its offset in the log."""

    outcome: Outcome
    offset: int


class Session(msgspec.Struct, kw_only=True):
    """`last_at` is the arrival of its latest turn; `ended_at` is None while it goes on."""

    key: SessionKey
    last_at: datetime | None = None
    ended_at: datetime | None = None
    turns: dict[InferenceId, Turn] = {}
    heard: dict[OutcomeId, Heard] = {}
    _standing: list[Standing] | None = None

    def hear(self, heard: Heard) -> None:
        self.heard[heard.outcome.outcome_id] = heard
        self._standing = None

    def standing(self) -> list[Standing]:
        if self._standing is None:
            self._standing = standing(entry.outcome for entry in self.heard.values())
        return self._standing
