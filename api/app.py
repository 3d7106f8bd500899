"""The HTTP application: the generating routes of all protocols as plain ASGI, everything else plain FastAPI."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.routing import Route

from api.access.consents.kept import KeptConsents
from api.access.consents.taking_back import TakingBack
from api.access.context import ApiContext
from api.access.identity import KeyRing
from api.access.low_priority import LowPlaces
from api.access.origin_check import OriginCheck
from api.access.quotas.admission import Quotas
from api.access.quotas.counted_log import CountedLog
from api.access.quotas.months import Months
from api.access.routes import ACCESS, AccessCheck, check_routes
from api.access.services import ApiServices
from api.access.stored_keys import StoredKeys, known_keys
from api.access.trail import Trail, noted
from api.access.under_way import UnderWay
from api.console import console_router
from api.documents import documents_router
from api.feedback.batches import batch_router
from api.feedback.names import outcomes_router
from api.feedback.reports.continues import continue_router
from api.feedback.reports.otlp.endpoint import LOGS, TRACES, OtlpEndpoint
from api.feedback.reports.otlp.table import load_events
from api.feedback.reports.otlp.wire import in_status_shape
from api.feedback.routes import feedback_router
from api.http.asgi import Message, Receive, Scope, Send
from api.http.errors import SHAPE, ErrorShape, answer_error, install_error_handlers
from api.http.head import answer_head
from api.http.large_bodies import Bodies
from api.openapi import describe
from api.operator.accounts.audit import audit_router
from api.operator.accounts.consents import consent_router
from api.operator.accounts.keys import keys_router
from api.operator.accounts.quotas import quotas_router
from api.operator.alarms import alarms_router
from api.operator.exclusions.routes import exclusions_router
from api.operator.figures.clients import clients_router
from api.operator.figures.curves import curves_router
from api.operator.figures.frontier import frontier_router
from api.operator.figures.improvement import improvement_router
from api.operator.figures.overview import overview_router
from api.operator.figures.serving import serving_router
from api.operator.fleet import fleet_router
from api.operator.health import health_router
from api.operator.policies import policies_router
from api.operator.rewards import rewards_router
from api.operator.rollbacks import rollback_router
from api.operator.session_list import session_list_router
from api.operator.session_routes import session_router
from api.operator.stages import stages_router
from api.operator.status import status_router
from api.operator.suites.drafts import drafts_router
from api.operator.turn_routes import turn_router
from api.protocols.anthropic.errors import in_anthropics_shape
from api.protocols.anthropic.routes import count_router, plan_message
from api.protocols.endpoint import GenerationEndpoint, Planner
from api.protocols.fim.llama_cpp import plan_infill
from api.protocols.fim.mistral import plan_fim
from api.protocols.openai.chat import plan_chat
from api.protocols.openai.completions import plan_completion
from api.protocols.responses.routes import plan_response
from api.protocols.responses.stored import stored_router
from api.protocols.tabby.completions import plan_tabby
from api.protocols.tabby.routes import tabby_router
from api.redaction.policies import Redactors
from api.requests.reader import BodyReader, ProcessReader, ThreadReader
from core.events import Protocol

VERSION = "0.1.0"
_GENERATING: dict[str, tuple[Planner, Protocol]] = {
    "/v1/chat/completions": (plan_chat, "chat"),
    "/v1/completions": (plan_completion, "completions"),
    "/v1/responses": (plan_response, "responses"),
    "/v1/messages": (plan_message, "messages"),
    "/v1/fim/completions": (plan_fim, "fim"),
    "/infill": (plan_infill, "infill"),
    "/tabby/v1/completions": (plan_tabby, "tabby"),
}
_EXPORTS = (LOGS, TRACES)
_REDIRECT = 307
_SHAPES: dict[str, ErrorShape] = {
    **dict.fromkeys(_EXPORTS, in_status_shape),
    "/v1/messages": in_anthropics_shape,
    "/v1/messages/count_tokens": in_anthropics_shape,
}
_ROUTERS = (
    feedback_router,
    batch_router,
    continue_router,
    outcomes_router,
    count_router,
    stored_router,
    tabby_router,
    session_list_router,
    session_router,
    clients_router,
    policies_router,
    rollback_router,
    exclusions_router,
    fleet_router,
    rewards_router,
    alarms_router,
    status_router,
    stages_router,
    turn_router,
    curves_router,
    frontier_router,
    improvement_router,
    overview_router,
    serving_router,
    audit_router,
    keys_router,
    quotas_router,
    consent_router,
    drafts_router,
    health_router,
)


class Application(FastAPI):
    """FastAPI with hot routes that bypass its middleware and its router, which cost more than the turn does."""

    generating = tuple(_GENERATING)
    _hot: dict[str, ServerErrorMiddleware]
    origin_check: OriginCheck
    """The check that every request passes first."""
    trail: Trail

    def add_hot_route(self, path: str, endpoint: GenerationEndpoint | OtlpEndpoint) -> None:
        """Add a POST route. The router knows it too, to answer other methods."""
        self.__dict__.setdefault("_hot", {})[path] = ServerErrorMiddleware(endpoint, handler=answer_error)
        self.router.routes.append(Route(path, endpoint, methods=["POST"]))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            if (shape := _SHAPES.get(scope["path"])) is not None:
                scope[SHAPE] = shape
            admitted = await self.origin_check.admit(scope, receive, send)
            if admitted is None:
                return
            send = admitted
        hot = self._hot.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if hot is not None:
            await hot(scope, receive, send)
            return
        send = noted(self.trail, scope, _to_paths(send)) if scope["type"] == "http" else send
        if scope["type"] == "http" and scope["method"] == "HEAD":
            await answer_head(super().__call__, scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def _to_paths(send: Send) -> Send:
    """Have redirects, from a path with a slash too many, name a path alone.

    With an address they would lead from a proxy's `https://` to our own `http://`, and clients send keys there."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == _REDIRECT:
            headers = [(name, _path_of(value) if name == b"location" else value) for name, value in message["headers"]]
            message = {**message, "headers": headers}
        await send(message)

    return sending


