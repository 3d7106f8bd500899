"""The route `POST /v1/responses`."""

from dataclasses import replace

import msgspec

from api.access.context import ApiContext
from api.access.identity import Identity
from api.http.asgi import Headers
from api.http.body_shape import Raw
from api.http.foreign import decode_foreign
from api.protocols.chat_turns import CheckedChat, plan_turns, understand
from api.protocols.places import named_as
from api.protocols.responses.earlier import references_in, said_before, said_by_id, turn_named
from api.protocols.responses.events import ResponseExchange
from api.protocols.responses.request import Items, TranslatedResponses, items_of
from api.requests.responses import ResponsesBody, responses_decoder
from api.turns.rendering import away_if_large, read_large_apart
from core.events import Completion


async def plan_response(context: ApiContext, identity: Identity, headers: Headers, raw: Raw) -> ResponseExchange:
    """Plan the turn of a request. Raises RequestError naming what is wrong with it."""

    def read() -> tuple[ResponsesBody, Items, list[str], dict[str, str]]:
        body, unknown = decode_foreign(responses_decoder, raw)
        items, left = items_of(body)
        return body, items, [*unknown, *left], references_in(items)

    body, items, unknown, named = await read_large_apart(context, "responses", raw, read)
    earlier = None
    if body.previous_response_id is not None:
        earlier = await turn_named(context, identity, body.previous_response_id, "previous_response_id")
    before = [] if earlier is None else said_before(earlier)
    said = await said_by_id(context, identity, named)

    def translate() -> tuple[TranslatedResponses, CheckedChat]:
        translated = TranslatedResponses(body, items, before, said, unknown)
        with named_as(translated.places):
            return translated, understand(context, identity, headers, translated.chat, translated.ignored)

    translated, asked = await away_if_large(context, identity, len(raw), translate)
    asked = _behind(_not_to_be_got(asked) if body.store is False else asked, earlier)
    with named_as(translated.places):
        plan = await plan_turns(context, asked, len(raw))
    plan = msgspec.structs.replace(plan, has_instructions=bool(body.instructions))
    return ResponseExchange(context, plan, body, translated.custom, with_logprobs=bool(translated.chat.logprobs))


def _not_to_be_got(asked: CheckedChat) -> CheckedChat:
    return replace(asked, intake=msgspec.structs.replace(asked.intake, retrievable=False))


def _behind(asked: CheckedChat, earlier: Completion | None) -> CheckedChat:
    """Return the request with its place: behind the answer that it names, in that one's session.

    Its words alone would not do: another session may have had the same. An answer of another user than the key's,
    which a key that may read sees, can be gone on from, but its session is not joined; nor is it where the request
    gives the id of another one."""
    intake = asked.intake
    if earlier is None or intake.session_id not in (None, earlier.session_id):
        return asked
    if intake.identity.user is not None and not intake.identity.made(earlier):
        return asked
    intake = msgspec.structs.replace(intake, session_hint=earlier.session_id)  # by which a retry finds the first try
    return replace(asked, intake=intake, after=earlier)
