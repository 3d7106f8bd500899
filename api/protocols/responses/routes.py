"""The route `POST /v1/responses`."""

from dataclasses import replace

import msgspec

from api.access.context import Context
from api.access.identity import Identity
from api.http.asgi import Headers
from api.http.body_shape import Raw
from api.http.decoding import decode_body
from api.protocols.chat_turns import Asked, plan_turns, understand
from api.protocols.places import named_as
from api.protocols.responses.earlier import said_before, said_by_id, turn_named
from api.protocols.responses.events import ResponseExchange
from api.protocols.responses.request import Items, Translated, items_of
from api.requests.responses import ResponsesBody, responses_decoder
from api.turns.rendering import away_if_large, read_large_apart
from api.turns.sessions import SessionPosition
from api.turns.turn import TurnPlan
from core.events import Completion


async def plan_response(context: Context, identity: Identity, headers: Headers, raw: Raw) -> ResponseExchange:
    """Plan the turn of a request. Raises RequestError naming what is wrong with it."""

    def read() -> tuple[ResponsesBody, Items]:
        body = decode_body(responses_decoder, raw)
        return body, items_of(body)

    body, items = await read_large_apart(context, "responses", raw, read)
    earlier = None
    if body.previous_response_id is not None:
        earlier = await turn_named(context, identity, body.previous_response_id, "previous_response_id")
    before = [] if earlier is None else said_before(earlier)
    said = await said_by_id(context, identity, items)

    def translate() -> tuple[Translated, Asked]:
        translated = Translated(body, items, before, said)
        with named_as(translated.places):
            return translated, understand(context, identity, headers, translated.chat, translated.ignored)

    translated, asked = await away_if_large(context, len(raw), translate)
    with named_as(translated.places):
        plan = await plan_turns(context, _not_to_be_got(asked) if body.store is False else asked, len(raw))
    plan = msgspec.structs.replace(plan, has_instructions=bool(body.instructions), place=_place(plan, earlier))
    return ResponseExchange(context, plan, body, translated.custom, with_logprobs=bool(translated.chat.logprobs))


def _not_to_be_got(asked: Asked) -> Asked:
    return replace(asked, intake=msgspec.structs.replace(asked.intake, retrievable=False))


def _place(plan: TurnPlan, earlier: Completion | None) -> SessionPosition:
    """Return the turn's place: behind the answer that the request names, where its words alone did not lead there.

    An answer of another user than the key's, which a key that may read sees, can be gone on from, but its session is
    not joined."""
    place, intake = plan.place, plan.intake
    if earlier is None or intake.session_id is not None or place.how in ("continued", "branch"):
        return place
    if intake.identity.user is not None and not intake.identity.made(earlier):
        return place
    return msgspec.structs.replace(place, session_id=earlier.session_id, parent_id=earlier.inference_id, how="retold")
