"""Events of an answer become chunks: every token once, with its log-probability and the version that sampled it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.turns.capture import Capture
from core.clock import SystemClock
from core.errors import EngineUnavailable, InvalidRequest, NotFinite
from core.events import VersionSpan
from core.ids import UNKNOWN, base_ref
from core.ports import TokenChunk
from serving.engines.sglang.generation.answer import EngineAnswer
from serving.engines.sglang.generation.spans import version_of, version_spans, within
from serving.engines.sglang.generation.wire import Event, Span, decode_event

WHERE = "http://one"
Told = tuple[str, int, int]  # label, start, end


def event(
    tokens: Sequence[int] = (),
    upto: int | None = None,
    *,
    label: str | None = "3",
    finish: dict[str, object] | str | None = None,
    spans: Sequence[Told] | None = None,
    logprobs: Sequence[float | None] | None = None,
    **meta: object,
) -> Event:
    """Return an event as SGLang writes it: `tokens` with log-probabilities, `upto` tokens so far."""
    if logprobs is None:
        logprobs = [worth(token) for token in tokens]
    said: dict[str, object] = {
        "finish_reason": {"type": finish} if isinstance(finish, str) else finish,
        "completion_tokens": len(tokens) if upto is None else upto,
        "cached_tokens": 7,
        "weight_version": label,
        "output_token_logprobs": [
            [each, token, None] for each, token in zip(logprobs, tokens[: len(logprobs)], strict=True)
        ],
        "output_top_logprobs": [[[worth(token), token, None], [-9.0, 0, None]] for token in tokens],
        **meta,
    }
    if spans is not None:
        said["weight_versions"] = [{"version": label, "start": start, "end": end} for label, start, end in spans]
    return decode_event(json.dumps({"output_ids": list(tokens), "meta_info": said}).encode())


def worth(token: int) -> float:
    return -(token + 1) / 64


def take_all(events: Sequence[Event]) -> list[TokenChunk]:
    answer = EngineAnswer(WHERE)
    return [chunk for each in events for chunk in answer.take(each)]


def tokens_of(chunks: Sequence[TokenChunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


def logprobs_of(chunks: Sequence[TokenChunk]) -> list[float]:
    return [logprob for chunk in chunks for logprob in chunk.logprobs]


def captured(chunks: Sequence[TokenChunk]) -> Capture:
    """Return the capture as the service records it."""
    capture, clock = Capture(), SystemClock()
    for chunk in chunks:
        capture.take(chunk, clock)
    return capture


def span(start: int, end: int, version: int) -> VersionSpan:
    return VersionSpan(start=start, end=end, version=base_ref(version))


# ------------------------------------------------------------------------------------------------ any answer


@dataclass(frozen=True)
class Run:
    """An answer: its tokens, the version that sampled each, and the ends of its events."""

    tokens: list[int]
    versions: list[int]  # of each token
    ends: list[int]

    @property
    def spans(self) -> list[Told]:
        starts = [0, *(i for i in range(1, len(self.tokens)) if self.versions[i] != self.versions[i - 1])]
        return [(str(self.versions[low]), low, high) for low, high in pairwise([*starts, len(self.tokens)])]

    def events(self, is_incremental: bool, ahead: int = 0) -> list[Event]:
        """Return the events; each may list `ahead` tokens more than it counts, as SGLang may with cumulative output."""
        found = []
        for start, end in pairwise([0, *self.ends]):
            is_last = end == len(self.tokens)
            low, high = (start, end) if is_incremental else (0, end + ahead)
            tail = {"finish": "stop", "spans": self.spans} if is_last else {}
            label = str(self.versions[min(end, len(self.tokens) - 1)])  # as it is written: perhaps the next one's
            found.append(event(self.tokens[low:high], end, label=label, **tail))  # type: ignore[arg-type]
        return found


@st.composite
def runs(draw: st.DrawFn) -> Run:
    tokens = draw(st.lists(st.integers(0, 500), min_size=1, max_size=20))
    versions = draw(st.lists(st.integers(1, 4), min_size=len(tokens), max_size=len(tokens)).map(sorted))
    ends = draw(st.sets(st.integers(1, len(tokens)), max_size=6)) | {len(tokens)}
    return Run(tokens, versions, sorted(ends))


@given(runs(), st.booleans(), st.integers(0, 3))
def test_however_it_is_told_the_answer_is_the_same(run: Run, is_incremental: bool, ahead: int) -> None:
    chunks = take_all(run.events(is_incremental, ahead))
    assert tokens_of(chunks) == run.tokens
    assert logprobs_of(chunks) == [worth(token) for token in run.tokens]
    assert [top[0][0] for chunk in chunks for top in chunk.top_logprobs] == run.tokens
    assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert [chunk.cached_tokens for chunk in chunks] == [7] + [None] * (len(chunks) - 1)
    capture = captured(chunks)
    assert capture.faults() == ()
    assert capture.version_spans() == tuple(span(low, high, int(label)) for label, low, high in run.spans)


# ------------------------------------------------------------------------------------------------ versions


def test_the_wait_is_that_before_the_first_token() -> None:
    """What a swap sent back waits once more, and the engine tells the sum of all its waits."""
    answer = EngineAnswer("the engine")
    for said in (event([4], queue_time=0.25), event([5], 2, finish="stop", queue_time=3.0)):
        answer.take(said)
    assert answer.queue_s == 0.25
    silent = EngineAnswer("the engine")
    silent.take(event([4]))
    assert silent.queue_s is None, "without --enable-metrics it tells nothing"


def test_one_label_from_first_to_last_is_certain() -> None:
    chunks = take_all([event([4]), event([5], 2), event([6], 3, finish="length")])
    assert [(chunk.version, chunk.confirmed) for chunk in chunks] == [(base_ref(3), True)] * 3
    assert chunks[-1].finish_reason == "length"
    assert captured(chunks).faults() == ()


@pytest.mark.parametrize("change", [{"label": "4"}, {"num_retractions": 1}])
def test_after_a_change_nothing_is_certain_until_the_last_event_says_so(change: dict[str, object]) -> None:
    chunks = take_all([event([4]), event([5], 2, **change), event([6], 3)])  # type: ignore[arg-type]
    assert [chunk.confirmed for chunk in chunks] == [True, False, False]
    last = event([7], 4, finish="stop", spans=[("3", 0, 2), ("4", 2, 4)], **change)  # type: ignore[arg-type]
    whole = captured(take_all([event([4]), event([5], 2, **change), event([6], 3), last]))  # type: ignore[arg-type]
    assert whole.version_spans() == (span(0, 2, 3), span(2, 4, 4))
    assert whole.faults() == ()


def test_what_went_back_to_the_queue_before_its_first_event_is_not_certain() -> None:
    """A swap may fall between the tokens of that event."""
    chunks = take_all([event([4, 5], label="4", num_retractions=1), event([6], 3, label="4", num_retractions=1)])
    assert [chunk.confirmed for chunk in chunks] == [False, False]


def test_a_change_that_the_last_event_does_not_explain_is_a_fault() -> None:
    chunks = take_all([event([4]), event([5], 2, label="4"), event([6], 3, label="4", finish="stop")])
    assert captured(chunks).faults() == ("unconfirmed_version",)


def test_the_last_event_is_a_chunk_for_each_version_that_spoke_in_it() -> None:
    chunks = take_all([event([4, 5, 6], finish="stop", label="4", spans=[("3", 0, 1), ("4", 1, 3)])])
    assert [(chunk.token_ids, chunk.version) for chunk in chunks] == [((4,), base_ref(3)), ((5, 6), base_ref(4))]
    assert [chunk.version_spans is None for chunk in chunks] == [True, False]


@pytest.mark.parametrize("spans", [[("3", 0, 1), ("3", 2, 4)], [("3", 1, 4)], [("3", 0, 3)], []])
def test_tokens_that_no_span_covers_are_of_an_unknown_version(spans: list[Told]) -> None:
    for cut in (0, 1, 2, 3):  # whether they were told with the last event or before
        before = [event([4, 5, 6, 7][:cut], cut)] if cut else []
        chunks = take_all([*before, event([4, 5, 6, 7][cut:], 4, finish="stop", spans=spans)])
        assert "unknown_version" in captured(chunks).faults()


@pytest.mark.parametrize("label", ["default", "", "03", "-1", "3.0", "\u0663", "9" * 19, None])
def test_a_label_that_is_no_version_of_ours_makes_the_turn_untrainable(label: str | None) -> None:
    assert version_of(label) == UNKNOWN
    chunks = take_all([event([4, 5], label=label, finish="stop")])
    assert chunks[0].version == UNKNOWN
    assert captured(chunks).faults() == ("unknown_version",)


@pytest.mark.parametrize("label", ["3", "default"])
def test_a_stranger_that_spoke_earlier_makes_the_turn_untrainable(label: str) -> None:
    """The tokens came with the label of the version after it."""
    last = event([6], 3, label="3", finish="stop", spans=[("default", 0, 2), ("3", 2, 3)])
    capture = captured(take_all([event([4, 5], label=label), last]))
    assert capture.version_spans() == (span(0, 2, 0), span(2, 3, 3))
    assert capture.faults() == ("unknown_version",)


def test_spans_are_joined_and_cut_to_what_was_answered() -> None:
    told = [Span("3", 0, 2), Span("3", 2, 3), Span("4", 3, 3), Span("4", 3, 9), Span("5", 9, 12)]
    assert version_spans(told, 6) == (span(0, 3, 3), span(3, 6, 4))


@given(st.lists(st.integers(0, 12), max_size=8, unique=True), st.integers(0, 12), st.integers(0, 12))
def test_the_part_of_any_spans_has_no_gap(bounds: list[int], start: int, end: int) -> None:
    bounds.sort()
    spans = [span(low, high, 1 + low) for low, high in zip(bounds[::2], bounds[1::2], strict=False)]
    parts = within(spans, start, end)
    found = [part.version for part in parts for _ in range(part.start, part.end)]
    of_token = {place: each.version for each in spans for place in range(each.start, each.end)}
    assert found == [of_token.get(place, UNKNOWN) for place in range(start, end)]
    if start < end:
        assert [part.start for part in parts] == [start, *(part.end for part in parts[:-1])]


# ------------------------------------------------------------------------------------------------ what is missing


def test_a_token_drawn_from_no_numbers_ends_its_request_and_names_the_version() -> None:
    """JSON has no NaN: the server sends null and keeps sampling."""
    with pytest.raises(NotFinite, match="version 3 computes no finite numbers") as failed:
        take_all([event([4, 5], logprobs=[-0.5, None], finish="stop")])
    assert failed.value.version == base_ref(3)


def test_an_event_without_logprobs_is_a_fault() -> None:
    assert captured(take_all([event([4, 5], logprobs=[], finish="stop")])).faults() == ("missing_logprobs",)


def test_logprobs_of_other_tokens_are_a_fault() -> None:
    said = event([4, 5], finish="stop", output_token_logprobs=[[-0.5, 4, None], [-0.5, 9, None]])
    assert captured(take_all([said])).faults() == ("logprobs_of_other_tokens",)


def test_lost_tokens_are_no_answer() -> None:
    answer = EngineAnswer(WHERE)
    answer.take(event([4]))
    with pytest.raises(EngineUnavailable, match="lost tokens"):
        answer.take(event([6], 3))


def test_an_event_without_news_is_no_chunk() -> None:
    assert take_all([event([], 0), event([4], 1), event([], 1), event([4], 1)])[0].token_ids == (4,)
    assert len(take_all([event([], 0), event([4], 1), event([], 1), event([4], 1)])) == 1


def test_an_end_without_a_token_is_a_chunk() -> None:
    chunks = take_all([event([4], 1), event([], 1, finish="stop", spans=[("3", 0, 1)])])
    assert [(chunk.token_ids, chunk.version, chunk.finish_reason) for chunk in chunks] == [
        ((4,), base_ref(3), None),
        ((), base_ref(3), "stop"),
    ]
    assert captured(chunks).faults() == ()


# ------------------------------------------------------------------------------------------------ aborts, errors


def test_an_abort_midway_ends_the_answer_and_adds_nothing() -> None:
    chunks = take_all([event([4]), event([4, 5], 2, finish="abort", spans=[("3", 0, 2)])])
    assert tokens_of(chunks) == [4]
    assert chunks[-1].finish_reason == "abort"
    assert chunks[-1].version_spans == (span(0, 1, 3),)


def test_an_abort_before_a_token_is_no_answer() -> None:
    with pytest.raises(EngineUnavailable, match="gave the request up: abort by the operator"):
        take_all([event(finish={"type": "abort", "message": "by the operator"})])


def test_an_abort_with_a_status_is_that_error_even_with_a_token() -> None:
    finish = {"type": "abort", "message": "top_p must be in (0, 1]", "status_code": 400}
    with pytest.raises(InvalidRequest) as refused:
        take_all([event([0], finish=finish)])
    assert refused.value.param == "top_p"
    with pytest.raises(EngineUnavailable, match="503 busy"):
        take_all([event([4]), event([4], finish={"type": "abort", "message": "busy", "status_code": 503})])


def test_an_end_that_we_do_not_know_is_no_answer() -> None:
    with pytest.raises(EngineUnavailable, match="meteor"):
        take_all([event([4]), event([5], 2, finish="meteor")])


def test_an_error_within_the_stream_is_raised() -> None:
    with pytest.raises(InvalidRequest) as refused:
        take_all([decode_event(b'{"error": {"message": "temperature must be >= 0", "code": 400}}')])
    assert refused.value.param == "temperature"
    with pytest.raises(EngineUnavailable, match="500 out of memory"):
        take_all([event([4]), decode_event(b'{"error": {"message": "out of memory", "code": 500}}')])
