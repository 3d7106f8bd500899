"""The routes `POST /v1/messages` and `POST /v1/messages/count_tokens`."""

from fastapi import APIRouter, Request, Response

from api.access.context import Context
from api.access.identity import Identity
from api.access.plain import body_of, identity_of, json_body, json_response
from api.http.asgi import Headers
from api.http.body_shape import Raw
from api.http.decoding import decode_body
from api.protocols.anthropic.answers import TokenCount
from api.protocols.anthropic.events import MessageExchange
from api.protocols.anthropic.request import Translated
from api.protocols.chat_turns import Asked, plan_turns, understand
from api.protocols.places import named_as
from api.requests.anthropic import CountBody, count_decoder, messages_decoder
from api.turns.rendering import Rendering, read_large_apart


async def plan_message(context: Context, identity: Identity, headers: Headers, raw: Raw) -> MessageExchange:
    """Plan the turn of a request. Raises RequestError naming what is wrong with it."""

    def read() -> tuple[Translated, Asked]:
        translated = Translated(decode_body(messages_decoder, raw))
        with named_as(translated.places):
            asked = understand(context, identity, headers, translated.chat, translated.ignored, translated.session)
            return translated, asked

    translated, asked = await read_large_apart(context, "messages", raw, read)
    with named_as(translated.places):
        plan = await plan_turns(context, asked, len(raw), shortened=True)
    return MessageExchange(context, plan, model=asked.body.model, streams=bool(asked.body.stream))


def count_router(context: Context) -> APIRouter:
    router = APIRouter(tags=["generation"])

    @router.post("/v1/messages/count_tokens", openapi_extra=json_body(CountBody, "The prompt, in the form of a turn's"))
    async def count_tokens(request: Request) -> Response:
        """Return how many tokens a prompt has; nothing is generated, and nothing is stored."""
        body = await body_of(context, request, count_decoder)
        translated = Translated(body)
        headers: Headers = dict(request.scope["headers"])
        with named_as(translated.places):
            asked = understand(context, identity_of(request), headers, translated.chat, translated.ignored)
            size = sum(len(str(message)) for message in asked.shown)
            tokens = await Rendering(context, size).render(asked.shown, asked.tools)
        return json_response(TokenCount(len(tokens)))

    return router
