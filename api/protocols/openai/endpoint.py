"""The part that the two generating routes share: from HTTP request to HTTP answer, streamed or whole."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

from msgspec import UNSET, UnsetType

from api.access.context import Context
from api.access.identity import Identity
from api.access.limits import ERRORS, admit
from api.access.routes import Need
from api.http.asgi import ClientGone, HangUp, Headers, RawHeaders, Receive, Scope, Send, send_error, send_json
from api.http.body_shape import Raw
from api.http.errors import error_response
from api.protocols.openai.answers import OnwardInfo, onward_headers, onward_info
from api.protocols.openai.streaming import DONE, EventSender, event
from api.requests.bodies import GenerationBody
from api.turns.turn import Turn, TurnDelta, TurnPlan
from core.errors import EngineUnavailable, NotFinite, RequestError, Unavailable


class Exchange(ABC):
    """One request's turns, and the form of their answers on its route."""

    def __init__(self, context: Context, plan: TurnPlan, body: GenerationBody, id_prefix: str) -> None:
        self._context, self._plan, self._id_prefix = context, plan, id_prefix
        self._begin(body.n or 1)
        self.created = int(plan.intake.received_at.timestamp())
        self.model = body.model
        self.renderer = context.services.renderer
        self.streams = bool(body.stream)
        self.limits: RawHeaders = []
        self.wants_usage = body.stream_options is not None and bool(body.stream_options.include_usage)

    def _begin(self, count: int) -> None:
        self.turns = [Turn(self._context, self._plan, choice) for choice in range(count)]
        self.id = self._id_prefix + (self.turns[0].inference_id if count == 1 else self._plan.group_id)

    @property
    def was_begun(self) -> bool:
        """True once an engine has sampled a token."""
        return any(turn.capture.token_ids for turn in self.turns)

    def begin_again(self) -> None:
        """Start over with new turns; the tokens of the old ones stay in the log as they are."""
        self._begin(len(self.turns))

    def shared_info(self) -> OnwardInfo | UnsetType:
        """Return the info that stands beside the choices where there is only one; several have their own each."""
        return onward_info(self.turns[0]) if len(self.turns) == 1 else UNSET

    def own_info(self, turn: Turn) -> OnwardInfo | UnsetType:
        return UNSET if len(self.turns) == 1 else onward_info(turn)

    @abstractmethod
    def answer(self) -> bytes:
        """Return the whole answer, once all turns have run."""

    @abstractmethod
    def delta_event(self, turn: Turn, delta: TurnDelta) -> bytes:
        """Return one event; empty when the client would learn nothing from it."""

    @abstractmethod
    def final_event(self, turn: Turn) -> bytes:
        """Return the choice's last event, with its finish reason."""

    @abstractmethod
    def usage_event(self) -> bytes: ...


Planner = Callable[[Context, Identity, Headers, Raw], Awaitable[Exchange]]


class GenerationEndpoint:
    """An ASGI application for one path."""

    def __init__(self, context: Context, plan: Planner, need: Need) -> None:
        self._context = context
        self._need = need
        self._plan = plan

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services = self._context.services
        identity: Identity | None = None
        try:
            headers: Headers = dict(scope["headers"])
            identity = self._context.keys.identify(headers.get(b"authorization"))
            self._need.check(identity)
            limits = await admit(services.live_state, identity)
            exchange = await self._read(identity, headers, receive)
            exchange.limits = limits
            async with HangUp(receive):
                if exchange.streams:
                    await _stream(exchange, send)
                else:
                    await _answer(exchange, send)
        except (RequestError, Unavailable) as error:
            if identity is not None:
                services.live_state.count(identity.namespace, ERRORS)
            if not isinstance(error, _BrokenStream):
                await send_error(send, error)
        except ClientGone:
            return

    async def _read(self, identity: Identity, headers: Headers, receive: Receive) -> Exchange:
        body = await self._context.bodies.read(headers, receive)
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
    await send_json(send, 200, exchange.answer(), onward_headers(exchange.turns) + exchange.limits)


async def _stream(exchange: Exchange, send: Send) -> None:
    sender = EventSender(send, exchange.turns, exchange.delta_event, exchange.limits)
    try:
        await _run(exchange, sender.notify)
    except (RequestError, Unavailable) as error:
        if not sender.started:
            await sender.abandon()
            raise
        await sender.finish(event(error_response(error)[1]))
        raise _BrokenStream from error
    tail = [exchange.final_event(turn) for turn in exchange.turns]
    if exchange.wants_usage:
        tail.append(exchange.usage_event())
    await sender.finish(b"".join([*tail, DONE]))


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
