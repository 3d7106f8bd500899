"""A turn is traced from its arrival to the log, and so is each outcome: in a trace of its own, and in its caller's."""

import threading
from collections.abc import Iterator

import pytest
from api_harness import MODEL, WAIT_S, Service, wait_for
from kept_spans import KeptSpans, kept_spans
from scripted_policy import says

from core import tracing

CALLER = "0af7651916cd43dd8448eb211c80319c"
PARENT = {"traceparent": f"00-{CALLER}-b7ad6b7169203331-01"}


@pytest.fixture
def kept() -> Iterator[KeptSpans]:
    with kept_spans() as found:
        yield found


def test_a_turn_and_its_outcome_are_one_trace(service: Service, kept: KeptSpans) -> None:
    answer = service.chat("hi", headers=PARENT).json()
    turn = service.turn(answer["onward"]["inference_id"])
    said = {"inference_id": turn.inference_id, "metric_name": "accepted", "value": True}
    assert service.post("/v1/feedback", said).status_code == 200
    wait_for(lambda: "outcome" in kept.of_turn(turn.inference_id))
    spans = kept.of_turn(turn.inference_id)
    assert spans.keys() >= {"turn", "prepare", "engine", "log", "outcome"}
    root = tracing.root_of(turn.inference_id)
    assert {span.parent for name, span in spans.items() if name != "turn"} == {root}
    steps = [spans[name] for name in ("prepare", "engine", "log")]
    assert steps[0].began_at == spans["turn"].began_at == turn.received_at
    assert all(step.began_at < step.ended_at for step in steps)
    assert [step.began_at for step in steps[1:]] == [step.ended_at for step in steps[:-1]]
    assert spans["outcome"].attributes["onward.outcome"] == "accepted"
    (own,) = [span for span in kept.spans if span.place.trace_id == int(CALLER, 16)]
    assert (own.name, own.links) == ("answer", (root,))


def test_who_hangs_up_leaves_a_turn_that_failed(service: Service, kept: KeptSpans) -> None:
    service.policy.scripts.append(says("a long answer", gate=threading.Event()))
    service.policy.closed.clear()
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True}
    with service.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        next(answer.iter_bytes())
    assert service.policy.closed.wait(WAIT_S)
    wait_for(lambda: [span for span in kept.spans if span.name == "turn"])
    (turn,) = [span for span in kept.spans if span.name == "turn"]
    assert (turn.has_failed, turn.attributes["gen_ai.response.finish_reasons"]) == (True, "abort")


def test_a_caller_who_cannot_be_read_changes_nothing(service: Service, kept: KeptSpans) -> None:
    answer = service.chat("hi", headers={"traceparent": "00-nobody"})
    assert answer.status_code == 200
    wait_for(lambda: "log" in kept.of_turn(answer.json()["onward"]["inference_id"]))
    assert {span.name for span in kept.spans} - {"store"} == {"turn", "prepare", "engine", "log"}  # stored perhaps
    assert not any(span.links for span in kept.spans)
