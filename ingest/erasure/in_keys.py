"""Erasure in a log that cannot be rewritten: the keys of the sessions are deleted, and their records are shells."""

from datetime import timedelta
from typing import Final

from core.events import Topic
from core.ids import SessionId
from core.operations.erasures import Erasure, Step
from core.ports import Clock, EventLog, Store
from core.records.erasing import NotYet, digest_of, subjects_of
from core.records.whole_log import read_whole
from core.store.offsets import WRITER
from ingest.erasure.in_log import LOG, TOPICS, Widen, sources_of
from ingest.sealing import RETIRED_S

UNSEALED: Final = (
    "privacy.user_keys is off: the log keeps its records until archive.retention_days deletes them, words and all"
)


class InKeys:
    """The keys of sessions, once nobody seals with them any more."""

    def __init__(
        self, log: EventLog, store: Store, clock: Clock, widen: Widen, name: str = LOG, *, sealed: bool
    ) -> None:
        """`widen` is told of sessions that the store did not know; `sealed`: whether records are."""
        self.name = name
        self._log, self._store, self._clock, self._widen, self._sealed = log, store, clock, widen, sealed

    def erase(self, order: Erasure) -> Step:
        ends = {str(source): self._log.end(source) for source in sources_of(self._log, TOPICS)}
        self._look_for_more(order)
        if not self._sealed:
            return Step(note=UNSEALED, marks=ends)
        now, before = self._clock.now(), order.steps.get(LOG, Step()).removed.get("keys", 0)
        with self._store.work() as work:
            turns = work.sweeps.turns_in(order.namespace, order.sessions, order.ordered_at)
            # An outcome that names only its turn has a key of that.
            subjects = [*order.sessions, *map(SessionId, turns)]
            keys = work.session_keys.retire(order.namespace, subjects, now)
            gone = work.session_keys.delete(order.namespace, subjects, now - timedelta(seconds=RETIRED_S))
        if gone < keys:
            raise NotYet(f"until nobody seals with {keys - gone} keys any more: {RETIRED_S:g} s")
        return Step(removed={"keys": max(keys, before)}, digest=digest_of(order.sessions), marks=ends)

    def _look_for_more(self, order: Erasure) -> None:
        """Find the user's sessions among what the log has and the store has not yet."""
        with self._store.look() as view:
            reached = view.offsets.of_group(WRITER)
        sources = sources_of(self._log, [Topic.TURNS])
        starts = {source: max(reached.get(source, 0), self._log.earliest(source)) for source in sources}
        subjects = subjects_of(self._store, order)
        for records in read_whole(self._log, Topic.TURNS, starts):
            for record in records:
                if record.event is not None:
                    subjects.are_of(record.event)
        if new := sorted(set(subjects.found(order.namespace)) - set(order.sessions)):
            self._widen(order, new)
            raise NotYet("more sessions were found in the log")
