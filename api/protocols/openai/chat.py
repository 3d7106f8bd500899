"""The route `POST /v1/chat/completions`."""

from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET

from api.access.clients import count_ignored
from api.access.context import Context
from api.access.identity import Identity
from api.http.asgi import Headers, header_text
from api.http.body_shape import Raw
from api.http.decoding import decode_body
from api.protocols.openai.answers import (
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChunkChoice,
    Message,
    MessageDelta,
    chat_logprobs,
    tool_call_dict,
    usage_of,
)
from api.protocols.openai.endpoint import Exchange
from api.protocols.openai.sampling import check_generation, ignored_options, overrule, room_for_answer, sampling_of
from api.protocols.openai.streaming import event
from api.requests.bodies import ChatBody, chat_decoder
from api.requests.ignored import named
from api.requests.messages import canonical, check_messages, ignored_in, late_system
from api.requests.tools import check_tools, ignored_in_tools
from api.turns.answer_ids import CHAT
from api.turns.intake import Intake, take_in
from api.turns.rendering import Rendering, read_large_apart
from api.turns.sessions import find_place
from api.turns.transcripts import Transcript
from api.turns.turn import Turn, TurnDelta, TurnPlan
from core import codec
from core.errors import InvalidRequest
from core.ids import new_group_id

_encode = msgspec.json.Encoder(enc_hook=codec.plain).encode


@dataclass(frozen=True)
class _Asked:
    """A chat request, decoded and checked."""

    body: ChatBody
    intake: Intake
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...]
    shown: list[dict[str, Any]]
    transcript: Transcript
    ignored: tuple[str, ...]


async def plan_chat(context: Context, identity: Identity, headers: Headers, raw: Raw) -> "ChatExchange":
    """Plan the turns of a chat request. Raises RequestError naming what is wrong with the request."""
    asked = await read_large_apart(context, "chat", raw, lambda: _understand(context, identity, headers, raw))
    body, intake = asked.body, asked.intake
    services = context.services
    group_id = new_group_id()
    rendering = Rendering(context, len(raw))
    place = await find_place(services, rendering, intake, group_id, asked.transcript, asked.shown, asked.tools)
    asked_by = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    wanted = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    prompt_tokens, context_length = len(place.prompt_token_ids), services.policy.context_length
    default = services.settings.advanced.default_max_tokens
    rules = services.settings.workloads.get(intake.workload)
    max_tokens = room_for_answer(prompt_tokens, context_length, wanted, asked_by, default, "messages", rules)
    sampling, overridden = overrule(sampling_of(body, max_tokens), rules)
    plan = TurnPlan(
        intake=intake,
        place=place,
        assignment=services.traffic.assign(intake.user_id or place.session_id),
        group_id=group_id,
        messages=asked.messages,
        tools=asked.tools,
        sampling=sampling,
        overridden=overridden,
        ignored=asked.ignored,
        transcript=asked.transcript,
        callable_tools=() if body.tool_choice == "none" else asked.tools,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        top_logprobs=body.top_logprobs or 0,
    )
    return ChatExchange(context, plan, body)


def _understand(context: Context, identity: Identity, headers: Headers, raw: Raw) -> _Asked:
    body = decode_body(chat_decoder, raw)
    intake = take_in(context, identity, headers, body, body.turn_type, workload="chat")
    check_messages(body.messages)
    _check_options(body)
    ignored = named([*ignored_options(body), *ignored_in(body.messages), *ignored_in_tools(body.tools or ())])
    _check_shown(context, body)
    count_ignored(header_text(headers, b"user-agent"), ignored)
    tools = tuple(msgspec.to_builtins(tool) for tool in body.tools or ())
    shown = [canonical(message) for message in body.messages]
    messages = tuple(msgspec.to_builtins(message) for message in body.messages)
    return _Asked(body, intake, messages, tools, shown, Transcript(shown, tools, intake.user_id), ignored)


def _check_shown(context: Context, body: ChatBody) -> None:
    """Refuse what the model would not be shown. Raises InvalidRequest naming the field."""
    services = context.services
    reason = services.renderer.tools_refused
    if body.tools and reason is not None:
        raise InvalidRequest(
            f"tools: the model {services.model_name} cannot be shown tools: {reason}", param="tools", code="unsupported"
        )
    late, reason = late_system(body.messages), services.renderer.late_system_refused
    if late is not None and reason is not None:
        raise InvalidRequest(
            f"messages[{late}]: the model {services.model_name} cannot be shown a system message so late: {reason}; "
            "put it before all others",
            param=f"messages[{late}]",
            code="unsupported",
        )


def _check_options(body: ChatBody) -> None:
    check_tools(body.tools or ())
    check_generation(body)
    _check_of_former_apis(body)
    if body.tool_choice not in (None, "none", "auto"):
        raise InvalidRequest(
            "tool_choice: must be auto or none; a forced call needs constrained decoding, which this service lacks",
            param="tool_choice",
            code="unsupported",
        )
    if body.response_format is not None and body.response_format != {"type": "text"}:
        raise InvalidRequest(
            "response_format: must be text; others need constrained decoding, which this service lacks",
            param="response_format",
            code="unsupported",
        )
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs: allowed only with logprobs", param="top_logprobs")
    if body.max_tokens and body.max_completion_tokens and body.max_tokens != body.max_completion_tokens:
        raise InvalidRequest(
            "max_completion_tokens: differs from max_tokens; give one of them", param="max_completion_tokens"
        )


def _check_of_former_apis(body: ChatBody) -> None:
    for name in ("functions", "function_call"):
        if getattr(body, name) not in (None, [], "auto", "none"):
            raise InvalidRequest(f"{name}: send tools and tool_choice instead", param=name, code="unsupported")
    if body.modalities is not None and body.modalities != ["text"]:
        raise InvalidRequest('modalities: must be ["text"], which is all that the model speaks', param="modalities")


class ChatExchange(Exchange):
    """The answers to one chat request."""

    def __init__(self, context: Context, plan: TurnPlan, body: ChatBody) -> None:
        super().__init__(context, plan, body, id_prefix=CHAT)
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
        logprobs = chat_logprobs(self.renderer, turn, 0, len(turn.capture.token_ids)) if self._logprobs else None
        assert turn.finish_reason is not None
        return ChatChoice(
            index=turn.choice,
            message=message,
            logprobs=logprobs,
            finish_reason=turn.finish_reason,
            onward=self.own_info(turn),
        )

    def delta_event(self, turn: Turn, delta: TurnDelta) -> bytes:
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
        logprobs = chat_logprobs(self.renderer, turn, delta.token_start, delta.token_end) if self._logprobs else None
        return self._chunk([ChunkChoice(index=turn.choice, delta=message, logprobs=logprobs)])

    def final_event(self, turn: Turn) -> bytes:
        choice = ChunkChoice(
            index=turn.choice, delta=MessageDelta(), finish_reason=turn.finish_reason, onward=self.own_info(turn)
        )
        if turn.choice not in self._role_sent:
            choice.delta = MessageDelta(role="assistant", content="")
        return self._chunk([choice], with_info=True)

    def usage_event(self) -> bytes:
        return self._chunk([], with_info=True, with_usage=True)

    def _chunk(self, choices: list[ChunkChoice], *, with_info: bool = False, with_usage: bool = False) -> bytes:
        chunk = ChatChunk(id=self.id, created=self.created, model=self.model, choices=choices)
        if with_info:
            chunk.onward = self.shared_info()
        if with_usage:
            chunk.usage = usage_of(self.turns)
        return event(_encode(chunk))
