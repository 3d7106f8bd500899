"""A session as the ledger knows it, in memory: its turns, their outcomes, and whether it is over.

All of a session's records share one partition of the log, so nothing here depends on another session."""

from bisect import insort
from collections.abc import Collection, Hashable, Sequence
from datetime import datetime
from operator import attrgetter
from sys import getsizeof
from typing import Any, Final

import msgspec

from core.events import Completion, Outcome
from core.ids import InferenceId, Namespace, OutcomeId
from core.operations.ledger import Facts, Heard, LedgerEntry, SessionKey, SessionRow
from scoring.rewards.amendments import Standing, standing


def open_turn(completion: Completion, partition: int, facts: Facts) -> LedgerEntry:
    return LedgerEntry(
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


_TOKEN_BYTES: Final = 36  # a place in a tuple, and a number of its own
Subject = InferenceId | None
"""Whom an outcome speaks of; None: the session."""


class Session(msgspec.Struct, kw_only=True):
    """A session. No lookup for one turn takes longer the more turns there are.

    `last_at` is the arrival of its latest turn; `ended_at` is None while it goes on; `waiting`: turns whose waits
    run."""

    key: SessionKey
    last_at: datetime | None = None
    ended_at: datetime | None = None
    turns: dict[InferenceId, LedgerEntry] = {}
    heard: dict[OutcomeId, Heard] = {}
    said: list[Heard] = []
    """All of `heard`, as it came."""
    waiting: dict[InferenceId, LedgerEntry] = {}
    places: set[tuple[str, Namespace]] = set()
    """Workload and namespace of its turns."""
    memory: dict[Hashable, Any] = {}
    """A cache of what callers computed from its turns; emptied when a turn is added."""
    kept: dict[Hashable, Any] = {}
    """A cache that callers keep up to date themselves."""
    put_in: int = 0
    """Tokens of users' own texts in what was heard."""
    _said_bytes: int = 0
    _answers: dict[InferenceId | None, list[LedgerEntry]] = {}
    _said: dict[Subject, dict[OutcomeId, Heard]] = {}
    _chains: dict[OutcomeId, set[OutcomeId]] = {}
    _standing: dict[Subject, list[Standing]] = {}

    @property
    def row(self) -> SessionRow:
        """The row that the ledger keeps beside the session's turns and outcomes."""
        assert self.last_at is not None
        return SessionRow(key=self.key, last_at=self.last_at, ended_at=self.ended_at)

    @property
    def size(self) -> int:
        """About how many kilobytes it takes, or a little more."""
        return len(self.turns) + len(self.heard) + self._said_bytes // 1024

    def add(self, turn: LedgerEntry) -> None:
        self.turns[turn.inference_id] = turn
        if turn.purpose == "turn" and turn.facts.whole:
            insort(self._answers.setdefault(turn.facts.parent_id, []), turn, key=attrgetter("order"))
        self.places.add((turn.workload, turn.namespace))
        self.memory.clear()
        self.note_wait(turn)

    def note_wait(self, turn: LedgerEntry) -> None:
        """Note that a turn's wait began or ended."""
        if turn.due_at is None:
            self.waiting.pop(turn.inference_id, None)
        else:
            self.waiting[turn.inference_id] = turn

    def answers_to(self, parent_id: InferenceId | None) -> Sequence[LedgerEntry]:
        """Return the whole turns, of purpose `turn`, that continue the parent, in order; None: those without."""
        return self._answers.get(parent_id, ())

    def hear(self, heard: Heard) -> None:
        outcome = heard.outcome
        if outcome.outcome_id not in self.heard:
            self.said.append(heard)
            put_in = sum(len(edit.token_ids) for edit in outcome.edits)
            self.put_in += put_in
            self._said_bytes += _TOKEN_BYTES * put_in + _bytes_of_texts(outcome)
        self.heard[outcome.outcome_id] = heard
        self._said.setdefault(outcome.inference_id, {})[outcome.outcome_id] = heard
        for said in self._chain(outcome):
            if said in self.heard:
                self._standing.pop(self.heard[said].outcome.inference_id, None)

    def heard_of(self, subject: Subject) -> Collection[Heard]:
        return self._said.get(subject, {}).values()

    def standing_of(self, subject: Subject) -> list[Standing]:
        """Return the outcomes on a subject that stand, in the order of `since`."""
        if subject not in self._said:
            return []
        if subject not in self._standing:
            self._standing[subject] = [
                entry for entry in standing(self.chained(subject)) if entry.outcome.inference_id == subject
            ]
        return self._standing[subject]

    def chained(self, subject: Subject) -> list[Outcome]:
        """Return the outcomes on a subject, and those that amend them or are amended by them."""
        chains = {id(chain): chain for chain in map(self._chains.__getitem__, self._said.get(subject, ()))}
        return [self.heard[each].outcome for chain in chains.values() for each in chain if each in self.heard]

    def is_alone(self, outcome: Outcome) -> bool:
        """Return whether the outcome amends nothing and nothing amends it."""
        return len(self._chains[outcome.outcome_id]) == 1

    def _chain(self, outcome: Outcome) -> set[OutcomeId]:
        """Return the chain of amendments that the outcome is part of; its members must be judged together."""
        chain = self._chains.setdefault(outcome.outcome_id, {outcome.outcome_id})
        if outcome.supersedes is None:
            return chain
        other = self._chains.setdefault(outcome.supersedes, {outcome.supersedes})
        if other is not chain:
            small, large = sorted((chain, other), key=len)
            large |= small
            self._chains |= dict.fromkeys(small, large)
            chain = large
        return chain


def _bytes_of_texts(outcome: Outcome) -> int:
    texts = (outcome.evidence, outcome.value, *outcome.tags.keys(), *outcome.tags.values())
    return sum(getsizeof(text) for text in texts if isinstance(text, str))
