"""Requests to SGLang, and how its answers and refusals are read."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import EngineUnavailable, InvalidRequest, OnwardError
from core.events import Grammar, Sampling
from core.ids import InferenceId
from core.ports import GenerateRequest
from serving.engines.sglang.generation.policy import EventStream
from serving.engines.sglang.generation.refusals import refusal
from serving.engines.sglang.generation.wire import Event, Span, WireFinish, decode_event, encode_request

WHERE = "http://one"


def said(sampling: Sampling, *, stop: tuple[int, ...] = (), top: int = 0) -> dict[str, object]:
    request = GenerateRequest(
        inference_id=InferenceId("0"),
        prompt_token_ids=(5, 6),
        sampling=sampling,
        stop_token_ids=stop,
        top_logprobs=top,
        cache_scope="one user's",
    )
    return dict(json.loads(encode_request(request, "rid-1")))


def parameters(sampling: Sampling, *, stop: tuple[int, ...] = ()) -> dict[str, object]:
    found = said(sampling, stop=stop)["sampling_params"]
    assert isinstance(found, dict)
    return found


# ------------------------------------------------------------------------------------------------ server-sent events

texts = st.text(st.characters(exclude_categories=("Cs", "Cc")))
payloads = st.lists(st.dictionaries(texts, texts | st.integers(), max_size=3), max_size=6)


@given(st.data(), payloads)
def test_events_cut_at_any_byte_are_the_same_events(data: st.DataObject, payloads: list[object]) -> None:
    written = b"".join(b"data: " + json.dumps(each, ensure_ascii=False).encode() + b"\n\n" for each in payloads)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(written)), max_size=12)) | {0, len(written)})
    stream = EventStream()
    found = [event for low, high in pairwise(cuts) for event in stream.feed(written[low:high])]
    assert [json.loads(event) for event in found] == payloads


def test_an_event_is_told_as_soon_as_it_is_whole_and_not_before() -> None:
    stream = EventStream()
    assert stream.feed(b'data: {"a": 1}\n') == []
    assert stream.feed(b'\ndata: {"b"') == [b'{"a": 1}']
    assert stream.feed(b": 2}\n\n") == [b'{"b": 2}']


def test_what_is_no_data_is_passed_over() -> None:
    assert EventStream().feed(b": still there\n\nevent: ping\n\ndata:1\n\n") == [b"1"]


def test_a_line_may_be_long() -> None:
    payload = b'"' + b"x" * 2**20 + b'"'
    assert EventStream().feed(b"data: " + payload + b"\n\n") == [payload]


# ------------------------------------------------------------------------------------------------ requests


def test_every_way_to_sample_goes_over_the_wire() -> None:
    sampling = Sampling(
        temperature=0.7,
        top_p=0.9,
        top_k=5,
        min_p=0.1,
        seed=3,
        max_tokens=8,
        frequency_penalty=0.5,
        presence_penalty=-0.5,
        logit_bias={7: -100.0},
    )
    assert parameters(sampling, stop=(1, 2)) == {
        "max_new_tokens": 8,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "sampling_seed": 3,
        "stop_token_ids": [1, 2],
        "ignore_eos": False,
        "logit_bias": {"7": -100.0},
    }


def test_numbers_that_the_servers_tensors_cannot_hold_are_said_so_that_they_can() -> None:
    """The tensors are int32 and float32, and a larger number would end the server's scheduler."""
    said = parameters(Sampling(top_k=1 << 31, top_p=1e-300))
    assert (said["top_k"], said["top_p"]) == (1 << 30, 1e-6)


def test_what_is_not_asked_for_narrows_nothing() -> None:
    plain = parameters(Sampling())
    assert (plain["top_k"], plain["min_p"], plain["sampling_seed"]) == (-1, 0.0, None)
    assert "logit_bias" not in plain
    assert plain["ignore_eos"] is True  # no stop tokens: as many as were asked for


def test_tokens_and_logprobs_are_asked_for_as_they_come() -> None:
    whole = said(Sampling(), top=4)
    assert (whole["rid"], whole["input_ids"]) == ("rid-1", [5, 6])
    assert (whole["stream"], whole["return_logprob"], whole["top_logprobs_num"]) == (True, True, 4)
    assert whole["extra_key"] == "one user's", "under which alone its cache is looked at"


# ------------------------------------------------------------------------------------------------ answers


