"""Requirements of every engine: an invalid field is named, and whatever narrows the distribution is reported."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InvalidRequest
from core.events import Sampling
from core.ids import InferenceId
from core.ports import GenerateRequest
from serving.engines.requests import check_request, check_sampling, untrainable

VOCABULARY, CONTEXT = 50, 20
NAN, INFINITY = float("nan"), float("inf")


def refused(prompt: tuple[int, ...] = (1, 2), **sampling: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        check(prompt, **sampling)
    return caught.value


def check(prompt: tuple[int, ...] = (1, 2), **sampling: Any) -> None:
    request = GenerateRequest(
        inference_id=InferenceId("0"), prompt_token_ids=prompt, sampling=Sampling(**sampling), stop_token_ids=()
    )
    check_request(request, VOCABULARY, CONTEXT)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", (-0.1, 1e-40, 0.0099, INFINITY, NAN)),
        ("top_p", (0.0, -1.0, 1.01, NAN)),
        ("top_k", (0, -1)),
        ("min_p", (-0.1, 1.1, NAN)),
        ("max_tokens", (0, -3)),
        ("seed", (2**63, -(2**63) - 1)),
        ("frequency_penalty", (2.1, -2.1, NAN)),
        ("presence_penalty", (2.1, -2.1, NAN)),
        ("logit_bias", ({VOCABULARY: 1.0}, {-1: 1.0}, {1: NAN}, {1: INFINITY}, {1: -101.0})),
    ],
)
def test_a_field_out_of_range_is_named(field: str, values: tuple[Any, ...]) -> None:
    for value in values:
        error = refused(**{field: value})
        assert error.param == field
        assert error.message.startswith(f"{field}: ")


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.0},
        {"temperature": 5.0},
        {"top_p": 1e-9},
        {"top_k": 1},
        {"min_p": 0.0},
        {"min_p": 1.0},
        {"seed": 2**63 - 1},
        {"seed": -(2**63)},
        {"frequency_penalty": -2.0, "presence_penalty": 2.0},
        {"logit_bias": {0: 1.0, VOCABULARY - 1: -100.0}},
        {"max_tokens": CONTEXT - 2},
    ],
)
def test_what_is_at_the_edge_is_in_range(sampling: dict[str, Any]) -> None:
    check(**sampling)


def test_every_field_is_read() -> None:
    """A new field of Sampling is either checked or known to need no check."""
    assert set(msgspec.structs.asdict(Sampling())) == {
        *("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "logit_bias"),
        *("frequency_penalty", "presence_penalty", "stop"),
        "grammar",  # compiled, or refused, where it is first needed
    }


@pytest.mark.parametrize("prompt", [(), (VOCABULARY,), (1, -1), (10**12, 1)])
def test_a_prompt_that_would_break_a_server_is_refused(prompt: tuple[int, ...]) -> None:
    error = refused(prompt)
    assert (error.param, error.code) == ("prompt_token_ids", "invalid_field")


@given(st.integers(1, 2 * CONTEXT), st.integers(1, 2 * CONTEXT))
def test_prompt_and_answer_fit_into_the_context(prompt_tokens: int, max_tokens: int) -> None:
    prompt = (1,) * prompt_tokens
    if prompt_tokens + max_tokens <= CONTEXT:
        check(prompt, max_tokens=max_tokens)
        return
    error = refused(prompt, max_tokens=max_tokens)
    assert error.code == "context_length_exceeded"
    assert error.param == ("prompt_token_ids" if prompt_tokens >= CONTEXT else "max_tokens")


numbers = st.floats() | st.floats(0, 1)
samplings = st.builds(
    Sampling,
    temperature=numbers,
    top_p=numbers,
    top_k=st.none() | st.integers(),
    min_p=st.none() | numbers,
    seed=st.none() | st.integers(),
    max_tokens=st.integers(),
    frequency_penalty=numbers,
    presence_penalty=numbers,
    logit_bias=st.none() | st.dictionaries(st.integers(-1, VOCABULARY), st.floats(-100, 100), max_size=2),
)


def fault(sampling: Sampling) -> str | None:
    try:
        check_sampling(sampling, VOCABULARY)
    except InvalidRequest as error:
        return error.param
    return None


@given(samplings)
def test_a_request_is_refused_for_what_is_wrong_by_itself(sampling: Sampling) -> None:
    fields = msgspec.structs.asdict(sampling)
    alone = [fault(msgspec.structs.replace(Sampling(), **{name: value})) for name, value in fields.items()]
    wrong = {name for name in alone if name is not None}
    assert wrong == {name for name, found in zip(fields, alone, strict=True) if found is not None}
    assert fault(sampling) in (wrong or {None})


# ------------------------------------------------------------------------------------------------ trainable or not


@pytest.mark.parametrize(
    ("reason", "sampling"),
    [
        ("temperature_zero", Sampling(temperature=0.0)),
        ("temperature_zero", Sampling(temperature=1e-7)),
        ("top_p", Sampling(top_p=0.99)),
        ("top_k", Sampling(top_k=40)),
        ("min_p", Sampling(min_p=0.05)),
        ("frequency_penalty", Sampling(frequency_penalty=-0.1)),
        ("presence_penalty", Sampling(presence_penalty=0.1)),
        ("logit_bias", Sampling(logit_bias={3: 0.1})),
    ],
)
def test_what_narrows_the_distribution_is_told(reason: str, sampling: Sampling) -> None:
    assert untrainable(sampling) == (reason,)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.3, seed=7, max_tokens=3, stop=("x",)),
        Sampling(min_p=0.0),
        Sampling(logit_bias={}),
    ],
)
def test_plain_sampling_is_trainable(sampling: Sampling) -> None:
    assert untrainable(sampling) == ()


def test_all_reasons_are_told() -> None:
    assert untrainable(Sampling(temperature=0.0, top_p=0.5, top_k=3)) == ("temperature_zero", "top_p", "top_k")
