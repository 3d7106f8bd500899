"""Retention: what is older than its namespace keeps it goes, from store, log and archive alike.

Words and tokens say the same, so both go where words do; outcomes and rewards have an age of their own. A turn that has
lost its tokens trains no more, and an update that it was part of cannot be made again: choose ages above those within
which turns are learned from and orders to exclude are given."""

import logging
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

from core import telemetry
from core.errors import Fenced, Unavailable
from core.events import Completion, Event, Outcome, Reward
from core.ids import Namespace
from core.operations.erasures import is_erased, tombstone
from core.ports import Clock, EventLog, Store
from core.settings import RetentionSettings
from core.stages.stage import OK, Stage, until
from core.unstored import without_words
from ingest.erasure.in_archive import InArchive
from ingest.erasure.in_log import TOPICS, RewritableLog, left_of, records_of

_PART: Final = 500
logger = logging.getLogger(__name__)


class Aged:
    """What of one namespace is older than it may be, as `core.operations.erasures.Subjects` tells what is erased."""

    def __init__(self, namespace: Namespace, kept: RetentionSettings, now: datetime) -> None:
        self.namespace = namespace
        self.words, self.tokens, self.rewards = (
            None if days is None else now - timedelta(days=days)
            for days in (kept.keep_text_days, kept.keep_tokens_days, kept.keep_rewards_days)
        )

    def names(self, raw: bytes) -> bool:
        """Return False: what does not decode has no age."""
        return False

    def are_of(self, event: Event) -> bool:
        return self.left(event) is not event

    def left(self, event: Event) -> Event:
        """Return what is left of an event: itself, where nothing of it is too old."""
        if getattr(event, "namespace", None) != self.namespace:
            return event
        match event:
            case Completion() if event.unstored is None:
                if _is_old(event.received_at, self.words):
                    return without_words(event)
                return _without_tokens(event) if _is_old(event.received_at, self.tokens) else event
            case Outcome() if not is_erased(event):
                if _is_old(event.received_at, self.rewards):
                    return tombstone(event)
                return _without_evidence(event) if _is_old(event.received_at, self.words) else event
            case Reward() if not is_erased(event):
                if _is_old(event.decided_at, self.rewards):
                    return tombstone(event)
                told = event.hints or event.edits
                is_old = _is_old(event.decided_at, self.words)
                return msgspec.structs.replace(event, hints=(), edits=()) if told and is_old else event
            case _:
                return event


def _is_old(at: datetime, before: datetime | None) -> bool:
    return before is not None and at < before


def _without_tokens(turn: Completion) -> Completion:
    if not turn.token_ids and not turn.prompt_token_ids:
        return turn
    reasons = tuple(dict.fromkeys((*turn.untrainable_reasons, "expired")))
    return msgspec.structs.replace(
        turn, prompt_token_ids=(), token_ids=(), logprobs=(), trainable=False, untrainable_reasons=reasons
    )


def _without_evidence(outcome: Outcome) -> Outcome:
    if not (isinstance(outcome.value, str) or outcome.evidence or outcome.edits or outcome.tags):
        return outcome
    value = None if isinstance(outcome.value, str) else outcome.value
    return msgspec.structs.replace(outcome, value=value, evidence=None, edits=(), tags={})


class Retention(Stage):
    """The stage that removes what is too old: a round every `interval_s`, the first at once."""

    def __init__(
        self,
        store: Store,
        scrub: Callable[[], None],
        log: EventLog,
        file: RewritableLog | None,
        archive: InArchive,
        clock: Clock,
        kept: Mapping[str, RetentionSettings],
        interval_s: float,
    ) -> None:
        """`file`: the log, where it can be rewritten; of another log `archive.retention_days` deletes the records."""
        super().__init__()
        self._store, self._scrub, self._log, self._file, self._archive = store, scrub, log, file, archive
        self._clock, self._kept, self._interval_s = clock, kept, interval_s
        self._next_s = 0.0
        self._fault = OK

    @property
    def state(self) -> str:
        return self._fault

    def tick(self) -> float:
        """Do a round when it is due."""
        if time.monotonic() >= self._next_s:
            self.round()
            self._fault, self._next_s = OK, time.monotonic() + self._interval_s
        return until(self._next_s)

    def recover(self, error: Unavailable | Fenced) -> None:
        """Begin the round anew."""
        self._fault, self._next_s = str(error), time.monotonic() + 1.0

    def round(self) -> int:
        """Remove all that is too old now; return of how many records and rows."""
        now = self._clock.now()
        return sum(self._of(Aged(Namespace(name), kept, now)) for name, kept in self._kept.items())

    def _of(self, aged: Aged) -> int:
        counts = {"rows": self._in_store(aged), "records": self._in_log(aged), "archived": self._in_archive(aged)}
        for kind, count in counts.items():
            telemetry.RETAINED.labels(namespace=aged.namespace, kind=kind).inc(count)
        if any(counts.values()):
            logger.info("namespace %s: %s lost what is no longer kept", aged.namespace, counts)
        return sum(counts.values())

    def _in_store(self, aged: Aged) -> int:
        changed = 0
        for of_outcomes in (False, True):
            after, is_over = "", False
            while not is_over:
                with self._store.work() as work:
                    age = work.sweeps.age_outcomes if of_outcomes else work.sweeps.age
                    found, after, is_over = age(aged.namespace, aged.left, after, _PART)
                changed += found
        if changed:
            self._scrub()
        return changed

    def _in_log(self, aged: Aged) -> int:
        if self._file is None:
            return 0
        changed = 0
        for topic in TOPICS[:2]:
            for source, records in records_of(self._log, topic):
                left = {record.offset: raw for record in records if (raw := left_of(record, aged)) is not None}
                if left:
                    self._file.rewrite(source, left)
                    changed += len(left)
        if changed:
            self._file.scrub()
        return changed

    def _in_archive(self, aged: Aged) -> int:
        return len(self._archive.redo(aged.namespace, aged))
