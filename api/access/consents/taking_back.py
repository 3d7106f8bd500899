"""The taking back of rewards: who withdraws consent to learning withdraws it from turns of before, too.

Of each of the subject's turns an outcome says so in the log, and the scorer makes its reward void, as for any turn of
which nothing may be learned: the learner then takes back what the turn taught. The learner also asks the store itself
before each batch, so nothing depends on how soon this comes. A withdrawal stands in the store as one to take back until
all is done, so another process goes on where one died; the ids of outcomes follow from the turns', so what two of them
say counts once."""

import asyncio
from typing import Final

from api.access.looking import Looking
from core.events import Outcome, Topic
from core.ids import CONSENT, InferenceId, OutcomeId, UserHash
from core.operations.consents import KeptConsent
from core.ports import Clock, EventLog, Store
from core.reward_spec.roles import CONSENT_WITHDRAWN

LOOK_S: Final = 10.0
"""How often it is looked for turns that were on their way when their user withdrew, and for what others left undone."""
SETTLED_S: Final = 120.0
"""How long after a withdrawal turns of before may still come to the store."""
_AT_ONCE: Final = 500  # turns
_WITHDRAWALS: Final = 100


class TakingBack(Looking):
    """Takes back, on one event loop, within its context."""

    def __init__(self, log: EventLog, store: Store, clock: Clock) -> None:
        super().__init__(LOOK_S, "rewards of turns whose users withdrew are taken back later")
        self._log, self._store, self._clock = log, store, clock
        self._said: dict[KeptConsent, set[InferenceId]] = {}  # in the log, and perhaps not in the store yet

    async def begin(self) -> None:
        """Begin at once, while the service starts: there may be much to take back."""
        self.hasten()

    async def look(self) -> None:
        await self.take_back()

    async def take_back(self) -> None:
        """Take back what the store knows to be withdrawn. Raises StoreUnavailable, LogUnavailable."""
        pending = await asyncio.to_thread(self._pending)
        self._said = {kept: self._said.get(kept, set()) for kept in pending}
        done = [kept for kept in pending if await self._take_back(kept) and self._is_settled(kept)]
        if done:
            await asyncio.to_thread(self._note, done)

    async def _take_back(self, kept: KeptConsent) -> bool:
        """Say of each turn of before that it may teach no more; return whether all of them had been told."""
        said, nothing_new = self._said[kept], True
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

    def _pending(self) -> list[KeptConsent]:
        with self._store.look() as view:
            return view.consents.to_take_back(_WITHDRAWALS)

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
