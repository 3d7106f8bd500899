"""The route `POST /infill`: code that fills a gap, in the form of llama.cpp's server, which its editors' plugins use.

https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md has it."""

from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta

from api.access.context import ApiContext
from api.access.identity import Identity
from api.http.asgi import Headers
from api.http.body_shape import Raw
from api.http.errors import error_response
from api.http.foreign import decode_foreign
from api.protocols.exchange import Exchange
from api.protocols.onward_info import onward_info
from api.protocols.openai.completions import plan_text
from api.protocols.places import named_as
from api.protocols.streaming import event
from api.requests.bodies import CompletionBody, Penalty
from api.requests.ignored import Ignored, take_ignored
from api.turns.answer_ids import TEXT
from api.turns.rendering import read_large_apart
from api.turns.turn import Turn, TurnDelta
from core import codec
from core.errors import InvalidRequest

_encode = msgspec.json.Encoder(enc_hook=codec.plain).encode
_MANY = 1 << 31
_PLACES = {"prompt": "input_prefix", "suffix": "input_suffix", "max_tokens": "n_predict"}


class ExtraContext(msgspec.Struct, forbid_unknown_fields=True):
    """A part of another file."""

    text: str
    filename: str = ""


class InfillBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`POST /infill`: what stands between a prefix and a suffix; `prompt` is what follows the prefix already."""

    input_prefix: str
    input_suffix: str
    input_extra: list[ExtraContext] | None = None
    prompt: str | None = None
    model: str | None = None
    n_predict: Annotated[int, Meta(ge=-1, le=_MANY)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=_MANY)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)] | None = None
    stop: list[str] | None = None
    stream: bool | None = None
    repeat_penalty: float | None = None
    cache_prompt: Ignored = UNSET
    samplers: Ignored = UNSET
    t_max_prompt_ms: Ignored = UNSET
    t_max_predict_ms: Ignored = UNSET
    n_indent: Ignored = UNSET
    n_keep: Ignored = UNSET
    id_slot: Ignored = UNSET
    timings_per_token: Ignored = UNSET
    response_fields: Ignored = UNSET
    return_tokens: Ignored = UNSET


class Infill(msgspec.Struct, kw_only=True, gc=False):
    """An answer, or a part of one: `stop` says whether it is the last."""

    id: str
    content: str
    stop: bool
    model: str
    index: int = 0
    stop_type: str | msgspec.UnsetType = UNSET
    truncated: bool = False
    tokens_evaluated: int
    tokens_predicted: int
    tokens_cached: int
    generation_settings: dict[str, Any] = {}
    onward: Any = UNSET


_decoder = msgspec.json.Decoder(InfillBody)


async def plan_infill(context: ApiContext, identity: Identity, headers: Headers, raw: Raw) -> "InfillExchange":
    """Plan the turn of a request. Raises RequestError naming what is wrong with it."""
    body, unknown = await read_large_apart(context, "other", raw, partial(decode_foreign, _decoder, raw))
    if body.repeat_penalty not in (None, 1.0):
        raise InvalidRequest("repeat_penalty: must be 1; use frequency_penalty", param="repeat_penalty")
    if body.n_predict == 0:
        raise InvalidRequest("n_predict: at least 1; no cache is warmed here without an answer", param="n_predict")
    ignored = [*unknown, *take_ignored(body)]
    with named_as(_PLACES):
        asked = _as_completion(body, context.services.model_name)
        plan = await plan_text(context, identity, headers, asked, len(raw), ignored)
    return InfillExchange(context, plan, model=asked.model, streams=bool(body.stream))


def _as_completion(body: InfillBody, served: str) -> CompletionBody:
    """Return the request in OpenAI's words; parts of other files stand before the prefix, each under its name."""
    extra = "".join(f"{part.filename}\n{part.text}\n" for part in body.input_extra or ())
    return CompletionBody(
        model=body.model or served,
        prompt=extra + body.input_prefix + (body.prompt or ""),
        suffix=body.input_suffix,
        max_tokens=body.n_predict if body.n_predict and body.n_predict > 0 else None,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        seed=None if body.seed == -1 else body.seed,
        stop=body.stop or None,
        stream=body.stream,
    )


class InfillExchange(Exchange):
    """The answer to one request; a stream's last event has the counts."""

    protocol = "infill"
    id_prefix = TEXT

    def answer(self) -> bytes:
        return _encode(self._part(self.turns[0].text, last=True))

    def delta_events(self, turn: Turn, delta: TurnDelta) -> bytes:
        return event(_encode(self._part(delta.content))) if delta.content else b""

    def last_events(self) -> bytes:
        return event(_encode(self._part("", last=True)))

    def error_events(self, error: Exception) -> bytes:
        return event(error_response(error)[1])

    def _part(self, text: str, *, last: bool = False) -> Infill:
        (turn,) = self.turns
        return Infill(
            id=self.id,
            content=text,
            stop=last,
            model=self.model,
            stop_type=self._stop_type(turn) if last else UNSET,
            tokens_evaluated=len(turn.plan.place.prompt_token_ids),
            tokens_predicted=len(turn.capture.token_ids),
            tokens_cached=turn.capture.cached_tokens,
            onward=onward_info(turn) if last else UNSET,
        )

    @staticmethod
    def _stop_type(turn: Turn) -> str:
        if turn.finish_reason == "length":
            return "limit"
        return "word" if turn.stop_string is not None else "eos"
