"""The taking back of rewards: who withdraws consent to learning withdraws it from turns of before, too.

For each turn of the subject an outcome in the log says so, and the scorer makes its reward void, as for any turn of
which nothing may be learned: the learner then takes back what the turn taught. The learner also asks the store itself
before each batch, so nothing depends on how soon this comes. The store marks a withdrawal until all is taken back, so
another process goes on where one died; an outcome's id follows from its turn's, so what two processes say counts once.
Nobody who withdraws in the name of many users keeps others waiting: namespaces take turns, and a subject without any
turns costs one probe of an index."""

import asyncio
import heapq
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from api.access.looking import Looking
from core.errors import LogUnavailable, StoreUnavailable
from core.events import Outcome, Topic
from core.ids import CONSENT, InferenceId, Namespace, OutcomeId, UserHash
from core.operations.consents import ConsentSubject, KeptConsent
from core.ports import Clock, EventLog, Store
from core.reward_spec.roles import CONSENT_WITHDRAWN

LOOK_S: Final = 10.0
"""The seconds between the first and the second look at a withdrawal, for turns that were on their way when the user
withdrew; each further pause is twice as long. It is also the pause between looks for new withdrawals."""
SETTLED_S: Final = 120.0
"""How long after a withdrawal earlier turns may still reach the store."""
_AT_ONCE: Final = 500  # turns
_WITHDRAWALS: Final = 100  # that are looked at together
_MOST_WAITING: Final = 50_000  # withdrawals in memory; others wait in the store


@dataclass(slots=True)
class _Withdrawal:
    kept: KeptConsent
    wait_s: float
    """The pause between the next look and the one after it."""
    said: set[InferenceId] = field(default_factory=set)
    """Turns whose withdrawal is in the log, and perhaps not in the store yet."""


