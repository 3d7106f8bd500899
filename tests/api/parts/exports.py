"""What an editor or an agent exports, made and sent by OpenTelemetry's own SDK and exporters."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import requests
from api_harness import WAIT_S, Service
from byte_renderer import END, call_ids
from google.protobuf import json_format
from opentelemetry._logs import LogRecord
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk._logs import LoggerProvider, ReadableLogRecord
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import set_span_in_context
from scripted_policy import Script

from core.events import Outcome
from core.reward_spec import load_reward_spec
from core.telemetry import UNJOINED_EVENTS
from onward.directory.layout import SHIPPED_REWARDS

Attributes = Mapping[str, Any]
SPEC = load_reward_spec(SHIPPED_REWARDS)
TOOLS = [{"type": "function", "function": {"name": "edit", "parameters": {"type": "object"}}}]
UNKNOWN = "0192f0c1-2345-7890-abcd-0123456789ab"
"""The id of no turn."""


@dataclass
class Program:
    """A program with its resource and its scope; what it emits is kept until it is sent, once or again."""

    service: Service
    scope: str = "test"
    resource: Attributes = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._logs, self._spans = InMemoryLogRecordExporter(), InMemorySpanExporter()
        resource = Resource(dict(self.resource))
        loggers = LoggerProvider(resource=resource)
        loggers.add_log_record_processor(SimpleLogRecordProcessor(self._logs))
        tracers = TracerProvider(resource=resource)
        tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self._logger, self._tracer = loggers.get_logger(self.scope), tracers.get_tracer(self.scope)
        self.sent: list[requests.Response] = []
        self._session = requests.Session()
        self._session.hooks["response"].append(lambda answer, **_: self.sent.append(answer))

    def log(self, body: str | None = None, at_ns: int = 0, in_span: Any = None, event: str = "", **said: Any) -> None:
        """Emit an event. `said`: its attributes, with `__` for each dot."""
        attributes = {name.replace("__", "."): value for name, value in said.items()}
        context = None if in_span is None else set_span_in_context(in_span)
        self._logger.emit(
            LogRecord(
                timestamp=at_ns or None, context=context, body=body, attributes=attributes, event_name=event or None
            )
        )

    def span(self, name: str, attributes: Attributes, event: tuple[str, Attributes] | None = None) -> Any:
        span = self._tracer.start_span(name, attributes=dict(attributes))
        if event is not None:
            span.add_event(event[0], dict(event[1]))
        span.end()
        return span

    @property
    def logs(self) -> Sequence[ReadableLogRecord]:
        return self._logs.get_finished_logs()

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self._spans.get_finished_spans()

    def send_logs(self, compression: Compression = Compression.NoCompression) -> tuple[int, str]:
        """Send all that was logged, and return how many became no outcome, and why."""
        url = f"{self.service.url}/v1/logs"
        exporter = OTLPLogExporter(
            url, headers=dict(self.headers), timeout=WAIT_S, compression=compression, session=self._session
        )
        exporter.export(self.logs)
        answer = self.sent[-1]
        assert answer.status_code == 200, answer.content
        assert answer.headers["content-type"] == "application/x-protobuf"
        partial = ExportLogsServiceResponse.FromString(answer.content).partial_success
        return partial.rejected_log_records, partial.error_message

    def send_spans(self) -> str:
        url = f"{self.service.url}/v1/traces"
        OTLPSpanExporter(url, headers=dict(self.headers), timeout=WAIT_S, session=self._session).export(self.spans)
        answer = self.sent[-1]
        assert answer.status_code == 200, answer.content
        return ExportTraceServiceResponse.FromString(answer.content).partial_success.error_message

    def json(self) -> dict[str, Any]:
        """Return all that was logged in OTLP's JSON, whose ids are hexadecimal."""
        export: dict[str, Any] = json_format.MessageToDict(encode_logs(self.logs))
        for resource in export["resourceLogs"]:
            for scope in resource["scopeLogs"]:
                for record in scope["logRecords"]:
                    for name in {"traceId", "spanId"} & record.keys():
                        record[name] = base64.b64decode(record[name]).hex()
        made: dict[str, Any] = json.loads(json.dumps(export))
        return made


def outcomes(service: Service, count: int = 1) -> list[Outcome]:
    """Return all outcomes, once there are so many and the writer has read all of the log."""
    service.turn(service.chat("the last").headers["x-onward-inference-id"])
    found = service.outcomes()
    assert len(found) == count, found
    return sorted(found, key=lambda outcome: (outcome.observed_at, outcome.name))


def said(outcome: Outcome) -> tuple[Any, ...]:
    return outcome.name, outcome.value, outcome.inference_id


def turn_with_call(service: Service, **fields: Any) -> tuple[str, str]:
    """Return the ids of a turn and of the call that it made."""
    service.policy.scripts.append(Script((*call_ids("edit", {"path": "a"}), END)))
    answer = service.chat("x", tools=TOOLS, **fields).json()
    return answer["onward"]["inference_id"], answer["choices"][0]["message"]["tool_calls"][0]["id"]


def counted(source: str, reason: str) -> float:
    """Return how many there were, in all namespaces."""
    samples = [sample for metric in UNJOINED_EVENTS.collect() for sample in metric.samples]
    totals = [(sample.labels, sample.value) for sample in samples if sample.name.endswith("_total")]
    return sum(value for labels, value in totals if (labels["source"], labels["reason"]) == (source, reason))
