"""The part that all generating routes share: from HTTP request to HTTP answer, streamed or whole."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from api.access.clients import count_refused
from api.access.context import ApiContext
from api.access.identity import Identity
from api.access.low_priority import header_priority
from api.access.quotas.admission import merged
from api.access.quotas.limits import ERRORS, admit
from api.access.routes import Need
from api.http.asgi import ClientGone, HangUp, Headers, Receive, Scope, Send, hint_text, send_body, send_error
from api.http.background import called_by
from api.http.body_shape import Raw
from api.http.errors import shape_of
from api.http.large_bodies import Body
from api.http.unread import counted, name_caller
from api.protocols.exchange import Exchange
from api.protocols.onward_info import onward_headers
from api.protocols.streaming import EventSender
from api.turns.turn import Turn
from core.errors import EngineUnavailable, NotFinite, RequestError, Unavailable
from core.events import Protocol

_TOKEN_BYTES = 4  # about, of text
Planner = Callable[[ApiContext, Identity, Headers, Raw], Awaitable[Exchange]]


class GenerationEndpoint:
    """An ASGI application for one path."""

    def __init__(self, context: ApiContext, plan: Planner, need: Need, protocol: Protocol) -> None:
        self._context = context
        self._protocol: Protocol = protocol
        self._need = need
        self._plan = plan

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services = self._context.services
        identity: Identity | None = None
        headers: Headers = dict(scope["headers"])
        try:
            identity = self._context.keys.identify(headers.get(b"authorization"), headers.get(b"x-api-key"))
            name_caller(scope, identity.caller)
            self._need.check(identity)
            called_by(identity.caller)
            priority = header_priority(headers)
            limits = await admit(services.live_state, identity, priority)
            admitted = await self._context.quotas.admit(identity, priority)
            body = await self._context.bodies.read(headers, receive)
            size = len(body.raw)
            async with HangUp(receive):
                exchange = await self._planned(identity, headers, body)
                await exchange.heed_consent()
                intake = exchange.plan.intake
                of_user = await self._context.quotas.admit_user(identity.namespace, intake.user_id, intake.priority)
                exchange.limits = merged(merged(limits, admitted), of_user)
                with self._room_of(exchange, size), self._place_of(exchange):
                    try:
                        await (_stream(exchange, scope, send) if exchange.streams else _answer(exchange, send))
                    finally:
                        self._charge(exchange)
        except (RequestError, Unavailable) as error:
            if identity is not None:
                services.live_state.count(identity.namespace, ERRORS)
            if isinstance(error, RequestError):
                namespace = None if identity is None else identity.namespace
                count_refused(namespace, hint_text(headers, b"user-agent"), self._protocol, error)
            if not isinstance(error, _BrokenStream):
                await send_error(send, error, shape_of(scope))
        except ClientGone:
            return

    def _room_of(self, exchange: Exchange, size: int) -> AbstractContextManager[None]:
        """Return room for what was sent, or for the prompt where it goes on from what is kept, for each choice."""
        intake, size = exchange.plan.intake, max(size, _TOKEN_BYTES * len(exchange.plan.place.prompt_token_ids))
        user = intake.identity.caller if intake.user_id is None else (intake.identity.namespace, intake.user_id)
        return self._context.under_way.hold(intake.identity.caller, user, size * len(exchange.turns))

    def _place_of(self, exchange: Exchange) -> AbstractContextManager[None]:
        intake = exchange.plan.intake
        if intake.priority != "low":
            return nullcontext()
        key = None if intake.identity.key_id is None else intake.identity.caller
        return self._context.low_places.take(len(exchange.turns), key)

    def _charge(self, exchange: Exchange) -> None:
        """Count what the exchange used, once it has ended, however it did."""
        if self._context.quotas.are_set and exchange.was_begun:
            intake = exchange.plan.intake
            self._context.background.spawn(self._context.quotas.charge(intake.identity, intake.user_id, exchange.use))

    async def _planned(self, identity: Identity, headers: Headers, body: Body) -> Exchange:
        try:
            return await self._plan(self._context, identity, headers, body.raw)
        finally:
            body.release()


class _BrokenStream(Unavailable):
    """An error that the client has been sent in its stream, since the answer had started."""


async def _answer(exchange: Exchange, send: Send) -> None:
    """Run the turns and send the whole answer.

    They run once more if the engine was lost midway: the client has seen nothing yet."""
    try:
        await _run(exchange, None)
    except EngineUnavailable as error:
        if not exchange.was_begun or isinstance(error, NotFinite):  # the same numbers would come again
            raise
        exchange.begin_again()
        await _run(exchange, None)
    await send_body(send, 200, exchange.answer(), onward_headers(exchange.turns) + exchange.limits)


async def _stream(exchange: Exchange, scope: Scope, send: Send) -> None:
    sender = EventSender(send, exchange)
    with counted(scope, sender.waiting_bytes):
        try:
            await _run(exchange, sender.notify)
        except (RequestError, Unavailable) as error:
            if not sender.started:
                await sender.abandon()
                raise
            await sender.finish(partial(exchange.error_events, error))
            raise _BrokenStream from error
        await sender.finish(exchange.last_events)


async def _run(exchange: Exchange, notify: Callable[[Turn], None] | None) -> None:
    """Run all choices at once; when one fails, the others stop and are logged as aborted."""
    if len(exchange.turns) == 1:
        await exchange.turns[0].run(notify)
        return
    try:
        async with asyncio.TaskGroup() as group:
            for turn in exchange.turns:
                group.create_task(turn.run(notify))
    except* (RequestError, Unavailable) as errors:
        raise _first(errors) from None


def _first(errors: BaseExceptionGroup[Exception]) -> Exception:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, Exception)
    return error
