"""The part that OpenAI's two older routes share: choices, a stream of chunks, and `[DONE]` at its end."""

from abc import abstractmethod

from msgspec import UNSET, UnsetType

from api.access.context import ApiContext
from api.http.errors import error_response
from api.protocols.exchange import Exchange
from api.protocols.onward_info import OnwardInfo, OnwardName, onward_info
from api.protocols.streaming import DONE, event
from api.requests.bodies import GenerationBody
from api.turns.turn import Turn, TurnPlan


class ChoicesExchange(Exchange):
    def __init__(self, context: ApiContext, plan: TurnPlan, body: GenerationBody) -> None:
        super().__init__(context, plan, model=body.model, count=body.n or 1, streams=bool(body.stream))
        self._wants_usage = body.stream_options is not None and bool(body.stream_options.include_usage)

    def shared_info(self) -> OnwardInfo | UnsetType:
        """Return the info that stands beside the choices where there is only one; several have their own each."""
        return onward_info(self.turns[0]) if len(self.turns) == 1 else UNSET

    def own_info(self, turn: Turn) -> OnwardInfo | UnsetType:
        return UNSET if len(self.turns) == 1 else onward_info(turn)

    def name(self, turn: Turn) -> OnwardName | UnsetType:
        """Return what each chunk says of one choice of several; of a single one the answer's id says it."""
        return UNSET if len(self.turns) == 1 else OnwardName(inference_id=turn.inference_id)

    def last_events(self) -> bytes:
        tail = [self.final_event(turn) for turn in self.turns]
        if self._wants_usage:
            tail.append(self.usage_event())
        return b"".join([*tail, DONE])

    def error_events(self, error: Exception) -> bytes:
        return event(error_response(error)[1])

    @abstractmethod
    def final_event(self, turn: Turn) -> bytes:
        """Return the choice's last event, with its finish reason."""

    @abstractmethod
    def usage_event(self) -> bytes: ...
