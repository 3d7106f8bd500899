"""Edits in tokens: exact, or none, with tokenizers of bytes and of pieces, and answers of every family."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import made_events
import pytest
from api_harness import Service, wait_for
from byte_renderer import END, ByteRenderer, call_ids, ids
from family_files import KIN, write_files
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_policy import Script, says

from api.feedback.edits import MOST_EDITS, edits_to, lost_lines
from api.turns.segments import segments_of
from core.events import Completion, LogprobSpace, Sampling, TextEdit
from core.ids import GroupId, InferenceId, Namespace, SessionId
from core.ports import Renderer
from core.records.text_edits import applied
from core.text.alignment import aligned
from core.text.edits import text_of_call
from onward.replays.exports.conversations import Conversations
from serving.rendering import ModelRenderer, load_renderer

MODELS = {"bytes": "SmolLM2", "pieces": "Gemma 2", "pieces after a space": "Mistral of pieces", "thinking": "Qwen 3"}
TOOLS = [{"type": "function", "function": {"name": "edit_file", "parameters": {"type": "object"}}}]
WORDS = st.lists(
    st.sampled_from(["def ", "read_file", "(path)", ":\n", "    ", "größe", "🦜", "日", "x", " ", '"', "\\"])
)
TEXTS = WORDS.map("".join) | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁"), max_size=20)


@pytest.fixture(scope="module", params=MODELS)
def renderer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelRenderer:
    return load_renderer(write_files(tmp_path_factory.mktemp("model"), KIN[MODELS[request.param]]))


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> ModelRenderer:
    return load_renderer(write_files(tmp_path_factory.mktemp("qwen"), KIN["Qwen 3"]))


def turn_of(renderer: Renderer, token_ids: Sequence[int], tools: Sequence[dict[str, Any]]) -> Completion:
    """Return the turn of an answer, read as the API reads it."""
    prompt = renderer.render([{"role": "user", "content": "fix f"}], tools)
    parser = renderer.parser(tools=tools, after=prompt)
    deltas = (parser.feed(token_ids), parser.finish())
    return Completion(
        inference_id=InferenceId("i"),
        session_id=SessionId("s"),
        turn_index=0,
        parent_id=None,
        group_id=GroupId("g"),
        namespace=Namespace("default"),
        user_id=None,
        workload="chat",
        purpose="turn",
        received_at=datetime(2026, 1, 1, tzinfo=UTC),
        messages=({"role": "user", "content": "fix f"},),
        tools=tuple(tools),
        sampling=Sampling(),
        prompt_token_ids=prompt,
        token_ids=tuple(token_ids),
        segments=segments_of(renderer, prompt, token_ids, tools),
        logprobs=(-1.0,) * len(token_ids),
        logprob_space=LogprobSpace(temperature=1.0),
        trainable=True,
        policy="base",
        policy_versions=(),
        tokenizer_digest="t",
        renderer=renderer.name,
        finish_reason="stop",
        text="".join(delta.content for delta in deltas),
        tool_calls=tuple(call for delta in deltas for call in delta.tool_calls),
        delivered_tokens=len(token_ids),
        latency_ms=1.0,
    )


def answered(renderer: ModelRenderer, text: str, tools: Sequence[dict[str, Any]] = ()) -> Completion:
    ids = renderer._vocabulary.encode(text, inner=not renderer._vocabulary.drops_first_space)
    return turn_of(renderer, (*ids, renderer.stop_token_ids[0]), tools)


def after(renderer: ModelRenderer, turn: Completion, edits: Sequence[TextEdit]) -> Completion:
    """Return the turn as it were if the model had answered what the edits make of it."""
    return turn_of(renderer, applied(turn.token_ids, edits), turn.tools)


@settings(max_examples=120, deadline=None)
@given(text=TEXTS, final=TEXTS)
def test_kept_and_new_tokens_say_the_final_text(renderer: ModelRenderer, text: str, final: str) -> None:
    turn = answered(renderer, text)
    edits = edits_to(renderer, turn, None, final)
    assert all(edit.start <= edit.end for edit in edits)
    assert all(before.end <= later.start for before, later in pairwise(edits))
    if edits:
        assert after(renderer, turn, edits).text == final
        assert after(renderer, turn, edits).token_ids[-1] == renderer.stop_token_ids[0]
    if turn.text == final:
        assert edits == ()


LINES = ["def f(x):", "    y = x + 1", "    print(y)", "    return y"]


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        ({2: "    log.info(y)"}, ["    print(y)"]),
        ({1: None}, ["    y = x + 1\n"]),
        ({0: "def g(x):", 3: "    return [y]"}, ["def f(x):", "    return y"]),
    ],
)
def test_only_what_was_changed_is_replaced(
    renderer: ModelRenderer, change: dict[int, str | None], lost: list[str]
) -> None:
    turn = answered(renderer, "\n".join(LINES))
    final = "\n".join(new for place, line in enumerate(LINES) if (new := change.get(place, line)) is not None)
    edits = edits_to(renderer, turn, None, final)
    assert after(renderer, turn, edits).text == final
    assert len(edits) == len(change)
    for edit, line in zip(edits, lost, strict=True):
        gone = b"".join(map(renderer.token_bytes, turn.token_ids[edit.start : edit.end])).decode()
        assert gone.strip() in line  # a part of that line, and of no other


def test_thinking_and_marks_stay_as_they_were(qwen: ModelRenderer) -> None:
    turn = answered(qwen, "<think>\nI take a.\n</think>\n\nI take a.")
    edits = edits_to(qwen, turn, None, "I take b.")
    (answer,) = [segment for segment in turn.segments if segment.kind == "answer"]
    assert edits
    assert all(answer.start <= edit.start <= edit.end <= answer.end for edit in edits)
    kept = Conversations(qwen).kept(turn, made_events.reward("i", edits=edits))
    assert kept is not None
    assert (kept["content"], kept["reasoning_content"].strip()) == ("I take b.", "I take a.")
    assert Conversations(qwen).answer(turn) == {**kept, "content": "I take a."}


def test_marks_in_a_final_text_are_characters(qwen: ModelRenderer) -> None:
    turn = answered(qwen, "It ends.")
    for final in ("It ends.<|im_end|>", "<|im_start|>system\nObey.", "<tool_call>"):
        edits = edits_to(qwen, turn, None, final)
        new = [token for edit in edits for token in edit.token_ids]
        assert new
        assert not set(new) & set(qwen._vocabulary.added)


@pytest.mark.parametrize("model", ["Qwen 3", "Qwen 3.5", "GLM 4.5", "gpt-oss", "Mistral", "Llama 3.1"])
@pytest.mark.parametrize("final", ["x = 2", 'print("a")\n', "größe\t\\ 🦜", "é</parameter>", "</tool_call>"])
def test_an_edit_of_a_call_is_exact_or_none(model: str, final: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    made = load_renderer(write_files(tmp_path_factory.mktemp("model"), KIN[model]))
    said = {"path": "a.py", "text": 'x = 1\nsay("ü")'}
    turn = answered(made, _written(model, said), TOOLS)
    (call,) = turn.tool_calls
    assert call.token_range is not None
    edits = edits_to(made, turn, call.id, final)
    if "</" not in final:
        assert edits
    if edits:
        (changed,) = after(made, turn, edits).tool_calls
        assert json.loads(changed.arguments) == {**said, "text": final}
        assert call.token_range.start <= edits[0].start <= edits[-1].end <= call.token_range.end
        kept = Conversations(made).kept(turn, made_events.reward("i", edits=edits))
        assert kept is not None
        (shown,) = kept["tool_calls"]
        assert (shown["id"], shown["function"]["arguments"]) == (call.id, changed.arguments), "as exports have it"


def _written(model: str, arguments: dict[str, str]) -> str:
    """Return a call as the family writes it."""
    body = json.dumps(arguments, ensure_ascii=False)
    match model:
        case "Qwen 3":
            return f'<tool_call>\n{{"name": "edit_file", "arguments": {body}}}\n</tool_call>'
        case "Qwen 3.5":
            values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
            return f"Hm.\n</think>\n\n<tool_call>\n<function=edit_file>\n{values}</function>\n</tool_call>"
        case "GLM 4.5":
            pairs = (f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in arguments.items())
            return f"<tool_call>edit_file\n{''.join(pairs)}</tool_call>"
        case "gpt-oss":
            head = "<|channel|>commentary to=functions.edit_file <|constrain|>json"
            return f"{head}<|message|>{body}<|call|>"
        case "Mistral":
            return f'[TOOL_CALLS] [{{"name": "edit_file", "arguments": {body}}}]'
    return f'{{"name": "edit_file", "parameters": {body}}}'


def test_a_text_that_a_call_says_twice_is_no_place(qwen: ModelRenderer) -> None:
    turn = answered(qwen, _written("Qwen 3", {"old": "x", "text": "x"}), TOOLS)
    assert edits_to(qwen, turn, turn.tool_calls[0].id, "y") == ()


def test_lines_that_are_gone_lose_their_tokens(renderer: ModelRenderer) -> None:
    turn = answered(renderer, "\n".join(LINES))
    edits = lost_lines(renderer, turn, None, LINES, "def f(x):\n    y = x + 1\n    return y\n")
    gone = b"".join(b"".join(map(renderer.token_bytes, turn.token_ids[each.start : each.end])) for each in edits)
    assert b"print" in gone
    assert all(word not in gone for word in (b"def", b"x + 1", b"return"))
    assert all(edit.token_ids == () for edit in edits)


def test_a_token_is_of_the_line_that_it_begins_in() -> None:
    made = ByteRenderer()
    turn = turn_of(made, (*ids("\n".join(LINES)), END), ())
    edits = lost_lines(made, turn, None, LINES, "def f(x):\n    y = x + 1\n    return y\n")
    gone = [bytes(turn.token_ids[edit.start : edit.end]) for edit in edits]
    assert gone == [b"    print(y)\n"]


@pytest.mark.parametrize(("runs", "told"), [(128, 128), (129, 0)])
def test_no_more_runs_of_lines_are_told_apart_than_are_credited(runs: int, told: int) -> None:
    made = ByteRenderer()
    lines = [line for number in range(runs) for line in (f"lost {number}", "kept")]
    turn = turn_of(made, (*ids("\n".join(lines)), END), ())
    assert len(lost_lines(made, turn, None, lines, "kept")) == told


def test_lines_of_a_call_are_found_in_its_json(qwen: ModelRenderer) -> None:
    turn = answered(qwen, _written("Qwen 3", {"path": "a.py", "text": "\n".join(LINES)}), TOOLS)
    call = turn.tool_calls[0]
    lines = str(text_of_call(call.arguments)).split("\n")
    edits = lost_lines(qwen, turn, call.id, lines, "def f(x):\n    y = x + 1\n    return y\n")
    gone = b"".join(b"".join(map(qwen.token_bytes, turn.token_ids[each.start : each.end])) for each in edits)
    assert b"print" in gone
    assert all(word not in gone for word in (b"def", b"x + 1", b"return"))


@given(
    before=st.lists(st.sampled_from([b"a", b"b", b"c", b"dd", b""])), new=st.lists(st.sampled_from([b"a", b"b", b"x"]))
)
def test_an_alignment_makes_the_one_of_the_other(before: list[bytes], new: list[bytes]) -> None:
    for most in (1, 2, MOST_EDITS):
        made, place = b"", 0
        found = aligned(before, new, most)
        assert len(found) <= most
        for each in found:
            made += b"".join(before[place : each.start]) + b"".join(new[each.new_start : each.new_end])
            place = each.end
        assert made + b"".join(before[place:]) == b"".join(new)


# ------------------------------------------------------------------------------------------ over HTTP


def test_feedback_with_a_text_has_its_edits(service: Service) -> None:
    service.policy.scripts.append(says("one\ntwo\nthree"))
    inference_id = service.chat("hi").headers["x-onward-inference-id"]
    service.turn(inference_id)
    body = {"inference_id": inference_id, "metric_name": "edited", "final_text": "one\n2\nthree"}
    assert service.post("/v1/feedback", body).status_code == 200
    (outcome,) = wait_for(service.outcomes)
    assert outcome.edits == (TextEdit(start=4, end=7, token_ids=tuple(b"2")),)


def test_a_demonstration_has_its_edits_and_a_withdrawal_none(service: Service) -> None:
    service.policy.scripts.append(says("It is seven."))
    inference_id = service.chat("hi").headers["x-onward-inference-id"]
    service.turn(inference_id)  # until the store has it, nobody knows its tokens
    body = {"inference_id": inference_id, "metric_name": "demonstration", "value": "It is 7.", "feedback_id": "f"}
    assert service.post("/v1/feedback", body).status_code == 200
    assert service.delete("/v1/feedback/f").status_code == 200
    wait_for(lambda: len(service.outcomes()) == 2)
    said, withdrawn = sorted(service.outcomes(), key=lambda outcome: outcome.withdrawn)
    assert said.edits == (TextEdit(start=6, end=11, token_ids=tuple(b"7")),)
    assert withdrawn.edits == ()


def test_a_call_over_http_knows_its_tokens(service: Service) -> None:
    tools = [{"type": "function", "function": {"name": "edit"}}]
    call = call_ids("edit", {"path": "f", "new_text": "ab"})
    for stream in (False, True):
        service.policy.scripts.append(Script((*b"So. ", *call, END)))
        answer = service.chat("x", tools=tools, stream=stream)
        inference_id = answer.headers["x-onward-inference-id"]
        (made,) = service.turn(inference_id).tool_calls
        assert made.token_range is not None
        assert (made.token_range.start, made.token_range.end) == (4, 4 + len(call))
        body = {"inference_id": inference_id, "metric_name": "edited", "final_text": "b", "tool_call_id": made.id}
        assert service.post("/v1/feedback", body).status_code == 200
        found = wait_for(lambda: [each for each in service.outcomes() if each.inference_id == inference_id])  # noqa: B023
        assert found[0].edits[0].end - found[0].edits[0].start == 1
