"""The route `POST /tabby/v1/completions`: suggestions in the form of Tabby's server, for its editors' plugins.

https://github.com/TabbyML/tabby has it in `clients/tabby-openapi`; `clients/tabby-agent` is what asks."""

from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta

from api.access.context import ApiContext
from api.access.identity import Identity
from api.http.asgi import Headers
from api.http.body_shape import Raw
from api.http.foreign import decode_foreign
from api.protocols.exchange import Exchange
from api.protocols.onward_info import onward_info
from api.protocols.openai.completions import plan_text
from api.protocols.places import named_as
from api.requests.bodies import CompletionBody
from api.requests.ignored import Ignored, take_ignored
from api.turns.answer_ids import TEXT
from api.turns.rendering import read_large_apart
from api.turns.turn import Turn, TurnDelta
from core import codec
from core.errors import InvalidRequest

_encode = msgspec.json.Encoder(enc_hook=codec.plain).encode
_MOST_TOKENS = 64  # Tabby's own `max_decoding_tokens`
_REPORTS = {"reports": "shown"}  # its plugins say what they show: `scoring/rewards/facts.py`
_PLACES = {"prompt": "segments.prefix", "suffix": "segments.suffix"}
_RAW_PLACES = {"prompt": "debug_options.raw_prompt"}


class Snippet(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A part of another file."""

    filepath: str
    body: str
    score: float | None = None


class Segments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What stands around the cursor, and parts of other files."""

    prefix: str
    suffix: str | None = None
    filepath: Ignored = UNSET
    git_url: Ignored = UNSET
    clipboard: Ignored = UNSET
    edit_history: Ignored = UNSET
    declarations: list[Snippet] | None = None
    relevant_snippets_from_changed_files: list[Snippet] | None = None
    relevant_snippets_from_recently_opened_files: list[Snippet] | None = None


class DebugOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    raw_prompt: str | None = None
    return_snippets: Ignored = UNSET
    return_prompt: Ignored = UNSET
    disable_retrieval_augmented_code_completion: Ignored = UNSET


class TabbyBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`POST /tabby/v1/completions`: what stands between a prefix and a suffix."""

    segments: Segments | None = None
    language: Ignored = UNSET
    user: str | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    seed: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] | None = None
    mode: Literal["standard"] | None = None
    debug_options: DebugOptions | None = None


class TabbyChoice(msgspec.Struct, kw_only=True, gc=False):
    index: int
    text: str


class TabbyCompletion(msgspec.Struct, kw_only=True, gc=False):
    """An answer; its `id` is what events name."""

    id: str
    choices: list[TabbyChoice]
    onward: Any = UNSET


_decoder = msgspec.json.Decoder(TabbyBody)


async def plan_tabby(context: ApiContext, identity: Identity, headers: Headers, raw: Raw) -> "TabbyExchange":
    """Plan the turn of a request. Raises RequestError naming what is wrong with it."""
    body, unknown = await read_large_apart(context, "other", raw, partial(decode_foreign, _decoder, raw))
    ignored = [*unknown, *_ignored(body)]
    with named_as(_PLACES if _raw_prompt(body) is None else _RAW_PLACES):
        asked = _as_completion(body, context.services.model_name)
        plan = await plan_text(context, identity, headers, asked, len(raw), ignored)
    return TabbyExchange(context, plan, model=asked.model)


def _ignored(body: TabbyBody) -> list[str]:
    found = take_ignored(body)
    for place, part in (("segments.", body.segments), ("debug_options.", body.debug_options)):
        if part is not None:
            found += take_ignored(part, place)
    return found


def _as_completion(body: TabbyBody, served: str) -> CompletionBody:
    """Return the request in OpenAI's words. Raises InvalidRequest where there is nothing to continue."""
    prompt, suffix = _around(body)
    return CompletionBody(
        model=served,
        prompt=prompt,
        suffix=suffix,
        max_tokens=_MOST_TOKENS,
        temperature=body.temperature,
        seed=body.seed,
        user=body.user,
        metadata=_REPORTS,
    )


def _around(body: TabbyBody) -> tuple[str, str | None]:
    """Return what stands before and after the cursor; parts of other files come first, each under its name."""
    raw_prompt = _raw_prompt(body)
    if raw_prompt is not None:
        return raw_prompt, None
    segments = body.segments
    if segments is None:
        raise InvalidRequest("segments: there is no text to continue", param="segments", code="missing_field")
    others = (
        segments.declarations,
        segments.relevant_snippets_from_changed_files,
        segments.relevant_snippets_from_recently_opened_files,
    )
    parts = "".join(f"{part.filepath}\n{part.body}\n" for found in others for part in found or ())
    return parts + segments.prefix, segments.suffix


def _raw_prompt(body: TabbyBody) -> str | None:
    return None if body.debug_options is None else body.debug_options.raw_prompt


class TabbyExchange(Exchange):
    """The answer to one request. Tabby's plugins ask for whole answers."""

    id_prefix = TEXT
    protocol = "tabby"

    def answer(self) -> bytes:
        (turn,) = self.turns
        choices = [TabbyChoice(index=0, text=turn.text)]
        return _encode(TabbyCompletion(id=self.id, choices=choices, onward=onward_info(turn)))

    def delta_events(self, turn: Turn, delta: TurnDelta) -> bytes:
        raise NotImplementedError("Tabby's protocol has no stream of suggestions")

    def last_events(self) -> bytes:
        raise NotImplementedError("Tabby's protocol has no stream of suggestions")

    def error_events(self, error: Exception) -> bytes:
        raise NotImplementedError("Tabby's protocol has no stream of suggestions")
