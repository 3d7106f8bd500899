"""The route `POST /v1/fim/completions`: code that fills a gap, in Mistral's form.

https://docs.mistral.ai/api/#tag/fim has it: the question of a raw completion, the answer of a chat."""

from functools import partial
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta

from api.access.context import ApiContext
from api.access.identity import Identity
from api.http.asgi import Headers
from api.http.body_shape import Raw
from api.http.foreign import decode_foreign
from api.protocols.openai.chat import ChatExchange
from api.protocols.openai.completions import plan_text
from api.protocols.places import named_as
from api.requests.bodies import ChatBody, CompletionBody, PositiveInt, StreamOptions
from api.requests.ignored import Ignored
from api.turns.rendering import read_large_apart


class FimBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/fim/completions`: what stands between a text and its suffix."""

    model: str
    prompt: str
    suffix: str | None = None
    max_tokens: PositiveInt | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    stop: str | list[str] | None = None
    random_seed: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] | None = None
    stream: bool | None = None
    metadata: dict[str, str] | None = None
    min_tokens: Ignored = UNSET


_decoder = msgspec.json.Decoder(FimBody)


class FimExchange(ChatExchange):
    protocol = "fim"


async def plan_fim(context: ApiContext, identity: Identity, headers: Headers, raw: Raw) -> FimExchange:
    """Plan the turn of a request. Raises RequestError naming what is wrong with it."""
    body, unknown = await read_large_apart(context, "other", raw, partial(decode_foreign, _decoder, raw))
    asked = CompletionBody(
        model=body.model,
        prompt=body.prompt,
        suffix=body.suffix or None,
        max_tokens=body.max_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        stop=body.stop,
        seed=body.random_seed,
        stream=body.stream,
        metadata=body.metadata,
        min_tokens=body.min_tokens,
    )
    with named_as({"seed": "random_seed"}):
        plan = await plan_text(context, identity, headers, asked, len(raw), unknown)
    streamed = StreamOptions(include_usage=True) if body.stream else None
    answered = ChatBody(model=body.model, messages=[], stream=body.stream, stream_options=streamed)
    return FimExchange(context, plan, answered)
