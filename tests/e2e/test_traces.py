"""One turn, from the keystroke to the weights that learned from it, as a collector of traces sees it."""

from collections.abc import Callable, Iterator

import pytest
from receiver import Receiver, receiver
from service_tree import Service, user, wait_for

MakeService = Callable[..., Service]
CALLER = "0af7651916cd43dd8448eb211c80319c"
STEPS = {"turn", "prepare", "engine", "log", "store", "outcome", "reward", "update", "publish", "live"}


@pytest.fixture
def taker() -> Iterator[Receiver]:
    with receiver() as found:
        yield found


def test_a_turn_is_one_trace_from_the_request_to_the_version_that_serves(
    make_service: MakeService, taker: Receiver
) -> None:
    """The spans of two processes have one trace's id, which nothing carried from one to the other."""
    service = make_service(tracing__url=taker.url, learner__batch__turns=4, learner__batch__min_turns=4).start()
    parent = f"00-{CALLER}-b7ad6b7169203331-01"
    turns = []
    for number in range(4):
        body = {"model": "onward-tiny", "messages": [user(f"[web] write f{number}(xs)")], "max_tokens": 8}
        turns.append(service.post("/v1/chat/completions", body, traceparent=parent)["onward"]["inference_id"])
    for number, turn in enumerate(turns):
        service.post("/v1/feedback", {"inference_id": turn, "metric_name": "accepted", "value": number % 2 == 0})
    trace = turns[0].replace("-", "")
    wait_for(lambda: set(taker.of_trace(trace)) >= STEPS, 90, f"of {STEPS} only {set(taker.of_trace(trace))}")
    spans = taker.of_trace(trace)
    assert set(spans) == STEPS
    root = spans["turn"].span.span_id
    assert {each.span.parent_span_id for name, each in spans.items() if name != "turn"} == {root}
    assert {name for name, each in spans.items() if each.process == "learner"} == {"update", "publish", "live"}
    assert {each.process for each in spans.values()} == {"learner", "service"}
    begins = [spans[name].span.start_time_unix_nano for name in ("turn", "engine", "log", "outcome", "live")]
    assert begins == sorted(begins)

    (version,) = {link for name in ("update", "publish", "live") for link in spans[name].links}
    made = wait_for(lambda: (found := taker.of_trace(version[0])).keys() >= {"swap", "load", "publish"} and found, 30)
    assert made["swap"].process == "service"
    (origin,) = [each for each in made.values() if not each.span.parent_span_id]
    assert origin.span.span_id.hex() == version[1]
    assert (trace, root.hex()) in origin.links

    answers = [each for each in taker.spans if each.trace == CALLER]
    assert [each.name for each in answers] == ["answer"] * 4
    assert {each.span.parent_span_id.hex() for each in answers} == {"b7ad6b7169203331"}
    assert (trace, root.hex()) in {link for each in answers for link in each.links}
