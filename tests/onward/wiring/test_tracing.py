"""The recorder against a collector that takes OTLP over HTTP, and one that does not."""

import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest
from receiver import receiver

from core import tracing
from core.ids import PolicyRef, SessionId, new_inference_id
from core.settings import Settings, TracingSettings
from core.tracing import TraceSpan
from onward.wiring.tracing import traced

NOW = datetime(2026, 11, 1, 12, 0, 0, 250, tzinfo=UTC)
TURN = new_inference_id(SessionId("s"))


def settings(url: str, **fields: object) -> Settings:
    return Settings(tracing=TracingSettings.model_validate({"url": url, **fields}))


def test_spans_arrive_as_they_were_recorded() -> None:
    with receiver() as taker:
        with traced(settings(f"{taker.url}/", token="abc"), "writer"):
            root = tracing.root_of(TURN)
            assert root is not None
            end = NOW + timedelta(milliseconds=5)
            about = {"onward.workload": "chat", "onward.turns": 3, "onward.trainable": True}
            events = (("first token", NOW),)
            tracing.record(TraceSpan(root, None, "turn", NOW, end, about, (), events, has_failed=True, is_request=True))
            tracing.trace(TURN, "store", NOW, end, links=(tracing.root_of_version(_version()),))
        assert not tracing.is_on()
    trace = TURN.replace("-", "")
    spans = taker.of_trace(trace)
    assert set(spans) == {"turn", "store"}
    turn, store = spans["turn"].span, spans["store"].span
    assert (turn.parent_span_id, store.parent_span_id) == (b"", turn.span_id)
    assert (turn.span_id, turn.kind, turn.status.code) == (root.span_id.to_bytes(8), 2, 2)
    assert turn.start_time_unix_nano == 1_793_534_400_000_250_000
    assert turn.end_time_unix_nano - turn.start_time_unix_nano == 5_000_000
    assert [(event.name, event.time_unix_nano) for event in turn.events] == [("first token", turn.start_time_unix_nano)]
    assert spans["turn"].attributes == about
    version = tracing.root_of_version(_version())
    assert spans["store"].links == [(f"{version.trace_id:032x}", f"{version.span_id:016x}")]
    assert {each.process for each in taker.spans} == {"writer"}
    assert taker.requests[0].headers["authorization"] == "Bearer abc"


@pytest.mark.timed
def test_a_collector_that_takes_nothing_holds_nobody_up() -> None:
    with receiver() as taker:
        taker.status = 503
        began_s = time.monotonic()
        with traced(settings(taker.url, timeout_s=0.5, queue=512), "api"):
            for number in range(2000):
                tracing.trace(TURN, "store", NOW, NOW, str(number))
            recorded_s = time.monotonic() - began_s
        ended_s = time.monotonic() - began_s
    assert recorded_s < 30
    assert ended_s < recorded_s + 30
    assert taker.spans == []


def test_without_a_collector_nothing_of_it_is_imported() -> None:
    code = (
        "import sys\nfrom core.settings import Settings\nfrom onward.wiring.tracing import traced\n"
        "with traced(Settings(), 'api'): pass\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry.sdk', 'requests'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def _version() -> PolicyRef:
    return PolicyRef.parse("acme@7")
