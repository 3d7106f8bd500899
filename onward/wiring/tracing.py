"""The recorder of traces: hands spans to OpenTelemetry's SDK, which sends them to a collector.

The SDK is imported where there is a collector, and nowhere else."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Final

from core import tracing
from core.settings import Settings, TracingSettings
from core.tracing import SpanContext, TraceSpan

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.id_generator import IdGenerator
    from opentelemetry.trace import SpanContext as Named

_EVERY_S: Final = 1.0  # how often spans are sent, where there are not many
_NS: Final = 1000


@contextmanager
def traced(settings: Settings, process: str) -> Iterator[None]:
    """Record spans for as long as this lasts, where the settings say where they go.

    `process`: what this one is called in them."""
    if settings.tracing.url is None:
        yield
        return
    recorder = OtlpRecorder(settings.tracing, process, settings.serving.cluster)
    tracing.install(recorder, settings.tracing.share)
    try:
        yield
    finally:
        tracing.install(None)
        recorder.close()


class OtlpRecorder:
    """Hands spans to a thread of the SDK's. What cannot be sent in time is dropped, and the log says so."""

    def __init__(self, settings: TracingSettings, process: str, cluster: str) -> None:
        from opentelemetry.exporter.otlp.proto.http import Compression
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        assert settings.url is not None
        logging.getLogger("urllib3").setLevel(logging.ERROR)  # the exporter says itself what it could not send
        exporter = OTLPSpanExporter(
            f"{settings.url.rstrip('/')}/v1/traces",
            headers={} if settings.token is None else {"authorization": f"Bearer {settings.token}"},
            timeout=settings.timeout_s,
            compression=Compression.Gzip,
        )
        names = {"service.name": "onward", "service.namespace": cluster, "service.instance.id": process}
        self._given = threading.local()
        self._provider = TracerProvider(
            ALWAYS_ON, Resource(names), shutdown_on_exit=False, id_generator=_ids(self._given)
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter, settings.queue, _EVERY_S * 1000))
        self._tracer = self._provider.get_tracer("onward")

    def record(self, span: TraceSpan) -> None:
        from opentelemetry.context import Context
        from opentelemetry.trace import Link, NonRecordingSpan, SpanKind, StatusCode, set_span_in_context

        self._given.place = span.place
        made = self._tracer.start_span(
            span.name,
            Context() if span.parent is None else set_span_in_context(NonRecordingSpan(_named(span.parent)), Context()),
            SpanKind.SERVER if span.is_request else SpanKind.INTERNAL,
            dict(span.attributes),
            [Link(_named(place)) for place in span.links],
            _nanoseconds(span.began_at),
        )
        for name, at in span.events:
            made.add_event(name, timestamp=_nanoseconds(at))
        if span.has_failed:
            made.set_status(StatusCode.ERROR)
        made.end(_nanoseconds(span.ended_at))

    def close(self) -> None:
        """Send what waits."""
        self._provider.shutdown()


def _ids(given: threading.local) -> "IdGenerator":
    """Return what names each span as the thread that records it was given it."""
    from opentelemetry.sdk.trace.id_generator import IdGenerator

    class GivenIds(IdGenerator):
        def generate_trace_id(self) -> int:
            return int(given.place.trace_id)

        def generate_span_id(self) -> int:
            return int(given.place.span_id)

    return GivenIds()


def _named(place: SpanContext) -> "Named":
    from opentelemetry.trace import SpanContext as Named
    from opentelemetry.trace import TraceFlags

    return Named(place.trace_id, place.span_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _nanoseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000_000) * _NS
