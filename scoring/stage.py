"""The scorer: turns and outcomes in, rewards out.

One store transaction holds a batch's changes of the ledger, its rewards (in the outbox) and the group's offsets,
fenced by the owner's epoch; then the outbox goes to the log. A crash anywhere loses nothing and counts nothing twice in
the store; in the log a reward may stand twice, unique by (inference_id, spec, revision). Any number of scorers share
the partitions of the turns: each scores, lets time pass in and publishes those that it owns.

Time is the log's: see `scoring.ledger.transaction`. Only where nothing is left to read does the wall clock let waits
end, half a second late, so that a record on its way is seen first. A record that takes longer than that from its
arrival at the API to the log (a spool drained after an outage) may thus find its turn decided by default, and
corrects it; scored again from the log, the same turn is decided once. The last value is the same.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from statistics import fmean
from typing import Final

from core import telemetry
from core.events import Reward, Topic
from core.ports import REWARDS, Announcer, Clock, EventLog, Record, Store, TopicPartition
from core.records.handling import set_aside, take_all, words_of
from core.reward_spec import RewardSpec
from core.settings import ScoringSettings
from core.settings.stages import RECORD_ATTEMPTS
from core.stages.sources import SharedRecords
from core.stages.stage import Stage, until
from core.tracing import trace
from scoring.ledger import unusable
from scoring.ledger.session_cache import SessionCache
from scoring.ledger.transaction import LedgerTransaction

GROUP: Final = "scorer"
GRACE: Final = timedelta(seconds=0.5)
_PUBLISH_BATCH: Final = 2048
_EXPIRE_BATCH: Final = 512
_IDLE_TICKS: Final = 10  # that are left out where no wait ends meanwhile
_SEARCH_S: Final = 60.0  # how often outcomes without a turn are looked for
_FEWEST_RECORDS: Final = 64  # that are taken at once where it is not known to be quick
_QUICK_S: Final = 0.25
_GIVE_WAY_S: Final = 0.1  # others may wait for so long between two tries to write
logger = logging.getLogger(__name__)


class Scorer(Stage):
    """The scorer as a stage. It ends at NewerSchema, and at LogError when log and store do not belong together."""

    def __init__(
        self,
        log: EventLog,
        store: Store,
        spec: RewardSpec,
        settings: ScoringSettings,
        clock: Clock,
        announcer: Announcer | None = None,
        record_attempts: int = RECORD_ATTEMPTS,
    ) -> None:
        """Make a scorer. `announcer` tells watchers of new rewards in the store; without one they poll."""
        super().__init__()
        self._log = log
        self._store = store
        self._spec = spec
        self._settings = settings
        self._clock = clock
        self._announcer = announcer
        self._known: frozenset[TopicPartition] = frozenset()  # of what we own: whose open turns are counted
        self._next_tick_s = 0.0
        self._idle = timedelta(seconds=_IDLE_TICKS * settings.tick_s)
        self._next_search_s = 0.0
        self._outbox_waits = False
        self._room = self._at_first = min(_FEWEST_RECORDS, settings.batch_records)
        self._first_values: deque[float] = deque(maxlen=200)
        self.source = self._turns = SharedRecords(
            GROUP, [Topic.TURNS], log, store, clock, record_attempts, linger_s=settings.tick_s
        )
        self._member = self._turns.member
        self._record_attempts = record_attempts
        self._cache = SessionCache()
        self._epochs: Mapping[TopicPartition, int] = {}  # under which what is cached was written

    def room(self) -> int:
        return self._room

    def handle(self, records: Sequence[Record]) -> None:
        self._meet()
        self._next_tick_s = min(self._next_tick_s, time.monotonic() + self._settings.tick_s)
        transaction = LedgerTransaction(self._spec, self._cache)
        with self._turns.writing(records) as work:
            began_s = time.monotonic()  # others may have had the store until now
            transaction.take(work, records)
            set_aside(work, self._log, transaction.dead_letters)
        self._count(transaction)
        self._make_room(len(records), time.monotonic() - began_s)

    def _make_room(self, taken: int, took_s: float) -> None:
        """Take more records at once while that is quick, as when much is behind, and fewer where it is not.

        What a record costs is its user's choice: it may be about all turns of a session. In a file, where one
        transaction writes at a time, all others wait for this one, and would not get in between two of it."""
        if took_s > _QUICK_S:
            self._room = max(1, int(self._room * _QUICK_S / took_s))
            time.sleep(_GIVE_WAY_S)
        elif taken >= self._room:
            self._room = min(2 * self._room, self._settings.batch_records)
        else:
            self._room = min(2 * self._room, self._at_first)

    def tick(self) -> float:
        self._meet()
        if time.monotonic() >= self._next_tick_s:
            self._let_pass()
        if self._outbox_waits:
            self._publish()
        return until(self._next_tick_s) if self._next_tick_s else 0.0

    def _meet(self) -> None:
        """Note which partitions came or went: others may have written meanwhile, and left rewards in the outbox."""
        if self._member.epochs != self._epochs:
            self._cache.clear()
            self._epochs = dict(self._member.epochs)
        known = frozenset(self._member.offsets)
        if known != self._known:
            with self._store.look() as view:
                telemetry.OPEN_TURNS.set(view.ledger.count_open(_numbers(known)))
            self._known = known
            self._outbox_waits = True

    # ------------------------------------------------------------------------------------------ time

    def _let_pass(self) -> None:
        """Let time pass in the partitions that are read to their end. The moment is taken before looking."""
        self._next_tick_s = time.monotonic() + self._settings.tick_s
        moment = self._clock.now() - GRACE
        behind = self._member.behind()
        telemetry.SCORER_LAG.set(sum(behind.values()))
        ended = {source: offset for source, offset in self._member.offsets.items() if behind[source] == 0}
        until = {source.partition: moment for source in ended}
        if not until:
            return
        self._give_up(ended, moment)
        with self._store.look() as view:
            due = view.ledger.due_turns(until, _EXPIRE_BATCH)
            first = [] if due else view.ledger.due_turns(dict.fromkeys(until, moment + self._idle), 1)
        if not due and not first:
            self._next_tick_s = time.monotonic() + self._idle.total_seconds()
        if not due:
            return
        if len(due) == _EXPIRE_BATCH:  # no further than these, and soon again
            until = dict.fromkeys(until, due[-1].due_at)
            self._next_tick_s = 0.0
        transaction = LedgerTransaction(self._spec, self._cache)
        with self._member.writing(ended) as work:
            transaction.let_pass(work, until)
        self._count(transaction)

    def _give_up(self, ended: Mapping[TopicPartition, int], moment: datetime) -> None:
        """Give up on outcomes whose turns did not come in time."""
        if time.monotonic() < self._next_search_s:
            return
        self._next_search_s = time.monotonic() + min(_SEARCH_S, self._settings.early_outcome_s)
        oldest = moment - timedelta(seconds=self._settings.early_outcome_s)
        if waiting := unusable.overdue(self._store, self._log, ended, oldest):
            with self._member.writing(ended) as work:
                unusable.give_up(work, self._log, waiting)

    def _count(self, transaction: LedgerTransaction) -> None:
        """Count what a transaction did, once it has ended."""
        self._cache.put(transaction.sessions)
        transaction.count_oddities()
        telemetry.OPEN_TURNS.inc(transaction.newly_open)
        for reward in transaction.rewards:
            telemetry.REWARDS.labels(kind="revision" if reward.revision else "first").inc()
            if not reward.revision:
                self._first_values.append(reward.value)
            self._trace(reward)
        if transaction.rewards:
            self._outbox_waits = True
            if self._announcer is not None:
                self._announcer.announce(REWARDS)
            telemetry.REWARD_VALUE.set(fmean(self._first_values) if self._first_values else math.nan)

    def _trace(self, reward: Reward) -> None:
        about = {"onward.value": reward.value, "onward.revision": reward.revision}
        began_at = reward.last_outcome_at or reward.decided_at
        trace(reward.inference_id, "reward", began_at, self._clock.now(), str(reward.revision), about=about)

    # ------------------------------------------------------------------------------------------ publishing

    def _publish(self) -> None:
        """Write this scorer's outbox to the log, at least once, in order."""
        while self._outbox_waits:
            with self._store.look() as view:
                waiting = view.rewards.unpublished(_numbers(self._known), _PUBLISH_BATCH)
            take_all(waiting, self._send, self._keep_back, self._record_attempts)
            self._outbox_waits = len(waiting) == _PUBLISH_BATCH

    def _send(self, waiting: Sequence[tuple[int, Reward]]) -> None:
        self._log.append_blocking(Topic.REWARDS, [reward for _, reward in waiting])
        self._mark([sequence for sequence, _ in waiting])

    def _keep_back(self, waiting: tuple[int, Reward], failure: Exception) -> None:
        """Keep a reward in the store that the log refuses for its size; the learner does not get it."""
        sequence, reward = waiting
        telemetry.SCORER_ODDITIES.labels(reason="unpublishable").inc()
        logger.error("the reward of %s stays in the store: %s", reward.inference_id, words_of(failure))
        self._mark([sequence])

    def _mark(self, sequences: Sequence[int]) -> None:
        with self._store.work() as work:
            work.rewards.mark_published(sequences)


def _numbers(sources: Iterable[TopicPartition]) -> list[int]:
    return sorted(source.partition for source in sources)