class _Queue:
    """The withdrawals that wait for their next look. Namespaces take turns."""

    def __init__(self) -> None:
        self._known: dict[ConsentSubject, _Withdrawal] = {}
        self._waiting: dict[Namespace, list[tuple[float, int, ConsentSubject]]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def put(self, withdrawal: _Withdrawal, due_s: float) -> None:
        """Have a withdrawal wait until `due_s`, in place of an earlier one of its subject."""
        kept = withdrawal.kept
        self._known[kept.subject] = withdrawal
        heapq.heappush(self._waiting.setdefault(kept.subject.namespace, []), (due_s, kept.revision, kept.subject))

    def take(self, now_s: float, limit: int) -> list[_Withdrawal]:
        """Remove and return withdrawals that are due, at most `limit`, one from each namespace in turn."""
        taken: list[_Withdrawal] = []
        while len(taken) < limit and (due := [name for name, each in self._waiting.items() if each[0][0] <= now_s]):
            for namespace in islice(due, limit - len(taken)):
                withdrawal = self._next(namespace)
                taken += [] if withdrawal is None else [withdrawal]
        return taken

    def next_due_s(self) -> float:
        """Return when the next look is due, on the monotonic clock."""
        return min((each[0][0] for each in self._waiting.values()), default=float("inf"))

    def _next(self, namespace: Namespace) -> _Withdrawal | None:
        """Remove and return the first withdrawal of a namespace; None if its subject's consent has changed since."""
        waiting = self._waiting.pop(namespace)
        _, revision, subject = heapq.heappop(waiting)
        if waiting:
            self._waiting[namespace] = waiting  # behind the others
        known = self._known.get(subject)
        if known is None or known.kept.revision != revision:
            return None
        return self._known.pop(subject)


class TakingBack(Looking):
    """Takes back, on one event loop, within its context."""

    def __init__(self, log: EventLog, store: Store, clock: Clock) -> None:
        super().__init__(LOOK_S, "rewards of turns whose users withdrew are taken back later")
        self._log, self._store, self._clock = log, store, clock
        self._queue = _Queue()
        self._heard = 0  # the revision up to which withdrawals were read

    async def begin(self) -> None:
        """Look as soon as the context is entered, and not before: there may be much to take back."""
        self.hasten()

    async def look(self) -> None:
        await self.take_back()
        if self._queue.next_due_s() <= time.monotonic():
            self.hasten()

    async def take_back(self) -> None:
        """Look at some of the withdrawals that are due. Raises StoreUnavailable, LogUnavailable."""
        await self._hear()
        due = self._queue.take(time.monotonic(), _WITHDRAWALS)
        try:
            await self._look_at(due)
        except (StoreUnavailable, LogUnavailable):
            for withdrawal in due:
                self._queue.put(withdrawal, time.monotonic() + LOOK_S)
            raise

    async def _hear(self) -> None:
        while len(self._queue) < _MOST_WAITING:
            news = await asyncio.to_thread(self._news)
            for kept in news:
                self._queue.put(_Withdrawal(kept, LOOK_S), time.monotonic())
                self._heard = kept.revision
            if len(news) < _WITHDRAWALS:
                break

    async def _look_at(self, due: Sequence[_Withdrawal]) -> None:
        have_turns = await asyncio.to_thread(self._pending, due) if due else {}
        done: list[KeptConsent] = []
        again: list[_Withdrawal] = []
        for withdrawal in due:
            kept = withdrawal.kept
            if kept.revision not in have_turns:  # another process took it back, or the consent has changed
                continue
            all_told = not have_turns[kept.revision] or await self._tell(withdrawal)
            if all_told and self._is_settled(kept):
                done.append(kept)
            else:
                again.append(withdrawal)
        if done:
            await asyncio.to_thread(self._note, done)
        for withdrawal in again:
            self._queue.put(withdrawal, time.monotonic() + withdrawal.wait_s)
            withdrawal.wait_s *= 2

    async def _tell(self, withdrawal: _Withdrawal) -> bool:
        """Write an outcome for each turn that may no longer teach; return whether all of them had one already."""
        kept, said, nothing_new = withdrawal.kept, withdrawal.said, True
        after: InferenceId | None = None
        while turns := await asyncio.to_thread(self._turns, kept, after):
            after = turns[-1]
            news = [each for each in await asyncio.to_thread(self._untold, kept, turns) if each not in said]
            await asyncio.gather(*(self._log.append(Topic.TURNS, self._outcome(kept, each)) for each in news))
            said.update(news)
            nothing_new = nothing_new and not news
        return nothing_new

    def _outcome(self, kept: KeptConsent, inference_id: InferenceId) -> Outcome:
        now, subject = self._clock.now(), kept.subject
        return Outcome(
            outcome_id=_outcome_id(inference_id),
            inference_id=inference_id,
            session_id=None,
            namespace=subject.namespace,
            user_id=UserHash(subject.name) if subject.kind == "user" else None,
            name=CONSENT_WITHDRAWN,
            value=True,
            source="user",
            observed_at=kept.consent.changed_at or now,
            received_at=now,
            learn=False,
        )

    def _is_settled(self, kept: KeptConsent) -> bool:
        changed_at = kept.consent.changed_at
        return changed_at is None or (self._clock.now() - changed_at).total_seconds() > SETTLED_S

    def _news(self) -> list[KeptConsent]:
        with self._store.look() as view:
            return view.consents.to_take_back(self._heard, _WITHDRAWALS)

    def _pending(self, due: Sequence[_Withdrawal]) -> dict[int, bool]:
        with self._store.look() as view:
            return view.consents.still_to_take_back([withdrawal.kept.revision for withdrawal in due])

    def _turns(self, kept: KeptConsent, after: InferenceId | None) -> list[InferenceId]:
        """Return turns that consent was withdrawn from: all, or those of before it was given again."""
        before = kept.consent.learn_since if kept.consent.learn else None
        with self._store.look() as view:
            return view.turns.teaching(kept.subject, before, after, _AT_ONCE)

    def _untold(self, kept: KeptConsent, turns: list[InferenceId]) -> list[InferenceId]:
        with self._store.look() as view:
            told = view.outcomes.which_of(kept.subject.namespace, [_outcome_id(each) for each in turns])
        return [each for each in turns if _outcome_id(each) not in told]

    def _note(self, done: list[KeptConsent]) -> None:
        with self._store.work() as work:
            work.consents.taken_back(done)


def _outcome_id(inference_id: InferenceId) -> OutcomeId:
    return OutcomeId(CONSENT + inference_id)
