"""The stage that judges: turns from the log, votes from an endpoint, outcomes back into the log.

It blocks no other stage: requests wait on a thread of their own, no more turns are read than can be in flight, and the
log keeps the rest. Its progress is in the store, and covers only turns that were judged, given up or passed over, so
that a restart judges what is left. A turn that is judged twice, because of a crash before its offset was noted, gets
one outcome (`votes.judgement`)."""

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from math import ceil
from typing import Any, Final, TypeVar

import msgspec

from core import telemetry
from core.errors import ConfigError
from core.events import Completion, Outcome, Topic
from core.ports import Clock, EventLog, Record, Store, TopicPartition
from core.records.handling import Culprits, attempt, failure_of
from core.reward_spec import RewardSpec
from core.settings import JudgeSettings
from core.settings.stages import RECORD_ATTEMPTS
from core.stages.sources import OwnRecords
from core.stages.stage import Stage, until
from scoring.judge.choice import RequestBudget, why_not
from scoring.judge.endpoint import JudgeEndpoint, NoVote
from scoring.judge.prompt import Message, ask_about, length_of, read_prompt
from scoring.judge.votes import Vote, is_enough, judgement, version_of

GROUP: Final = "judge"
_POLL_RECORDS: Final = 256
_HEAR_S: Final = 0.2  # how often it is looked for votes, while turns are read and others under way
_NOTE_S: Final = 2.0  # how often it is noted how far it has come
_COMPLAIN_S: Final = 60.0  # how often the log says what the endpoint does not do
logger = logging.getLogger(__name__)
Votes = list[Vote | NoVote]
T = TypeVar("T")


