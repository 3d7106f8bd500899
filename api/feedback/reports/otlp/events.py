"""The events of an export as the table sees them: a name, attributes, a time, whether they were logged or traced.

Shapes: https://github.com/open-telemetry/opentelemetry-proto (`logs.proto`, `trace.proto`, `common.proto`)."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import msgspec
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from api.feedback.reports.links import LONGEST_NAME
from api.feedback.reports.report import digest_of

Attributes = Mapping[str, Any]
_NANOS = 1_000_000_000


class Around:
    """Attributes that hold for all that is within a resource, or a span of it: many events share them."""

    def __init__(self, attributes: Attributes, outer: "Around | None" = None) -> None:
        self._attributes, self._outer = attributes, outer

    def get(self, name: str) -> Any:
        outer = None if self._outer is None else self._outer.get(name)
        return self._attributes.get(name, outer)

    @cached_property
    def digest(self) -> str:
        """A digest of them all, made once for all events."""
        return digest_of([self._attributes, None if self._outer is None else self._outer.digest])


class ClientEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event. `names`: what it may be called by; `span`: the name of the span it happened in, or "".

    `time_ns` is since 1970; 0 where it has no time."""

    names: tuple[str, ...]
    attributes: Attributes
    around: "Around"
    """Attributes of its span and its resource, which hold where the event has no such attribute itself."""
    scope: str
    time_ns: int
    span: str

    def get(self, name: str) -> Any:
        return self.attributes.get(name, self.around.get(name))

    def named(self, names: Iterable[str]) -> str | None:
        """Return the first of these attributes that is there, as a name."""
        return next((name for each in names if (name := as_name(self.get(each)))), None)

    def at(self, now: datetime) -> datetime:
        """Return when it happened. Raises ValueError for a time beyond the calendar's."""
        if self.time_ns == 0:
            return now
        seconds, rest = divmod(self.time_ns, _NANOS)
        try:
            return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1000)
        except (OverflowError, OSError):
            raise ValueError("its time is beyond the calendar") from None

    @property
    def identity(self) -> list[Any]:
        """What tells it from all other events, and is the same in a second export of it."""
        return [self.names, self.scope, self.time_ns, self.span, self.attributes, self.around.digest]


class ClientSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A span that may link names; `name` is its own, as events of it have it."""

    attributes: Attributes
    name: str


def as_text(value: Any) -> str:
    """Return a plain value as text: true and false in lower case, whole numbers without a point; else ""."""
    match value:
        case bool():
            return str(value).lower()
        case float() if value.is_integer():
            return str(int(value))
        case str() | int() | float():
            return str(value)
    return ""


def as_name(value: Any) -> str:
    """Return a plain value as text, like `as_text`; "" also where it is too long for a name."""
    text = as_text(value)
    return text if len(text) <= LONGEST_NAME else ""


def logged(export: ExportLogsServiceRequest) -> Iterator[ClientEvent]:
    """Iterate over the events."""
    for resource in export.resource_logs:
        around = Around(_attributes(resource.resource.attributes))
        for scope in resource.scope_logs:
            for record in scope.log_records:
                attributes = _attributes(record.attributes)
                named = (record.event_name, attributes.get("event.name"), _plain(record.body))
                yield ClientEvent(
                    names=tuple(dict.fromkeys(name for name in named if isinstance(name, str) and name)),
                    attributes=attributes,
                    around=around,
                    scope=scope.scope.name,
                    time_ns=record.time_unix_nano or record.observed_time_unix_nano,
                    span=_span(record.trace_id, record.span_id),
                )


def traced(export: ExportTraceServiceRequest) -> tuple[list[ClientSpan], list[ClientEvent]]:
    """Return the spans, and the events in them."""
    spans, events = [], []
    for resource in export.resource_spans:
        of_resource = Around(_attributes(resource.resource.attributes))
        for scope in resource.scope_spans:
            for span in scope.spans:
                attributes = _attributes(span.attributes)
                around = Around(attributes, of_resource)
                name = _span(span.trace_id, span.span_id)
                spans.append(ClientSpan(attributes=attributes, name=name))
                events += [
                    ClientEvent(
                        names=(event.name,),
                        attributes=_attributes(event.attributes),
                        around=around,
                        scope=scope.scope.name,
                        time_ns=event.time_unix_nano,
                        span=name,
                    )
                    for event in span.events
                ]
    return spans, events


def _span(trace_id: bytes, span_id: bytes) -> str:
    """Return the span's name, as a name of an answer; "" for none."""
    return f"span:{trace_id.hex()}:{span_id.hex()}" if trace_id and span_id else ""


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    return {pair.key: _plain(pair.value) for pair in pairs}


def _plain(value: AnyValue) -> Any:
    """Return the value as Python has it; protobuf bounds how deep it may be."""
    match value.WhichOneof("value"):
        case None:
            return None
        case "array_value":
            return [_plain(each) for each in value.array_value.values]
        case "kvlist_value":
            return _attributes(value.kvlist_value.values)
        case "bytes_value":
            return value.bytes_value.hex()
        case kind:
            return getattr(value, kind)
