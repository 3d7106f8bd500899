"""Answers that must be JSON, or calls: the official client, the shipped model, its engine and the learner's masks."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
import torch
from api_harness import MODEL, Service, serve
from pydantic import BaseModel, ConfigDict
from tiny_engine import TINY, tiny_engine

from core.events import Completion
from core.grammars import sets
from learner.model.policy_model import PolicyModel
from learner.sequences.joining import TrainingSequence, TurnSpan
from learner.sequences.scored import ScoredTurn
from learner.sequences.tensors import micro_batches
from serving.rendering import load_renderer

ASK = [{"role": "user", "content": "[web] write total(xs): sum of xs"}]


class Verdict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    mood: Literal["glad", "sad"]
    counts: list[int]


def tool(name: str, schema: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": schema or {"type": "object"}, **more}}


PATH = {
    "type": "object",
    "properties": {"path": {"enum": ["a", "b"]}},
    "required": ["path"],
    "additionalProperties": False,
}
TOOLS = [tool("read_file", PATH, strict=True), tool("list_files", PATH, strict=True)]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory = tmp_path_factory.mktemp("constrained")
    with (
        tiny_engine(directory) as engine,
        serve(directory / "service", renderer=load_renderer(TINY), policy=engine) as service,
    ):
        yield service


@pytest.fixture(scope="module")
def policy() -> PolicyModel:
    return PolicyModel(TINY, "cpu")


def turn_of(service: Service, answer: Any) -> Completion:
    return service.turn((answer.model_extra["onward"]).get("inference_id"))


def assert_learns_what_was_served(policy: PolicyModel, turn: Completion) -> None:
    """Assert that the learner's log-probabilities under the masks that it makes again are those served."""
    assert turn.trainable, turn.untrainable_reasons
    assert policy.masks.refusal(turn) is None
    whole = turn.prompt_token_ids + turn.token_ids
    sequence = TrainingSequence(whole, (TurnSpan(0, len(turn.prompt_token_ids), len(whole)),))
    (part,) = micro_batches([sequence], [ScoredTurn(turn, None)], 10_000, "cpu", masks=policy.masks)  # type: ignore[arg-type]
    assert part.mask is not None
    with torch.no_grad():
        logprobs_N, _ = policy.score(policy.hidden_states(part), part)
    assert float((logprobs_N - part.behaviour_N).abs().max()) < 1e-4


def test_the_clients_own_parser_gets_what_it_asked_for(real: Service, policy: PolicyModel) -> None:
    for seed in range(4):
        answer = real.client().chat.completions.parse(
            model=MODEL,
            messages=ASK,
            response_format=Verdict,
            seed=seed,
            max_tokens=150,  # type: ignore[arg-type]
        )
        choice = answer.choices[0]
        assert choice.finish_reason == "stop"
        assert choice.message.parsed is not None
        assert_learns_what_was_served(policy, turn_of(real, answer))


def test_any_object(real: Service, policy: PolicyModel) -> None:
    answer = real.client().chat.completions.create(
        model=MODEL,
        messages=ASK,
        response_format={"type": "json_object"},
        max_tokens=60,
        seed=3,  # type: ignore[arg-type]
    )
    assert (answer.choices[0].message.content or "").startswith("{")
    assert_learns_what_was_served(policy, turn_of(real, answer))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "list_files"}}])
def test_a_call_that_must_be(real: Service, policy: PolicyModel, choice: Any, stream: bool) -> None:
    asked = {"model": MODEL, "messages": ASK, "tools": TOOLS, "tool_choice": choice, "max_tokens": 200, "seed": 1}
    if stream:
        with real.client().chat.completions.stream(**asked, parallel_tool_calls=False) as events:  # type: ignore[arg-type]
            answer: Any = events.get_final_completion()
    else:
        answer = real.client().chat.completions.create(**asked, parallel_tool_calls=False)  # type: ignore[call-overload]
    assert answer.choices[0].finish_reason == "tool_calls"
    (call,) = answer.choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["path"] in ("a", "b")
    assert call.function.name in (["read_file", "list_files"] if choice == "required" else ["list_files"])
    if not stream:
        turn = turn_of(real, answer)
        assert turn.broken_calls == 0
        assert_learns_what_was_served(policy, turn)


