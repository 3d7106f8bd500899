"""The route `POST /v1/chat/completions`."""

from typing import ClassVar

import msgspec
from msgspec import UNSET

from api.access.context import ApiContext
from api.access.identity import Identity
from api.http.asgi import Headers
from api.http.body_shape import Raw
from api.http.foreign import decode_foreign
from api.protocols.chat_turns import CheckedChat, plan_turns, understand
from api.protocols.logprobs import token_logprobs
from api.protocols.openai.answers import (
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatLogprobs,
    ChunkChoice,
    Message,
    MessageDelta,
    tool_call_dict,
    usage_of,
)
from api.protocols.openai.exchange import ChoicesExchange
from api.protocols.streaming import event
from api.requests.bodies import ChatBody, chat_decoder
from api.turns.answer_ids import CHAT
from api.turns.rendering import read_large_apart
from api.turns.turn import Turn, TurnDelta, TurnPlan
from core import codec
from core.events import Protocol

_encode = msgspec.json.Encoder(enc_hook=codec.plain).encode


async def plan_chat(context: ApiContext, identity: Identity, headers: Headers, raw: Raw) -> "ChatExchange":
    """Plan the turns of a chat request. Raises RequestError naming what is wrong with the request."""

    def read() -> CheckedChat:
        body, unknown = decode_foreign(chat_decoder, raw)
        return understand(context, identity, headers, body, unknown)

    asked = await read_large_apart(context, "chat", raw, read, identity)
    return ChatExchange(context, await plan_turns(context, asked, len(raw)), asked.body)


class ChatExchange(ChoicesExchange):
    """The answers to one chat request."""

    protocol: ClassVar[Protocol] = "chat"
    id_prefix = CHAT

    def __init__(self, context: ApiContext, plan: TurnPlan, body: ChatBody) -> None:
        super().__init__(context, plan, body)
        self._logprobs = bool(body.logprobs)
        self._role_sent: set[int] = set()

    def answer(self) -> bytes:
        choices = [self._choice(turn) for turn in self.turns]
        return _encode(
            ChatCompletion(
                id=self.id,
                created=self.created,
                model=self.model,
                choices=choices,
                usage=usage_of(self.turns),
                onward=self.shared_info(),
            )
        )

    def _choice(self, turn: Turn) -> ChatChoice:
        calls = [tool_call_dict(call) for call in turn.tool_calls]
        message = Message(
            content=turn.text if turn.text or not calls else None,
            reasoning_content=turn.reasoning or UNSET,
            tool_calls=calls or UNSET,
        )
        logprobs = self._token_logprobs(turn, 0, len(turn.capture.token_ids))
        assert turn.finish_reason is not None
        return ChatChoice(
            index=turn.choice,
            message=message,
            logprobs=logprobs,
            finish_reason=turn.finish_reason,
            onward=self.own_info(turn),
        )

    def delta_events(self, turn: Turn, delta: TurnDelta) -> bytes:
        said = delta.content or delta.reasoning or delta.tool_calls
        if not (said or (self._logprobs and delta.token_end > delta.token_start)):
            return b""
        has_content = delta.content or not (delta.reasoning or delta.tool_calls)
        message = MessageDelta(
            content=delta.content if has_content else UNSET, reasoning_content=delta.reasoning or UNSET
        )
        if turn.choice not in self._role_sent:
            self._role_sent.add(turn.choice)
            message.role = "assistant"
        if delta.tool_calls:
            message.tool_calls = [{"index": call.index, **tool_call_dict(call)} for call in delta.tool_calls]
        logprobs = self._token_logprobs(turn, delta.token_start, delta.token_end)
        return self._chunk([ChunkChoice(index=turn.choice, delta=message, logprobs=logprobs, onward=self.name(turn))])

    def final_event(self, turn: Turn) -> bytes:
        choice = ChunkChoice(
            index=turn.choice, delta=MessageDelta(), finish_reason=turn.finish_reason, onward=self.own_info(turn)
        )
        if turn.choice not in self._role_sent:
            choice.delta = MessageDelta(role="assistant", content="")
        return self._chunk([choice], with_info=True)

    def _token_logprobs(self, turn: Turn, start: int, end: int) -> ChatLogprobs | None:
        return ChatLogprobs(token_logprobs(self.renderer, turn, start, end)) if self._logprobs else None

    def usage_event(self) -> bytes:
        return self._chunk([], with_info=True, with_usage=True)

    def _chunk(self, choices: list[ChunkChoice], *, with_info: bool = False, with_usage: bool = False) -> bytes:
        chunk = ChatChunk(id=self.id, created=self.created, model=self.model, choices=choices)
        if with_info:
            chunk.onward = self.shared_info()
        if with_usage:
            chunk.usage = usage_of(self.turns)
        return event(_encode(chunk))
