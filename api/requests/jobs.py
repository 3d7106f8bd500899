"""Jobs on large bodies that another process can be sent: a body is checked, or messages become tokens.

They need no service, and what the job says bounds all of them."""

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from api.http.body_shape import check_values
from api.http.foreign import decode_foreign
from api.requests.anthropic import messages_decoder
from api.requests.bodies import chat_decoder, completion_decoder
from api.requests.messages import AssistantMessage, ChatMessage, check_messages
from api.requests.responses import responses_decoder
from api.requests.tools import check_tools
from core.errors import InvalidRequest, RequestError, TooLarge
from core.ports import Renderer

BodyKind = Literal["chat", "completion", "messages", "responses", "other"]
_DECODERS: dict[BodyKind, msgspec.json.Decoder[Any]] = {
    "completion": completion_decoder,
    "messages": messages_decoder,
    "responses": responses_decoder,
}
_TOKEN = "I"  # of `array`: four bytes


class CheckBody(msgspec.Struct, frozen=True, tag="check"):
    """A check whether a body may be decoded in a process that has other requests to serve."""

    kind: BodyKind
    most_values: int


class Render(msgspec.Struct, frozen=True, tag="render"):
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]


class Extend(msgspec.Struct, frozen=True, tag="extend"):
    """Render messages that follow a prompt; `last` is the last of its tokens, or (), `calls` those of its answer."""

    last: tuple[int, ...]
    messages: Sequence[Mapping[str, Any]]
    calls: Sequence[Mapping[str, Any]]


class RenderText(msgspec.Struct, frozen=True, tag="text"):
    prompt: str
    suffix: str | None


Job = CheckBody | Render | Extend | RenderText


class JobDone(msgspec.Struct, frozen=True, tag="done"):
    """The result of a job; `tokens` are those that were rendered."""

    tokens: bytes = b""

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(array(_TOKEN, self.tokens))


class JobRefused(msgspec.Struct, frozen=True, tag="refused"):
    """A refusal, with the fields of a RequestError."""

    too_large: bool
    message: str
    param: str | None
    code: str

    def error(self) -> RequestError:
        kind = TooLarge if self.too_large else InvalidRequest
        return kind(self.message, param=self.param, code=self.code)


Result = JobDone | JobRefused
encode_job = msgspec.msgpack.Encoder().encode
decode_job = msgspec.msgpack.Decoder(Job).decode
encode_result = msgspec.msgpack.Encoder().encode
decode_result = msgspec.msgpack.Decoder(Result).decode


def perform(job: Job, body: bytes, renderer: Renderer) -> Result:
    """Do the job; only a check has a `body`."""
    try:
        match job:
            case CheckBody():
                _check(job, body)
                return JobDone()
            case Render():
                return _tokens(renderer.render(job.messages, job.tools))
            case Extend():
                return _tokens(renderer.extend(job.last, job.messages, job.calls))
            case RenderText():
                return _tokens(renderer.render_text(job.prompt, job.suffix))
    except MemoryError:
        return JobRefused(True, "the body takes more memory than is allowed", None, "body_too_large")
    except RequestError as error:
        return JobRefused(isinstance(error, TooLarge), error.message, error.param, error.code)


def _tokens(token_ids: Sequence[int]) -> JobDone:
    return JobDone(array(_TOKEN, token_ids).tobytes())


def _check(job: CheckBody, raw: bytes) -> None:
    """Check the body, with the cheapest check first."""
    check_values(raw, job.most_values)
    if job.kind == "chat":
        body, _ = decode_foreign(chat_decoder, raw)
        check_messages(body.messages)
        check_tools(body.tools or ())
        for message in body.messages:
            _check_arguments(message, job.most_values)
    elif job.kind in _DECODERS:
        decode_foreign(_DECODERS[job.kind], raw)


def _check_arguments(message: ChatMessage, most: int) -> None:
    """Check the JSON in the arguments of a message's tool calls."""
    if isinstance(message, AssistantMessage):
        for call in message.tool_calls or ():
            check_values(call.function.arguments.encode(), most)
