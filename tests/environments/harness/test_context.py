"""The estimate of a context, and what is left out of it, without a model."""

import re

import pytest

from environments.harness.context import Context, cut
from environments.harness.execution import Executed
from environments.harness.model import Answer, Call

MARK = re.compile(r"\n\[\.\.\. (\d+) characters left out \.\.\.\]\n")


def executed(text: str, call_id: str = "c") -> Executed:
    return Executed(Call(call_id, "run", "{}"), text, True, False, False, 1.0, 1.0)


def answered(context: Context) -> None:
    """Have the model be shown what there is, at a token a character."""
    characters = sum(len(str(message.get("content") or "")) for message in context.messages)
    message = {"role": "assistant", "content": "yes"}
    context.answered(Answer("i", 1, message, "yes", (), "stop", characters, 3, 0.1))


def is_told_truly(content: str, text: str) -> bool:
    """Say whether a result has the text's beginning and end, and as many left out as it says."""
    parts = MARK.split(content)
    assert len(parts) == 3, content
    head, left_out, tail = parts
    whole = text.startswith(head) and text.endswith(tail)
    return whole and len(head) + int(left_out) + len(tail) == len(text)


def test_what_was_left_out_is_counted_from_the_whole_result_however_often_it_is_cut() -> None:
    context = Context([{"role": "user", "content": "go"}], [])
    answered(context)
    text = "".join(chr(97 + number % 26) for number in range(5000))
    context.add_result(executed(text), 2000)
    assert is_told_truly(context.messages[-1]["content"], text)
    for room in (1500, 900, 300):
        context.shorten_new(room)
        assert context.tokens <= room
        assert is_told_truly(context.messages[-1]["content"], text)


def test_results_that_were_shown_before_can_be_cut_once_the_oldest_are_forgotten() -> None:
    context = Context([{"role": "user", "content": "go"}], [])
    for number in range(3):
        answered(context)
        context.add_result(executed("x" * 1000, str(number)), 500)
    answered(context)
    assert context.forget_oldest()
    context.shorten_new(500)
    assert context.tokens <= 500
    assert all(is_told_truly(each["content"], "x" * 1000) for each in context.messages if each["role"] == "tool")


def test_of_what_is_forgotten_nothing_is_kept_to_be_cut_again() -> None:
    context = Context([{"role": "user", "content": "go"}], [])
    for number in range(20):
        answered(context)
        context.add_result(executed("x" * 1000, str(number)), 500)
        if number > 2:
            assert context.forget_oldest()
        assert set(context._results) == {each["tool_call_id"] for each in context.messages if each["role"] == "tool"}
    context.begin_again([{"role": "user", "content": "go on"}])
    assert not context._results


@pytest.mark.parametrize("shown", [0, 4000], ids=["tools are names", "tools are whole"])
def test_a_context_that_begins_again_counts_tools_as_the_first_answer_did(shown: int) -> None:
    """Their JSON may have ten times the characters of what the template shows of it, or as many."""
    tools = [{"type": "function", "function": {"name": "run", "description": "x" * 4000}}]
    opening = [{"role": "user", "content": "go" * 50}]
    context = Context(opening, tools)
    context.answered(Answer("i", 1, {"role": "assistant", "content": "yes"}, "yes", (), "stop", 100 + shown, 3, 0.1))
    context.add({"role": "user", "content": "x" * 1000})
    more = [{"role": "assistant", "content": "s" * 10}, {"role": "user", "content": "on"}]
    context.begin_again(opening + more)
    assert 100 + shown <= context.tokens <= 100 + shown + 50


def test_a_text_that_fits_is_whole() -> None:
    assert (cut("abc", 3), cut("", 3)) == ("abc", "")
