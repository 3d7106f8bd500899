"""Ids of traces: derived, the same everywhere, and only for the share that is traced."""

import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import made_events
import pytest
from kept_spans import KeptSpans, kept_spans

from core import tracing
from core.ids import InferenceId, PolicyRef, SessionId, base_ref, new_inference_id
from core.tracing import SpanContext
from core.tracing.answers import trace_answer

NOW = datetime(2026, 11, 1, tzinfo=UTC)
TURN = new_inference_id(SessionId("s"))
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

pytestmark = pytest.mark.unit


@pytest.fixture
def kept() -> Iterator[KeptSpans]:
    with kept_spans() as found:
        yield found


def test_nothing_is_recorded_nor_derived_until_somebody_records() -> None:
    assert tracing.root_of(TURN) is None
    tracing.trace(TURN, "store", NOW, NOW)
    tracing.trace_version(base_ref(2), "swap", NOW, NOW)


def test_a_turns_trace_has_the_bits_of_its_id(kept: KeptSpans) -> None:
    tracing.trace(TURN, "store", NOW, NOW + timedelta(seconds=1))
    (span,) = kept.spans
    assert span.place.trace_id == uuid.UUID(TURN).int
    assert span.parent == tracing.root_of(TURN)
    assert tracing.root_of(InferenceId("no-uuid")) is None


def test_a_span_is_the_same_whoever_records_it_and_another_for_another_thing(kept: KeptSpans) -> None:
    for name, which in [("outcome", "a"), ("outcome", "a"), ("outcome", "b"), ("reward", "a")]:
        tracing.trace(TURN, name, NOW, NOW, which)
    ids = [span.place.span_id for span in kept.spans]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3
    code = f"from core import tracing\ntracing.install(object())\nprint(tracing.root_of({TURN!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(tracing.root_of(TURN))
    assert tracing.root_of_version(base_ref(2)) != tracing.root_of_version(PolicyRef.parse("acme@2"))


def test_all_processes_choose_the_same_share(kept: KeptSpans) -> None:
    turns = [new_inference_id(SessionId(f"s{number}")) for number in range(2000)]
    tracing.install(kept, 0.25)
    chosen = {turn for turn in turns if tracing.root_of(turn) is not None}
    assert 400 < len(chosen) < 600
    tracing.install(kept, 0.5)
    assert chosen < {turn for turn in turns if tracing.root_of(turn) is not None}


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "00",
        PARENT.upper(),
        PARENT + "-00",
        PARENT.replace("00-0", "ff-0"),
        PARENT[:-1],
        PARENT.replace("b7ad6b7169203331", "0" * 16),
        PARENT.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32),
        PARENT.replace("0af7", "0ag7"),
    ],
)
def test_what_is_no_caller_is_passed_over(text: str | None) -> None:
    assert tracing.caller_of(text) is None


def test_callers_are_read_also_from_later_versions() -> None:
    place = SpanContext(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)
    assert tracing.caller_of(PARENT) == (place, True)
    assert tracing.caller_of(PARENT[:-2] + "00") == (place, False)
    assert tracing.caller_of("cc" + PARENT[2:] + "-more") == (place, True)


def test_an_answer_is_in_its_own_trace_and_in_its_callers(kept: KeptSpans) -> None:
    caller = tracing.caller_of(PARENT)
    assert caller is not None
    turn = made_events.completion(inference_id=TURN, received_at=NOW, ttft_ms=20.0, latency_ms=100.0)
    trace_answer(turn, 0.005, NOW + timedelta(seconds=0.1), NOW + timedelta(seconds=0.11), caller)
    spans = {span.name: span for span in kept.spans}
    root = tracing.root_of(TURN)
    assert set(spans) == {"turn", "answer", "prepare", "engine", "log"}
    assert (spans["turn"].place, spans["turn"].links) == (root, (caller.place,))
    assert (spans["answer"].parent, spans["answer"].links) == (caller.place, (root,))
    assert spans["answer"].place.trace_id == caller.place.trace_id
    assert {span.parent for name, span in spans.items() if name in ("prepare", "engine", "log")} == {root}
    assert spans["engine"].began_at == NOW + timedelta(seconds=0.005)
    assert spans["turn"].events == (("first token", NOW + timedelta(seconds=0.02)),)
    said = " ".join(str(value) for span in kept.spans for value in span.attributes.values())
    assert not [message for message in turn.messages if message["content"] in said]
    assert str(turn.user_id) not in said


def test_a_caller_who_records_nothing_gets_a_link_alone(kept: KeptSpans) -> None:
    turn = made_events.completion(inference_id=TURN, received_at=NOW)
    trace_answer(turn, 0.0, NOW, NOW, tracing.caller_of(PARENT[:-2] + "00"))
    assert "answer" not in {span.name for span in kept.spans}
    assert kept.spans[0].links