def test_text_stays_free_beside_strict_tools(real: Service, policy: PolicyModel) -> None:
    answer = real.client().chat.completions.create(model=MODEL, messages=ASK, tools=TOOLS, max_tokens=40, seed=1)  # type: ignore[call-overload]
    assert answer.choices[0].message.content
    turn = turn_of(real, answer)
    assert turn.sampling.grammar is not None
    assert "strict" not in turn.tools[0]["function"]
    assert_learns_what_was_served(policy, turn)


def test_choices_cuts_and_stop_strings(real: Service, policy: PolicyModel) -> None:
    format = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": Verdict.model_json_schema()}}
    asked = {"model": MODEL, "messages": ASK, "response_format": format, "n": 3}
    answer = real.client().chat.completions.create(**asked, max_tokens=4, seed=2)  # type: ignore[call-overload]
    assert [choice.finish_reason for choice in answer.choices] == ["length"] * 3
    for choice in answer.choices:
        assert_learns_what_was_served(policy, real.turn(choice.model_extra["onward"]["inference_id"]))
    answer = real.client().chat.completions.create(**asked, max_tokens=90, seed=2, stop=['"'])  # type: ignore[call-overload]
    for choice in answer.choices:
        assert '"' not in choice.message.content
        assert_learns_what_was_served(policy, real.turn(choice.model_extra["onward"]["inference_id"]))


@pytest.mark.parametrize("options", [{"top_p": 0.8}, {"extra_body": {"top_k": 5}}, {"extra_body": {"min_p": 0.1}}])
@pytest.mark.parametrize("format", [None, {"type": "json_object"}])
def test_what_truncates_is_recorded(
    real: Service, policy: PolicyModel, options: dict[str, Any], format: dict[str, str] | None
) -> None:
    given = {} if format is None else {"response_format": format}
    answer = real.client().chat.completions.create(
        model=MODEL,
        messages=ASK,
        max_tokens=30,
        seed=5,
        temperature=0.9,
        logprobs=True,
        top_logprobs=4,
        **options,
        **given,  # type: ignore[call-overload]
    )
    turn = turn_of(real, answer)
    assert turn.logprob_space.mask is not None
    assert_learns_what_was_served(policy, turn)