class JudgeLoop:
    """An event loop on its own thread: what waits there blocks nobody, and can be cancelled at any time."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self, last: Callable[[], Awaitable[None]]) -> None:
        """Cancel what is running; then run `last`."""
        self.start(_end(last)).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _end(last: Callable[[], Awaitable[None]]) -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await last()


class Progress:
    """The progress of a stage that ends its work in another order than it began it."""

    def __init__(self, starts: Mapping[TopicPartition, int]) -> None:
        self._next = dict(starts)
        self._pending: dict[TopicPartition, set[int]] = {source: set() for source in starts}

    def begin(self, source: TopicPartition, offset: int) -> None:
        self._next[source] = offset + 1
        self._pending[source].add(offset)

    def end(self, source: TopicPartition, offset: int) -> None:
        self._pending[source].remove(offset)

    def reached(self) -> dict[TopicPartition, int]:
        """Return, for each partition, the offset before which all is done."""
        return {source: min(self._pending[source], default=following) for source, following in self._next.items()}


class _Case(msgspec.Struct, frozen=True):
    """A turn in flight."""

    turn: Completion
    record: Record
    messages: list[Message]
    began_s: float
    failures: int = 0


class Judge(Stage):
    """The judge as a stage. Raises ConfigError when the spec cannot use its outcome, or its prompt cannot be read."""

    def __init__(
        self,
        log: EventLog,
        store: Store,
        spec: RewardSpec,
        settings: JudgeSettings,
        clock: Clock,
        record_attempts: int = RECORD_ATTEMPTS,
    ) -> None:
        super().__init__()
        self._log, self._store, self._settings, self._clock = log, store, settings, clock
        _check_outcome(spec, settings.outcome)
        self._instructions = read_prompt(settings.prompt)
        self.version = version_of(settings, self._instructions)
        self._endpoint = JudgeEndpoint(settings)
        self._background = JudgeLoop("judge-requests")
        self._most = ceil(settings.requests.under_way / settings.requests.votes)
        self._budget = RequestBudget(settings.turns.per_minute)
        self._record_attempts = record_attempts
        self._culprits = Culprits(GROUP, log, store, clock, record_attempts)
        self._reader = log.reader([Topic.TURNS])
        self.source = OwnRecords(self._reader, self._culprits)
        self._progress = Progress({})  # not begun
        self._noted: Mapping[TopicPartition, int] = {}
        self._waiting: deque[Record] = deque()  # read, and not taken up
        self._under_way: dict[Future[Votes], _Case] = {}
        self._unsaid: list[tuple[_Case, Outcome]] = []  # judged, and not in the log
        self._next_note_s = self._next_complaint_s = 0.0
        self._given_up: Counter[str] = Counter()  # since the last complaint

    def room(self) -> int:
        """Return how many records may be read: none until the last ones are in flight."""
        return 0 if self._waiting or len(self._under_way) >= self._most else _POLL_RECORDS

    def handle(self, records: Sequence[Record]) -> None:
        self._waiting += records

    def tick(self) -> float:
        self._hear()
        self._say()
        while self._waiting and len(self._under_way) < self._most:
            record = self._waiting[0]
            if not self._culprits.tried(record, partial(self._take, record)):
                self._progress.end(record.source, record.offset)
            self._waiting.popleft()
        if time.monotonic() >= self._next_note_s:
            self._note()
        telemetry.JUDGE_UNDER_WAY.set(len(self._under_way))
        return _HEAR_S if self._under_way else until(self._next_note_s)

    def close(self) -> None:
        """Cancel the turns in flight; the next judge judges them."""
        self._background.close(self._endpoint.aclose)
        self._reader.close()
        failure = failure_of(self._note)
        if failure is not None:  # then the next one judges more of it again
            logger.warning("the judge ends without a word of how far it came: %s", failure)

    # ------------------------------------------------------------------------------------------ reading

    def begin(self) -> None:
        """Start where the last judge stopped; in a partition without one, at what is not too old."""
        oldest = self._clock.now() - timedelta(seconds=self._settings.turns.max_age_s)
        with self._store.look() as view:
            known = view.offsets.of_group(GROUP)
        starts = {}
        for source in (TopicPartition(Topic.TURNS, number) for number in range(self._log.partitions(Topic.TURNS))):
            start = known[source] if source in known else self._log.offset_at(source, oldest)
            starts[source] = min(max(start, self._log.earliest(source)), self._log.end(source))
            self._reader.seek(source, starts[source])
        self._noted = known
        self._progress = Progress(starts)

    def _take(self, record: Record) -> None:
        turn = record.event
        self._progress.begin(record.source, record.offset)
        if not isinstance(turn, Completion):
            self._progress.end(record.source, record.offset)
            return
        passed_over = why_not(turn, self._settings.turns, self._clock.now())
        messages: list[Message] = []
        if passed_over is None:
            messages = ask_about(turn, self._instructions)
            if length_of(messages) > self._settings.turns.max_characters:
                passed_over = "too_long"
            elif not self._budget.take():
                passed_over = "budget"
        if passed_over is not None:
            telemetry.JUDGE_TURNS.labels(result=passed_over).inc()
            self._progress.end(record.source, record.offset)
            return
        self._ask(_Case(turn, record, messages, time.monotonic()))

    def _ask(self, case: _Case) -> None:
        future = self._background.start(self._endpoint.votes(case.messages))
        self._under_way[future] = case
        future.add_done_callback(lambda _: self.wake())

    # ------------------------------------------------------------------------------------------ judging

    def _hear(self) -> None:
        """Handle the results of turns in flight."""
        for future in [future for future in self._under_way if future.done()]:
            case = self._under_way[future]
            failure = attempt(partial(self._conclude, case, future))
            if failure is not None:
                self._fail(case, failure)
            del self._under_way[future]

    def _conclude(self, case: _Case, future: Future[Votes]) -> None:
        answers = future.result()
        votes = [answer for answer in answers if isinstance(answer, Vote)]
        if is_enough(len(votes), len(answers)):
            name, now = self._settings.outcome, self._clock.now()
            self._unsaid.append((case, judgement(case.turn, votes, name, self.version, now)))
        else:
            self._give_up(case, next(answer for answer in answers if isinstance(answer, NoVote)))
            self._progress.end(case.record.source, case.record.offset)

    def _fail(self, case: _Case, failure: Exception) -> None:
        """Try once more, or put the record among the culprits, when a turn had neither votes nor a lack of them."""
        if case.failures + 1 < self._record_attempts:
            self._ask(msgspec.structs.replace(case, failures=case.failures + 1))
        else:
            self._culprits.put(case.record, failure)
            self._progress.end(case.record.source, case.record.offset)

    def _say(self) -> None:
        if not self._unsaid:
            return
        self._log.append_blocking(Topic.TURNS, [outcome for _, outcome in self._unsaid])
        for case, _ in self._unsaid:
            telemetry.JUDGE_TURNS.labels(result="judged").inc()
            telemetry.JUDGE_SECONDS.observe(time.monotonic() - case.began_s)
            self._progress.end(case.record.source, case.record.offset)
        self._unsaid.clear()

    def _give_up(self, case: _Case, error: NoVote) -> None:
        telemetry.JUDGE_TURNS.labels(result=error.reason).inc()
        self._given_up[error.reason] += 1
        if time.monotonic() >= self._next_complaint_s:
            self._next_complaint_s = time.monotonic() + _COMPLAIN_S
            counts = ", ".join(f"{count} {reason}" for reason, count in sorted(self._given_up.items()))
            logger.warning("turns given up by the judge: %s; the last, %s: %s", counts, case.turn.inference_id, error)
            self._given_up.clear()

    def _note(self) -> None:
        self._next_note_s = time.monotonic() + _NOTE_S
        reached = self._progress.reached()
        telemetry.JUDGE_LAG.set(sum(self._log.end(source) - offset for source, offset in reached.items()))
        if reached == self._noted:
            return
        with self._store.work() as work:
            for source, offset in sorted(reached.items()):
                work.offsets.put(GROUP, source, offset)
        self._noted = reached


def _check_outcome(spec: RewardSpec, name: str) -> None:
    """Check that the spec has the judge's outcome. Raises ConfigError when it cannot be used."""
    known = spec.outcomes.get(name)
    if known is None:
        raise ConfigError(
            f'judge.outcome: the reward spec has no {name!r}: add [outcomes.{name}] with type = "number", '
            "minimum = 0, maximum = 1, and the weight that it shall have"
        )
    fits = known.minimum is None or known.minimum <= 0
    fits = fits and (known.maximum is None or known.maximum >= 1)
    if known.type != "number" or known.level == "session" or not fits:
        raise ConfigError(
            f"judge.outcome: {name!r} is a number from 0 to 1 of an inference, and not so in the reward spec"
        )
