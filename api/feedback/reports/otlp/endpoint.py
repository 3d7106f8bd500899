"""The routes `POST /v1/logs` and `POST /v1/traces`: what editors and agents export of their users, by OpenTelemetry.

Of an export only the events in the table are read: what a user decided becomes an outcome of its turn, by the path of
`POST /v1/feedback`. What can be joined to no turn is counted, and said in the answer's `partial_success`. Spans tell
which names of a client belong to which answer, and their events are read like those that are logged."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

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

from api.access.context import Context
from api.access.identity import Identity
from api.access.limits import ERRORS, admit
from api.access.routes import Need
from api.feedback.reports.joining import link
from api.feedback.reports.otlp import wire
from api.feedback.reports.otlp.events import ClientEvent, ClientSpan, logged, traced
from api.feedback.reports.otlp.mapping import link_of, reports_of
from api.feedback.reports.otlp.table import EventTable
from api.feedback.reports.report import Report, take_report
from api.feedback.side_by_side import side_by_side
from api.http.asgi import ClientGone, Headers, Receive, Scope, Send
from api.http.body_shape import Raw
from api.http.errors import describe, error_headers, error_response
from api.turns.rendering import read_large_apart
from core.errors import InvalidRequest, RequestError, TooLarge, Unavailable
from core.telemetry import UNJOINED_EVENTS

LOGS, TRACES = "/v1/logs", "/v1/traces"
_MAX_SPANS = 10_000  # that may link names, in one export
_Said = tuple[list[ClientSpan], list[Report], Counter[str]]
"""The spans of an export, the reports in it, and why some events are none."""


class OtlpEndpoint:
    """An ASGI application for one of the two paths."""

    def __init__(self, context: Context, table: EventTable, path: str, need: Need) -> None:
        self._context, self._table, self._need = context, table, need
        self._is_logs = path == LOGS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: Headers = dict(scope["headers"])
        identity: Identity | None = None
        media = wire.JSON
        try:
            media = wire.media_of(headers)
            identity = self._context.keys.identify(headers.get(b"authorization"), headers.get(b"x-api-key"))
            self._need.check(identity)
            if scope["query_string"]:
                raise InvalidRequest("an export has no query parameters", code="unknown_field")
            limits = await admit(self._context.services.live_state, identity)
            answered = await self._take(identity, media, headers, receive)
            await _send(send, 200, media, wire.answer(answered, media), limits)
        except (RequestError, Unavailable) as error:
            if identity is not None:
                self._context.services.live_state.count(identity.namespace, ERRORS)
            await _send_error(send, error, media)
        except ClientGone:
            return

    async def _take(self, identity: Identity, media: bytes, headers: Headers, receive: Receive) -> Message:
        body = await self._context.bodies.read(headers, receive)
        try:
            content: Raw = body.raw
            if wire.is_compressed(headers):
                most = self._context.services.settings.bodies.max_bytes
                content = await asyncio.to_thread(wire.decompressed, content, most)
            spans, reports, refused = await self._read(media, content)
        finally:
            body.release()
        await self._link(identity, spans)
        refused += await self._report(identity, reports)
        return _answer(refused, is_logs=self._is_logs)

    async def _read(self, media: bytes, content: Raw) -> _Said:
        """Read the message on a thread, one large message after the other. Raises RequestError."""
        understand = partial(self._understand, media, content, self._context.services.clock.now())
        if not self._context.bodies.is_large(len(content)):
            return await asyncio.to_thread(understand)
        if media == wire.JSON:
            return await read_large_apart(self._context, "other", content, understand)
        return await self._context.reader.away(understand)

    def _understand(self, media: bytes, content: Raw, now: datetime) -> _Said:
        services = self._context.services
        most = services.settings.bodies.values
        spans: list[ClientSpan] = []
        events: Iterable[ClientEvent]
        if self._is_logs:
            events = logged(wire.read_export(ExportLogsServiceRequest, media, content), most)
        else:
            spans, events = traced(wire.read_export(ExportTraceServiceRequest, media, content), most)
        reports: list[Report] = []
        refused = Counter[str]()
        for event in events:
            try:
                reports += reports_of(event, self._table, services.spec, now)
            except ValueError:
                refused["bad_time"] += 1
        return spans, reports, refused

    async def _link(self, identity: Identity, spans: Sequence[ClientSpan]) -> None:
        found = (link_of(span, self._table.links) for span in spans[:_MAX_SPANS])
        await link(self._context, identity, [each for each in found if each is not None])

    async def _report(self, identity: Identity, reports: Sequence[Report]) -> Counter[str]:
        """Record what the events say, and count why some of it became no outcome. Raises Unavailable."""
        refused = Counter[str]()
        most = self._context.services.settings.feedback.batch_items
        for report in reports[most:]:
            UNJOINED_EVENTS.labels(report.source, "too_many").inc()
            refused["too_many"] += 1

        async def take(place: int) -> str | Unavailable | None:
            try:
                return await take_report(self._context, identity, reports[place])
            except Unavailable as error:
                return error

        subjects = [(each.clues.answers, each.clues.tool_call, each.clues.conversation) for each in reports[:most]]
        for outcome in await side_by_side(subjects, take):
            if isinstance(outcome, Unavailable):
                raise outcome  # what was recorded is known by its id when the export comes again
            if outcome is not None:
                refused[outcome] += 1
        return refused


def _answer(refused: Counter[str], *, is_logs: bool) -> Message:
    answer: Any = ExportLogsServiceResponse() if is_logs else ExportTraceServiceResponse()
    if refused:
        why = ", ".join(f"{reason} {count}" for reason, count in sorted(refused.items()))
        message = f"became no outcome of any turn: {why}"
        count = refused.total()
        if is_logs:
            answer.partial_success.CopyFrom(ExportLogsPartialSuccess(rejected_log_records=count, error_message=message))
        else:  # its spans were all read
            answer.partial_success.CopyFrom(ExportTracePartialSuccess(rejected_spans=0, error_message=message))
    return answer  # type: ignore[no-any-return]


async def _send(
    send: Send, status: int, media: bytes, body: bytes, headers: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    start = [(b"content-type", media), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})


async def _send_error(send: Send, error: RequestError | Unavailable, media: bytes) -> None:
    status, body = error_response(error, wire.in_status_shape)
    if media == wire.PROTOBUF:
        body = wire.status_message(*describe(error))
    headers = [(name.encode(), value.encode()) for name, value in error_headers(error).items()]
    if isinstance(error, TooLarge):  # the rest of the body is unread
        headers.append((b"connection", b"close"))
    await _send(send, status, media, body, headers)