def _path_of(url: bytes) -> bytes:
    return urlsplit(url)._replace(scheme=b"", netloc=b"").geturl()


def create_app(services: ApiServices) -> FastAPI:
    """Make the application.

    Raises ConfigError for settings that would let strangers in and for a wrong table of events, LookupError for a
    route that the access table lacks."""
    settings = services.settings
    ring = KeyRing(settings, known_keys(services.store), services.clock.now)
    stored = StoredKeys(services.store, ring, services.clock)
    places = LowPlaces(settings.low_priority)
    redactors = Redactors(services.privacy, settings.user_hash_key)
    redactors.check_namespaces(ring.namespaces)
    months = Months(services.quotas, services.store, services.clock)
    is_priced = settings.prices.are_known
    quotas = Quotas(services.quotas, services.live_state, months, services.clock, is_priced=is_priced)
    log = CountedLog(services.log, quotas)
    bodies, under_way = Bodies(settings.bodies), UnderWay(settings.bodies)
    consents = KeptConsents(services.store)
    taking_back = TakingBack(services.log, services.store, services.clock)
    reader = _reader(services)
    context = ApiContext(
        services, ring, reader, bodies, under_way, places, stored, redactors, quotas, log, consents, taking_back
    )

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with services.live_state, stored, months, consents, taking_back:
            yield
            await context.reader.aclose()
            await context.background.drain()  # turns whose clients are gone still reach the log

    app = Application(
        title="Onward",
        version=VERSION,
        description="OpenAI-compatible chat and completions from a model that learns from what users do.",
        lifespan=lifespan,
        docs_url=None,  # FastAPI's pages load scripts from other sites
        redoc_url=None,
        generate_unique_id_function=_operation_id,
        dependencies=[Depends(AccessCheck(context))],
    )
    app.origin_check = OriginCheck(services.settings)
    app.trail = Trail(services.store, services.head, services.clock, services.audit.repeat_s)
    install_error_handlers(app)
    for path, (plan, protocol) in _GENERATING.items():
        app.add_hot_route(path, GenerationEndpoint(context, plan, ACCESS["POST", path], protocol))
    table = load_events(services.settings.feedback.events)
    for path in _EXPORTS:
        app.add_hot_route(path, OtlpEndpoint(context, table, path, ACCESS["POST", path]))
    routers = [*(make(context) for make in _ROUTERS), console_router(), documents_router(services.site)]
    check_routes([*app.routes, *(route for each in routers for route in each.routes)], hot=(*_GENERATING, *_EXPORTS))
    for router in routers:
        app.include_router(router)  # FastAPI makes its routes once more, but not before the first request for it
    _describe_all(app)
    return app


def _reader(services: ApiServices) -> BodyReader:
    if services.reader:
        return ProcessReader(services.reader, services.settings.bodies.work_s)
    return ThreadReader(services.renderer)


def _describe_all(app: FastAPI) -> None:
    generated = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = describe(generated())
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way to extend the document


def _operation_id(route: APIRoute) -> str:
    return route.name
