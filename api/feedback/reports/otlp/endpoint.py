"""The routes `POST /v1/logs` and `POST /v1/traces`: what editors and agents export of their users, by OpenTelemetry.

Of an export only the events in the table are read: what a user decided becomes an outcome of its turn, by the path of
`POST /v1/feedback`. What can be joined to no turn is counted, and said in the answer's `partial_success`. Spans tell
which names of a client belong to which answer, and their events are read like those that are logged."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from functools import partial
from typing import Any

import msgspec
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsPartialSuccess,
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from api.access.context import ApiContext
from api.access.identity import Identity
from api.access.quotas.limits import ERRORS, admit
from api.access.routes import Need
from api.feedback.reports.links import Link, link
from api.feedback.reports.otlp import wire
from api.feedback.reports.otlp.events import ClientEvent, ClientSpan, logged, traced
from api.feedback.reports.otlp.mapping import link_of, reports_of
from api.feedback.reports.otlp.table import EventTable
from api.feedback.reports.report import ReportedOutcome, count_unjoined, take_reports, told
from api.http.asgi import JSON, ClientGone, Headers, Receive, Scope, Send, raw_error_headers, send_body
from api.http.background import called_by
from api.http.body_shape import Raw
from api.http.errors import describe, error_response
from api.http.unread import name_caller
from api.turns.rendering import read_large_apart
from core.errors import InvalidRequest, RequestError, Unavailable

LOGS, TRACES = "/v1/logs", "/v1/traces"
_LINKS = 4  # spans of one export that link names, for each event of it that becomes an outcome
_TOO_MANY = "too_many"


class _Said(msgspec.Struct, frozen=True, kw_only=True):
    """What an export says, as much of it as one export may.

    `unlinked`: spans beyond; `beyond`: reports beyond, by their source; `refused`: why some events are no reports."""

    links: list[Link]
    unlinked: int
    reports: list[ReportedOutcome]
    beyond: Counter[str]
    refused: Counter[str]


class OtlpEndpoint:
    """An ASGI application for one of the two paths."""

    def __init__(self, context: ApiContext, table: EventTable, path: str, need: Need) -> None:
        self._context, self._table, self._need = context, table, need
        self._is_logs = path == LOGS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: Headers = dict(scope["headers"])
        identity: Identity | None = None
        media = JSON
        try:
            media = wire.media_of(headers)
            identity = self._context.keys.identify(headers.get(b"authorization"), headers.get(b"x-api-key"))
            name_caller(scope, identity.caller)
            self._need.check(identity)
            called_by(identity.caller)
            if scope["query_string"]:
                raise InvalidRequest("an export has no query parameters", code="unknown_field")
            limits = await admit(self._context.services.live_state, identity)
            answered = await self._take(identity, media, headers, receive)
            await send_body(send, 200, wire.answer(answered, media), limits, media)
        except (RequestError, Unavailable) as error:
            if identity is not None:
                self._context.services.live_state.count(identity.namespace, ERRORS)
            await _send_error(send, error, media)
        except ClientGone:
            return

    async def _take(self, identity: Identity, media: bytes, headers: Headers, receive: Receive) -> Message:
        services, bodies = self._context.services, self._context.bodies
        with ExitStack() as held:  # until all is done, since what was read of it takes memory for as long
            body = await bodies.read(headers, receive, as_sent=True)
            held.callback(body.release)
            content: Raw = body.raw
            if wire.is_compressed(headers):
                most = services.settings.bodies.max_bytes
                content = await self._context.aside.run(identity.caller, partial(wire.decompressed, content, most))
                held.enter_context(self._room_for(len(content)))
            said = await self._read(identity.caller, media, content)
            await link(self._context, identity, said.links)
            refused = said.refused + await self._report(identity, said)
        return _answer(refused, said.unlinked, is_logs=self._is_logs)

    @contextmanager
    def _room_for(self, size: int) -> Iterator[None]:
        """Count what was decompressed like a body that came so large. Raises Overloaded."""
        bodies = self._context.bodies
        counted = size if bodies.is_large(size) else 0
        bodies.take(counted)
        try:
            yield
        finally:
            bodies.give(counted)

    async def _read(self, caller: Hashable, media: bytes, content: Raw) -> _Said:
        """Read the message on a thread, one message after the other. Raises RequestError."""
        understand = partial(self._understand, media, content, self._context.services.clock.now())
        if not self._context.bodies.is_large(len(content)):
            return await self._context.aside.run(caller, understand)
        if media == JSON:
            return await read_large_apart(self._context, "other", content, understand)
        return await self._context.reader.away(understand)

    def _understand(self, media: bytes, content: Raw, now: datetime) -> _Said:
        services = self._context.services
        values, items = services.settings.bodies.values, services.settings.feedback.batch_items
        spans: list[ClientSpan] = []
        events: Iterable[ClientEvent]
        if self._is_logs:
            events = logged(wire.read_export(ExportLogsServiceRequest, media, content, values))
        else:
            spans, events = traced(wire.read_export(ExportTraceServiceRequest, media, content, values))
        reports: list[ReportedOutcome] = []
        refused = Counter[str]()
        for event in events:
            try:
                reports += reports_of(event, self._table, services.spec, now)
            except ValueError:
                refused["bad_time"] += 1
        links = [each for span in spans if (each := link_of(span, self._table.links)) is not None]
        return _Said(
            links=links[: _LINKS * items],
            unlinked=max(0, len(links) - _LINKS * items),
            reports=reports[:items],
            beyond=Counter(each.source for each in reports[items:]),
            refused=refused,
        )

    async def _report(self, identity: Identity, said: _Said) -> Counter[str]:
        """Record what the events say, and count why some of it became no outcome.

        Raises TooManyRequests and Unavailable, after which the export comes again: what was recorded is known then by
        its id, and what was not is counted then."""
        reasons = await take_reports(self._context, identity, said.reports)
        unjoined = Counter({(source, _TOO_MANY): count for source, count in said.beyond.items()})
        unjoined.update(
            (report.source, why) for report, why in zip(said.reports, reasons, strict=True) if why is not None
        )
        refused = Counter[str]()
        for (source, reason), count in unjoined.items():
            count_unjoined(identity.namespace, source, reason, count)
            refused[told(identity, reason)] += count
        return refused


def _answer(refused: Counter[str], unlinked: int, *, is_logs: bool) -> Message:
    """Return the answer; `unlinked` spans were more than one export may link names by."""
    answer: Any = ExportLogsServiceResponse() if is_logs else ExportTraceServiceResponse()
    said = []
    if refused:
        why = ", ".join(f"{reason} {count}" for reason, count in sorted(refused.items()))
        said.append(f"became no outcome of any turn: {why}")
    if unlinked:
        said.append(f"linked no names, since they are too many in one export: {unlinked} spans")
    message, count = "; ".join(said), refused.total()
    if message and is_logs:
        answer.partial_success.CopyFrom(ExportLogsPartialSuccess(rejected_log_records=count, error_message=message))
    elif message:  # of spans whose events became nothing all was read
        answer.partial_success.CopyFrom(ExportTracePartialSuccess(rejected_spans=unlinked, error_message=message))
    return answer  # type: ignore[no-any-return]


async def _send_error(send: Send, error: RequestError | Unavailable, media: bytes) -> None:
    status, body = error_response(error, wire.in_status_shape)
    if media == wire.PROTOBUF:
        body = wire.status_message(*describe(error))
    await send_body(send, status, body, raw_error_headers(error), media)
