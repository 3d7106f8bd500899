"""A workload's settings override those of its requests, and the answer says so."""

from collections.abc import Callable
from typing import Any

import pytest
from api_harness import MODEL, Service
from hypothesis import given
from hypothesis import strategies as st
from scripted_policy import says

from api.protocols.sampling import overrule
from core.errors import ConfigError
from core.events import Completion, Sampling
from core.settings import Settings, WorkloadSettings, load_settings

MakeService = Callable[..., Service]
NARROWED = {"temperature": 0.2, "top_p": 0.9, "min_p": 0.1, "frequency_penalty": 1, "presence_penalty": -1}
OPEN = {"temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0, "frequency_penalty": 0, "presence_penalty": 0}
HEADER = "x-onward-sampling-overridden"


def logged(service: Service, answer: Any) -> Completion:
    assert answer.status_code == 200, answer.text
    return service.turn(answer.headers["x-onward-inference-id"])


@pytest.mark.parametrize("stream", [False, True])
def test_a_workload_stays_trainable_whatever_is_asked_for(make_service: MakeService, stream: bool) -> None:
    service = make_service(workloads={"chat": {**OPEN, "logit_bias": False, "stop": []}})
    asked = {**NARROWED, "top_k": 5, "logit_bias": {"104": 3}, "stop": "l"}
    answer = service.chat("hi", **asked, stream=stream)
    turn = logged(service, answer)
    assert turn.sampling == Sampling(max_tokens=turn.sampling.max_tokens)
    assert (turn.trainable, turn.text, turn.logprob_space.temperature) == (True, "hello", 1.0)
    assert service.policy.requests[0].sampling == turn.sampling
    assert answer.headers["x-onward-trainable"] == "true"
    assert answer.headers[HEADER] == (
        "temperature,top_p,top_k,min_p,frequency_penalty,presence_penalty,logit_bias,stop"
    )


def test_nothing_is_said_where_nothing_was_changed(make_service: MakeService) -> None:
    service = make_service(workloads={"chat": {**OPEN, "max_tokens": 100}})
    for fields in ({"max_tokens": 100}, {"max_tokens": 7, "temperature": 1.0, "min_p": 0.0}):
        answer = service.chat("hi", **fields)
        assert HEADER not in answer.headers
        assert logged(service, answer).sampling.max_tokens == fields["max_tokens"]


def test_other_workloads_get_what_they_ask_for(make_service: MakeService) -> None:
    service = make_service(workloads={"agent": {"temperature": 0.7}})
    plain = service.chat("hi", temperature=0.2)
    assert (logged(service, plain).sampling.temperature, HEADER in plain.headers) == (0.2, False)
    for named in ({"headers": {"x-onward-workload": "agent"}}, {"metadata": {"workload": "agent"}}):
        answer = service.chat("hi", temperature=0.2, **named)
        assert (logged(service, answer).sampling.temperature, answer.headers[HEADER]) == (0.7, "temperature")


def test_suggestions_are_a_workload(make_service: MakeService) -> None:
    service = make_service(workloads={"suggestion": {"top_p": 1, "stop": ["\n"]}})
    service.policy.scripts.append(says("x + y\nreturn"))
    body = {"model": MODEL, "prompt": "return ", "top_p": 0.5}
    answer = service.post("/v1/completions", body)
    turn = logged(service, answer)
    assert (turn.text, turn.trainable, turn.sampling.stop) == ("x + y", True, ("\n",))
    assert answer.headers[HEADER] == "top_p,stop"


@pytest.mark.parametrize(
    ("asked", "used", "said"),
    [
        ({"max_tokens": 3}, 3, None),
        ({"max_tokens": 4}, 4, None),
        ({"max_tokens": 5}, 4, "max_tokens"),
        ({"max_completion_tokens": 5}, 4, "max_tokens"),
        ({"max_tokens": 1_000_000}, 4, "max_tokens"),  # more than the context: the bound comes first
        ({}, 4, "max_tokens"),
    ],
)
def test_max_tokens_is_a_bound(make_service: MakeService, asked: dict[str, int], used: int, said: str | None) -> None:
    service = make_service(workloads={"chat": {"max_tokens": 4}})
    answer = service.chat("hi", **asked)
    assert logged(service, answer).sampling.max_tokens == used
    assert answer.headers.get(HEADER) == said
    assert answer.json()["usage"]["completion_tokens"] == used


def test_a_bound_beyond_the_context_bounds_nothing(make_service: MakeService) -> None:
    service = make_service(workloads={"chat": {"max_tokens": 1_000_000}})
    refused = service.chat("hi", max_tokens=3000)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_tokens")
    assert HEADER not in service.chat("hi").headers


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("CHAT__TEMPERATURE", "2.5", r"api\.workloads\.chat\.temperature: "),
        ("CHAT__TEMPERATURE", "1e-40", r"api\.workloads\.chat\.temperature: .* 0, or from 0\.01 to 2"),
        ("CHAT__TEMPERATURE", "nan", r"api\.workloads\.chat\.temperature: "),
        ("CHAT__TOP_P", "0", r"api\.workloads\.chat\.top_p: "),
        ("CHAT__TOP_K", "-1", r"api\.workloads\.chat\.top_k: "),
        ("CHAT__MIN_P", "1.1", r"api\.workloads\.chat\.min_p: "),
        ("CHAT__MAX_TOKENS", "0", r"api\.workloads\.chat\.max_tokens: "),
        ("CHAT__FREQUENCY_PENALTY", "3", r"api\.workloads\.chat\.frequency_penalty: "),
        ("CHAT__PRESENCE_PENALTY", "-3", r"api\.workloads\.chat\.presence_penalty: "),
        ("CHAT__LOGIT_BIAS", "true", r"api\.workloads\.chat\.logit_bias: "),
        ("CHAT__STOP", "['']", r"api\.workloads\.chat\.stop\.0: "),
        ("CHAT__STOP", "x", r"api\.workloads\.chat\.stop: "),
        ("CHAT__STOP", "['a', 'b', 'c', 'd', 'e']", r"api\.workloads\.chat\.stop: "),
        ("CHAT__SEED", "1", r"api\.workloads\.chat\.seed: Extra"),
        ("TWO WORDS__TOP_P", "1", r"api\.workloads\.two words.*: String should match"),
    ],
)
def test_bad_values_are_named_at_the_start(name: str, text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        load_settings(None, {f"ONWARD_API__WORKLOADS__{name}": text})


def test_settings_come_from_file_and_environment(tmp_path: Any) -> None:
    (tmp_path / "onward.toml").write_text(
        "[api.workloads.chat]\ntop_p = 1\nstop = ['x']\n[api.workloads.code-edit_2]\n"
    )
    read = load_settings(tmp_path / "onward.toml", {"ONWARD_API__WORKLOADS__CHAT__TEMPERATURE": "0.5"}).api.workloads
    assert read["chat"] == WorkloadSettings(temperature=0.5, top_p=1, stop=("x",))
    assert read["code-edit_2"] == WorkloadSettings()
    assert Settings().api.workloads == {}


RULES = st.builds(
    WorkloadSettings,
    temperature=st.none() | st.just(0.0) | st.floats(0.01, 2),
    top_p=st.none() | st.floats(0.01, 1),
    top_k=st.none() | st.integers(0, 50),
    min_p=st.none() | st.floats(0, 1),
    max_tokens=st.none() | st.integers(1, 50),
    frequency_penalty=st.none() | st.floats(-2, 2),
    presence_penalty=st.none() | st.floats(-2, 2),
    logit_bias=st.none() | st.just(False),
    stop=st.none() | st.lists(st.text(min_size=1), max_size=4).map(tuple),
)
ASKED = st.builds(
    Sampling,
    temperature=st.floats(0, 2),
    top_p=st.floats(0.01, 1),
    top_k=st.none() | st.integers(1, 50),
    min_p=st.none() | st.floats(0, 1),
    seed=st.none() | st.integers(),
    max_tokens=st.integers(1, 100),
    stop=st.lists(st.text(min_size=1), max_size=4).map(tuple),
    frequency_penalty=st.floats(-2, 2),
    presence_penalty=st.floats(-2, 2),
    logit_bias=st.none() | st.dictionaries(st.integers(0, 99), st.floats(-100, 100)),
)


@given(asked=ASKED, rules=RULES)
def test_what_is_used_is_what_the_rules_say_and_else_what_was_asked_for(
    asked: Sampling, rules: WorkloadSettings
) -> None:
    used, changed = overrule(asked, rules)
    for name in Sampling.__struct_fields__:
        rule = getattr(rules, name, None)
        if rule is None:
            wanted = getattr(asked, name)
        else:
            wanted = min(asked.max_tokens, rule) if name == "max_tokens" else rule
        assert (getattr(used, name) or None) == (wanted or None), name
        assert (name in changed) == ((getattr(used, name) or None) != (getattr(asked, name) or None))
    assert used.top_k is None or used.top_k > 0  # 0 is the settings' word for none
    assert overrule(used, rules) == (used, ())
    assert overrule(asked, None) == (asked, ())


def test_a_share_of_the_sessions_at_temperature_zero_can_be_learned_from(make_service: MakeService) -> None:
    service = make_service(workloads={"chat": {"zero_share": 0.5, "zero_temperature": 0.8}})
    seen = set[tuple[float, str | None]]()
    for number in range(16):
        answers = [service.chat(text, temperature=0, session_id=f"session-{number}") for text in ("hi", "more")]
        turns = [logged(service, answer) for answer in answers]
        assert turns[0].sampling.temperature == turns[1].sampling.temperature
        seen.add((turns[0].sampling.temperature, answers[0].headers.get(HEADER)))
        assert turns[0].trainable == (turns[0].sampling.temperature > 0)
    assert seen == {(0.0, None), (0.8, "temperature")}
    assert logged(service, service.chat("hi", temperature=0.3)).sampling.temperature == 0.3


def test_the_share_of_sessions_is_the_share_asked_for() -> None:
    rules = WorkloadSettings(zero_share=0.25)
    chosen = [overrule(Sampling(temperature=0.0), rules, f"s{number}")[0].temperature == 1 for number in range(2000)]
    assert sum(chosen) == pytest.approx(500, abs=60)
