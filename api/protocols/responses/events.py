"""A streamed answer in the events of the Responses API: items that are added, grow, and are done.

https://platform.openai.com/docs/api-reference/responses-streaming has them."""

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

import msgspec

from api.access.context import ApiContext
from api.access.low_priority import tier_of
from api.http.errors import error_response, in_openais_shape
from api.protocols.exchange import Exchange
from api.protocols.logprobs import TokenLogprob, token_logprobs
from api.protocols.onward_info import onward_info
from api.protocols.responses.answers import (
    Item,
    Response,
    ResponseStatus,
    call_item,
    custom_input,
    echo,
    message_item,
    output_of,
    reasoning_item,
    status_of,
    text_part,
    text_status,
    usage_of,
)
from api.protocols.streaming import DONE, named_event
from api.requests.responses import ResponsesBody
from api.turns.answer_ids import RESPONSE
from api.turns.turn import Turn, TurnDelta, TurnPlan
from core import codec
from core.events import ToolCall

_encode = msgspec.json.Encoder(enc_hook=codec.plain).encode


class ResponseExchange(Exchange):
    """The answer to one request of the Responses API."""

    protocol = "responses"
    id_prefix = RESPONSE

    def __init__(
        self, context: ApiContext, plan: TurnPlan, body: ResponsesBody, custom: Collection[str], *, with_logprobs: bool
    ) -> None:
        super().__init__(context, plan, model=body.model, streams=bool(body.stream))
        self._echo = echo(body) | {"service_tier": tier_of(plan.intake.priority)}
        self._custom = custom
        self._with_logprobs = with_logprobs
        self._sequence_number = 0
        self._items: list[Item] = []  # as they are done; those that still grow have their place here
        self._places: dict[str, int] = {}  # of the items that grow, by type

    def answer(self) -> bytes:
        (turn,) = self.turns
        return _encode(self._response(output_of(turn, self._custom, self._logprobs(turn), turn.reasoning), ended=True))

    def first_events(self) -> bytes:
        return self._of_response("response.created") + self._of_response("response.in_progress")

    def delta_events(self, turn: Turn, delta: TurnDelta) -> bytes:
        events = b""
        if delta.reasoning:
            events += self._think(turn, delta.reasoning)
        if delta.content:
            events += self._say(turn, delta)
        for call in delta.tool_calls:
            events += self._call(turn, call)
        return events

    def last_events(self) -> bytes:
        (turn,) = self.turns
        has_text = any(item["type"] == "message" for item in self._items)
        events = b"" if has_text or turn.tool_calls else self._begin_text(turn)
        events += self._end_thinking(turn) + self._end_text(turn)
        response = self._response(self._items, ended=True)
        return events + self._event(f"response.{response.status}", response=response) + DONE

    def error_events(self, error: Exception) -> bytes:
        said: dict[str, Any] = msgspec.json.decode(error_response(error, in_openais_shape)[1])["error"]
        return self._event("error", **{**said, "type": "error", "error": said}) + DONE

    def _response(self, output: list[Item], *, ended: bool) -> Response:
        (turn,) = self.turns
        status: ResponseStatus = status_of(turn) if ended else "in_progress"
        sampling = self.plan.sampling
        return Response(
            id=self.id,
            created_at=self.created,
            completed_at=int(datetime.now(UTC).timestamp()) if status == "completed" else None,
            status=status,
            incomplete_details={"reason": "max_output_tokens"} if status == "incomplete" else None,
            model=self.model,
            output=output,
            usage=usage_of(turn) if ended else None,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            onward=onward_info(turn),
            **self._echo,
        )

    def _of_response(self, kind: str) -> bytes:
        return self._event(kind, response=self._response([], ended=False))

    def _think(self, turn: Turn, text: str) -> bytes:
        kind, events = "reasoning", b""
        if kind not in self._places:
            events += self._add(kind, reasoning_item(turn, "", "in_progress"))
            events += self._of_part(kind, "response.content_part.added", part={"type": "reasoning_text", "text": ""})
        return events + self._of_part(kind, "response.reasoning_text.delta", delta=text)

    def _end_thinking(self, turn: Turn) -> bytes:
        kind = "reasoning"
        if kind not in self._places:
            return b""
        part = {"type": "reasoning_text", "text": turn.reasoning}
        events = self._of_part(kind, "response.reasoning_text.done", text=turn.reasoning)
        events += self._of_part(kind, "response.content_part.done", part=part)
        return events + self._end(kind, reasoning_item(turn, turn.reasoning))

    def _say(self, turn: Turn, delta: TurnDelta) -> bytes:
        events = b"" if "message" in self._places else self._begin_text(turn)
        logprobs = self._logprobs(turn, delta.token_start, delta.token_end)
        return events + self._of_part("message", "response.output_text.delta", delta=delta.content, logprobs=logprobs)

    def _begin_text(self, turn: Turn) -> bytes:
        events = self._end_thinking(turn) + self._add("message", message_item(turn, [], "in_progress"))
        return events + self._of_part("message", "response.content_part.added", part=text_part(""))

    def _end_text(self, turn: Turn) -> bytes:
        if "message" not in self._places:
            return b""
        part = text_part(turn.text, self._logprobs(turn))
        events = self._of_part("message", "response.output_text.done", text=turn.text, logprobs=part["logprobs"])
        events += self._of_part("message", "response.content_part.done", part=part)
        return events + self._end("message", message_item(turn, [part], text_status(turn)))

    def _call(self, turn: Turn, call: ToolCall) -> bytes:
        done = call_item(turn, call.index, call, self._custom)
        written = "input" if "input" in done else "arguments"
        what = "custom_tool_call_input" if written == "input" else "function_call_arguments"
        text = custom_input(call) if written == "input" else call.arguments
        kind = done["id"]
        events = self._end_thinking(turn) + self._add(kind, {**done, "status": "in_progress", written: ""})
        place = {"item_id": done["id"], "output_index": self._places[kind]}
        events += self._event(f"response.{what}.delta", **place, delta=text)
        events += self._event(f"response.{what}.done", **place, **{written: text})
        return events + self._end(kind, done)

    def _add(self, kind: str, item: Item) -> bytes:
        self._places[kind] = len(self._items)
        self._items.append(item)
        return self._event("response.output_item.added", output_index=self._places[kind], item=item)

    def _end(self, kind: str, item: Item) -> bytes:
        place = self._places.pop(kind)
        self._items[place] = item
        return self._event("response.output_item.done", output_index=place, item=item)

    def _of_part(self, kind: str, name: str, **fields: object) -> bytes:
        """Return an event of the only part of an item's content."""
        place = self._places[kind]
        where = {"item_id": self._items[place]["id"], "output_index": place, "content_index": 0}
        return self._event(name, **where, **fields)

    def _logprobs(self, turn: Turn, start: int = 0, end: int | None = None) -> list[TokenLogprob]:
        if not self._with_logprobs:
            return []
        last = len(turn.capture.token_ids) if end is None else end
        return token_logprobs(self.renderer, turn, start, last)

    def _event(self, kind: str, **fields: object) -> bytes:
        data = _encode({"type": kind, "sequence_number": self._sequence_number, **fields})
        self._sequence_number += 1
        return named_event(kind, data)
