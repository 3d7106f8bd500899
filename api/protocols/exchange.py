"""One request's turns, and the form of their answers in its protocol."""

from abc import ABC, abstractmethod
from typing import ClassVar

import msgspec

from api.access.context import ApiContext
from api.http.asgi import RawHeaders
from api.turns.intake import subjects_of
from api.turns.private.settling import settled
from api.turns.sessions import make_known
from api.turns.turn import Turn, TurnDelta, TurnPlan
from core.events import Protocol
from core.operations.quotas import Use


class Exchange(ABC):
    protocol: ClassVar[Protocol]
    id_prefix: ClassVar[str]
    """The beginning of the answer's id; its rest is the inference's own (`api/turns/answer_ids.py`)."""

    def __init__(
        self, context: ApiContext, plan: TurnPlan, *, model: str, count: int = 1, streams: bool = False
    ) -> None:
        self._context, self.plan = context, settled(context, plan)
        self._begin(count)
        self.created = int(plan.intake.received_at.timestamp())
        self.model = model
        self.renderer = context.services.renderer
        self.streams = streams
        self.limits: RawHeaders = []

    def _begin(self, count: int) -> None:
        self.turns = [Turn(self._context, self.plan, choice, self.protocol) for choice in range(count)]
        self.id = self.id_prefix + (self.turns[0].inference_id if count == 1 else self.plan.group_id)

    @property
    def was_begun(self) -> bool:
        """True once an engine has sampled a token."""
        return any(turn.capture.token_ids for turn in self.turns)

    @property
    def use(self) -> Use:
        """The tokens of its prompt, and of all its answers so far."""
        place = self.plan.place
        prompt, output = len(place.prompt_token_ids), sum(len(turn.capture.token_ids) for turn in self.turns)
        new = max(0, prompt - place.known_tokens)
        return Use(tokens=prompt + output, new_prompt_tokens=new, output_tokens=output)

    async def heed_consent(self) -> None:
        """Narrow what may be done with its turns to what their user and session have consented to, and still do."""
        intake = self.plan.intake
        kept = await self._context.consents.of(subjects_of(intake, self.plan.place.session_id))
        if (intake.learn and not kept.learn) or (intake.store and not kept.store):
            narrowed = msgspec.structs.replace(
                intake, learn=intake.learn and kept.learn, store=intake.store and kept.store
            )
            self.plan = msgspec.structs.replace(self.plan, intake=narrowed)
            self._begin(len(self.turns))

    def begin_again(self) -> None:
        """Start over with new turns; the tokens of the old ones stay in the log as they are."""
        self._begin(len(self.turns))

    async def make_known(self) -> None:
        """Let feedback find the turns, which are still running."""
        for turn in self.turns:
            place = turn.plan.place
            await make_known(self._context.services, turn.plan.intake, turn.inference_id, place.session_id)

    @abstractmethod
    def answer(self) -> bytes:
        """Return the whole answer, once all turns have run."""

    def first_events(self) -> bytes:
        """Return the events before those of the first token."""
        return b""

    @abstractmethod
    def delta_events(self, turn: Turn, delta: TurnDelta) -> bytes:
        """Return the events of new words; none when the client would learn nothing from them."""

    @abstractmethod
    def last_events(self) -> bytes:
        """Return the events that end the stream, once all turns have run."""

    @abstractmethod
    def error_events(self, error: Exception) -> bytes:
        """Count the error and return the events that end a stream that failed midway."""
