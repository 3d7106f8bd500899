"""The routes `POST /v1/messages` and `POST /v1/messages/count_tokens`."""

from fastapi import APIRouter, Request, Response

from api.access.context import ApiContext
from api.access.identity import Identity
from api.access.plain import foreign_body_of, identity_of, json_body, json_response, told_ignored
from api.access.quotas.limits import admit
from api.http.asgi import Headers
from api.http.body_shape import Raw
from api.http.foreign import decode_foreign
from api.protocols.anthropic.answers import TokenCount
from api.protocols.anthropic.events import MessageExchange
from api.protocols.anthropic.request import TranslatedMessages
from api.protocols.chat_turns import CheckedChat, plan_turns, understand
from api.protocols.places import named_as
from api.requests.anthropic import CountBody, count_decoder, messages_decoder
from api.turns.rendering import Rendering, away_if_large, read_large_apart


async def plan_message(context: ApiContext, identity: Identity, headers: Headers, raw: Raw) -> MessageExchange:
    """Plan the turn of a request. Raises RequestError naming what is wrong with it."""

    def read() -> tuple[TranslatedMessages, CheckedChat]:
        translated = TranslatedMessages(*decode_foreign(messages_decoder, raw))
        with named_as(translated.places):
            asked = understand(context, identity, headers, translated.chat, translated.ignored, translated.session)
            return translated, asked

    translated, asked = await read_large_apart(context, "messages", raw, read, identity)
    with named_as(translated.places):
        plan = await plan_turns(context, asked, len(raw), shortened=True)
    return MessageExchange(context, plan, model=asked.body.model, streams=bool(asked.body.stream))


def count_router(context: ApiContext) -> APIRouter:
    router = APIRouter(tags=["generation"])

    @router.post("/v1/messages/count_tokens", openapi_extra=json_body(CountBody, "The prompt, in the form of a turn's"))
    async def count_tokens(request: Request) -> Response:
        """Return how many tokens a prompt has; nothing is generated, and nothing is stored."""
        identity = identity_of(request)
        limits = await admit(context.services.live_state, identity)
        body, unknown = await foreign_body_of(context, request, count_decoder)
        size = int(request.headers.get("content-length", context.services.settings.bodies.max_bytes))

        def read() -> tuple[TranslatedMessages, CheckedChat]:
            translated = TranslatedMessages(body, unknown)
            with named_as(translated.places):
                headers: Headers = dict(request.scope["headers"])
                return translated, understand(context, identity, headers, translated.chat, translated.ignored)

        translated, asked = await away_if_large(context, identity, size, read)
        with named_as(translated.places):
            tokens = await Rendering(context, size).render(asked.shown, asked.tools)
        response = json_response(TokenCount(len(tokens)))
        response.raw_headers += limits
        response.headers.update(told_ignored(asked.ignored))
        return response

    return router