def test_an_event_is_read_and_what_we_do_not_use_is_passed_over() -> None:
    event = decode_event(
        b'{"text": "hi", "output_ids": [4], "meta_info": {"id": "r", "finish_reason": {"type": "stop", "matched": 2},'
        b' "completion_tokens": 1, "weight_version": "3", "weight_versions": [{"version": "3", "start": 0, "end": 1}],'
        b' "output_token_logprobs": [[-0.5, 4, null]], "output_top_logprobs": [[[-0.5, 4, null], [-1.0, 5, null]]]}}'
    )
    assert event.output_ids == [4]
    assert event.meta_info.finish_reason == WireFinish("stop")
    assert event.meta_info.weight_versions == [Span("3", 0, 1)]
    assert event.meta_info.output_token_logprobs == [(-0.5, 4, None)]
    assert event.meta_info.output_top_logprobs == [[(-0.5, 4, None), (-1.0, 5, None)]]


def test_an_event_without_logprobs_has_none() -> None:
    meta = decode_event(b'{"output_ids": [4], "meta_info": {"finish_reason": null, "completion_tokens": 1}}').meta_info
    assert (meta.output_token_logprobs, meta.output_top_logprobs, meta.weight_versions) == ([], [], None)


def test_an_error_within_a_stream_is_read() -> None:
    event = decode_event(b'{"error": {"message": "top_p must be in (0, 1]", "type": "BadRequest", "code": 400}}')
    assert event.error is not None
    assert (event.error.code, event.error.message) == (400, "top_p must be in (0, 1]")
    assert event == Event(error=event.error)


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("status", [400, 413, 422])
@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("temperature must be non-negative, got -1.", "temperature"),
        ("top_p must be in (0, 1], got 2.", "top_p"),
        ("sampling_seed must be an integer", "seed"),
        ("max_new_tokens must be at least 0", "max_tokens"),
        ("input_ids is empty", "prompt_token_ids"),
        ("something else is wrong", None),
        ("", None),
    ],
)
def test_a_refusal_names_our_field(status: int, message: str, param: str | None) -> None:
    error = refusal(WHERE, status, message)
    assert isinstance(error, InvalidRequest)
    assert (error.message, error.param, error.code) == (message, param, "invalid_field")


@pytest.mark.parametrize(
    "message",
    [
        "The input (600 tokens) is longer than the model's context length (512 tokens).",
        "Input length (600) exceeds the maximum allowed length (512).",
        "max_new_tokens is too large for the memory budget",
    ],
)
def test_a_prompt_too_long_is_told_as_openai_tells_it(message: str) -> None:
    error = refusal(WHERE, 400, message)
    assert isinstance(error, InvalidRequest)
    assert (error.param, error.code) == ("prompt_token_ids", "context_length_exceeded")


@pytest.mark.parametrize("status", [401, 403])
def test_a_wrong_key_is_the_operators_fault_and_names_the_setting(status: int) -> None:
    error: OnwardError = refusal(WHERE, status, "Unauthorized")
    assert isinstance(error, EngineUnavailable)
    assert "serving.sglang.admin_key" in str(error)


@pytest.mark.parametrize("status", [404, 500, 503])
def test_all_else_is_the_servers_fault_told_in_short(status: int) -> None:
    error = refusal(WHERE, status, "x" * 10_000)
    assert isinstance(error, EngineUnavailable)
    assert str(error).startswith(f"{WHERE}: {status} xxx")
    assert len(str(error)) < 600


def test_a_grammar_goes_over_the_wire_as_it_is_with_whose_it_is_for_the_servers_cache() -> None:
    text = '%llguidance {}\nstart: %json {"enum": ["::=", "ü"]}'
    sent = parameters(Sampling(grammar=Grammar(text=text)))["ebnf"]
    assert sent == f"{text}\n// one user's\n"
    assert "ebnf" not in parameters(Sampling())


@pytest.mark.parametrize("status", [400, 500])
@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("Grammar accept_token failed: Parser Error", "grammar_too_complex"),
        ("Failed to compile ebnf grammar: x", "invalid_grammar"),
    ],
)
def test_a_grammar_that_the_server_cannot_follow_is_no_loss_of_the_server(status: int, message: str, code: str) -> None:
    error = refusal(WHERE, status, message)
    assert isinstance(error, InvalidRequest)
    assert error.code == code
