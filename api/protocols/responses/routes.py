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
from api.protocols.responses.earlier import INSTRUCTIONS, said_before, said_by_id, turn_named
from api.protocols.responses.events import ResponseExchange
from api.protocols.responses.request import Items, Translated, items_of
from api.requests.messages import ChatMessage
from api.requests.responses import ResponsesBody, responses_decoder
from api.turns.rendering import away_if_large, read_large_apart


async def plan_response(context: Context, identity: Identity, headers: Headers, raw: Raw) -> ResponseExchange:
    """Plan the turn of a request. Raises RequestError naming what is wrong with it."""

    def read() -> tuple[ResponsesBody, Items]:
        body = decode_body(responses_decoder, raw)
        return body, items_of(body)

    body, items = await read_large_apart(context, "responses", raw, read)
    before: list[ChatMessage] = []
    if body.previous_response_id is not None:
        turn = await turn_named(context, identity, body.previous_response_id, "previous_response_id")
        before = said_before(turn)
    said = await said_by_id(context, identity, items)

    def translate() -> tuple[Translated, Asked]:
        translated = Translated(body, items, before, said)
        with named_as(translated.places):
            return translated, understand(context, identity, headers, translated.chat, translated.ignored)

    translated, asked = await away_if_large(context, len(raw), translate)
    with named_as(translated.places):
        plan = await plan_turns(context, _marked(asked, body), len(raw))
    return ResponseExchange(context, plan, body, translated.custom, with_logprobs=bool(translated.chat.logprobs))


def _marked(asked: Asked, body: ResponsesBody) -> Asked:
    """Mark the instructions among the stored messages, and an answer that nobody may get again."""
    messages = asked.messages
    if body.instructions:
        messages = ({**messages[0], INSTRUCTIONS: True}, *messages[1:])
    intake = asked.intake
    if body.store is False:
        intake = msgspec.structs.replace(intake, retrievable=False)
    return replace(asked, messages=messages, intake=intake)