HOSTILE: list[tuple[dict[str, Any], str]] = [
    (
        {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:1/x.json"}}},
        "response_format.json_schema.schema",
    ),
    ({"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}, "response_format.json_schema.schema"),
    ({"type": "nothing"}, "response_format.json_schema.schema.type"),
    ({"type": "string", "pattern": "(?=look)ahead"}, "response_format.json_schema.schema"),
    ({"not": {"type": "string"}}, "response_format.json_schema.schema"),
    ({"enum": ["x" * 60 + str(n) for n in range(4000)]}, "response_format.json_schema.schema"),
    ({"type": "integer", "multipleOf": 99_999_989}, "response_format.json_schema.schema"),
    (
        {
            "$defs": {f"p{n}": {"type": "string", "pattern": f"a.{{{n}}}b"} for n in range(2, 32)},
            "allOf": [{"$ref": f"#/$defs/p{n}"} for n in range(2, 32)],
        },
        "response_format.json_schema.schema",
    ),
]


@pytest.mark.parametrize(("schema", "field"), HOSTILE)
def test_a_schema_that_no_grammar_follows_is_refused_by_name(real: Service, schema: dict[str, Any], field: str) -> None:
    format = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with pytest.raises(openai.BadRequestError) as refused:
        real.client().chat.completions.create(model=MODEL, messages=ASK, response_format=format, max_tokens=20)  # type: ignore[call-overload]
    assert refused.value.body["param"] == field  # type: ignore[index]


def test_the_tool_at_fault_is_named(real: Service) -> None:
    bad = tool("odd", {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}, strict=True)
    with pytest.raises(openai.BadRequestError) as refused:
        real.client().chat.completions.create(model=MODEL, messages=ASK, tools=[*TOOLS, bad], max_tokens=20)  # type: ignore[call-overload]
    assert refused.value.body["param"] == "tools[2].function.parameters"  # type: ignore[index]


@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_that_becomes_too_complex_ends_its_answer_with_an_error(real: Service, stream: bool) -> None:
    many = {
        "type": "object",
        "properties": {f"prop{n}": {"type": "string"} for n in range(2000)},
        "required": ["prop0"],
    }
    format = {"type": "json_schema", "json_schema": {"name": "x", "schema": many}}
    answer = real.chat("hi", response_format=format, max_tokens=100, seed=1, stream=stream)
    if stream and answer.status_code == 200:
        last = [line for line in answer.text.splitlines() if line.startswith("data: {")][-1]
        said = json.loads(last.removeprefix("data: "))
    else:
        assert answer.status_code == 400
        said = answer.json()
    assert said["error"]["code"] == "grammar_too_complex"
    assert real.chat("hi", max_tokens=3).status_code == 200


def test_sets_beyond_the_bound_are_not_recorded(real: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sets, "MAX_IDS", 40)
    answer = real.chat("hi", top_k=10, max_tokens=20, seed=1)
    turn = real.turn(answer.headers["x-onward-inference-id"])
    assert turn.untrainable_reasons == ("mask_too_large",)
    assert (turn.attachments, turn.logprob_space.mask) == ({}, None)


def test_an_engine_that_tells_no_masks_makes_no_trainable_turn(tmp_path: Path) -> None:
    with serve(tmp_path / "service", renderer=load_renderer(TINY)) as service:
        service.policy.context_length = 2000
        answer = service.chat("hi", response_format={"type": "json_object"})
        turn = service.turn(answer.headers["x-onward-inference-id"])
    assert turn.untrainable_reasons == ("unknown_masks",)
    assert turn.sampling.grammar is not None
    assert service.policy.requests[0].sampling.grammar == turn.sampling.grammar


def test_a_turn_that_is_not_stored_keeps_no_grammar(real: Service) -> None:
    answer = real.chat("hi", response_format={"type": "json_object"}, store=False, max_tokens=20, seed=1)
    turn = real.turn(answer.headers["x-onward-inference-id"])
    assert (turn.sampling.grammar, turn.logprob_space.grammar, turn.attachments) == (None, None, {})


def test_the_responses_api_parses_what_it_asked_for(real: Service, policy: PolicyModel) -> None:
    answer = real.client().responses.parse(model=MODEL, input="how are you", text_format=Verdict, max_output_tokens=150)
    assert answer.output_parsed is not None
    turn = real.turn(answer.id.removeprefix("resp_"))
    assert_learns_what_was_served(policy, turn)


def test_anthropics_api_forces_a_tool(real: Service, policy: PolicyModel) -> None:
    tools = [{"name": "read_file", "input_schema": PATH, "strict": True}]
    choice = {"type": "tool", "name": "read_file"}
    body = {"model": MODEL, "max_tokens": 100, "messages": ASK, "tools": tools, "tool_choice": choice}
    answer = real.post("/v1/messages", body, anthropic_version="2023-06-01")
    assert answer.status_code == 200, answer.text
    (block,) = answer.json()["content"]
    assert (block["type"], block["name"], answer.json()["stop_reason"]) == ("tool_use", "read_file", "tool_use")
    assert block["input"]["path"] in ("a", "b")
    assert_learns_what_was_served(policy, real.turn(answer.headers["x-onward-inference-id"]))


def test_other_protocols_name_their_own_field(real: Service) -> None:
    bad = {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}
    shape = {"type": "json_schema", "name": "x", "schema": bad}
    answer = real.post("/v1/responses", {"model": MODEL, "input": "hi", "text": {"format": shape}})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "text.format.schema")
