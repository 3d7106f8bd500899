"""The form of a turn: what is new in it, by the names of tools, without a word of what they returned."""

import json
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.events import ToolCall
from scoring.monitors.form import begin, form_of, frame

READ = {"type": "function", "function": {"name": "read", "parameters": {"properties": {"path": {"type": "string"}}}}}


def result(text: str) -> tuple[dict[str, Any], ...]:
    call = {"id": "c", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}}
    return (
        {"role": "user", "content": "fix it"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": text},
    )


def test_a_first_turn_tells_its_request_and_tools(lab: ModuleType) -> None:
    call = ToolCall(id="c", name="read", arguments='{"path": "a.py", "secret": 3}', index=0)
    messages = ({"role": "user", "content": "Where is Alice?"},)
    form = form_of(lab.Events().turn("s", 0, text="", messages=messages, tools=(READ,), tool_calls=(call,)))
    assert form == (
        "answer: 1 calls",
        "call of read: other int, path str",
        "first message: user of up to 16 characters",
        "roles: user",
        "tool read: takes path",
    )


def test_a_later_turn_tells_what_came_back_since(lab: ModuleType) -> None:
    text = "src/a.py, lines 1 to 3 of 3\n1\tdef a():\n2\t    pass\n3\t"
    form = form_of(lab.Events().turn("s", 1, text="done", messages=result(text), tools=(READ,)))
    assert set(form) == {
        "answer: 0 calls and text",
        "roles: tool",
        "result of read: up to 256 characters",
        "result of read: first line 'w, w 9 w 9 w 9'",
        "result of read: last line '9\\t'",
        "result of read: ends without a line's end",
        "result of read: lines begin '9\\t'",
    }


def test_results_in_parts_and_in_json_are_seen(lab: ModuleType) -> None:
    parts = [{"type": "text", "text": json.dumps({"exit_code": 0, "alice@example.com": "x"})}]
    messages = (*result("")[:2], {"role": "tool", "tool_call_id": "c", "content": parts})
    form = " ".join(form_of(lab.Events().turn("s", 1, messages=messages)))
    assert "JSON of 1 int, 1 str (keys " in form
    assert "alice" not in form


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("   12\tdef f():", " 9\t"),
        ("12: def f():", "9: "),
        ("12\t# a comment", "9\t"),
        ("12|  code", "9| "),
        ("src/a.py:12:def f():", "path:9:"),
        ("src/a.py-12-def f():", "w"),
        ("def f(): return 12", "w"),
        ("    return x", " "),
        ("+added", "+"),
        ("", ""),
    ],
)
def test_a_line_begins_with_what_stands_before_its_text(line: str, wanted: str) -> None:
    assert begin(line) == wanted


@given(st.text())
def test_no_letter_of_a_line_stands_in_its_frame(line: str) -> None:
    for made in (frame(line), begin(line).removeprefix("path")):
        assert not {character for character in made if character.isalpha()} - {"w"}


@given(st.lists(st.dictionaries(st.sampled_from(["role", "content", "tool_calls"]), st.none() | st.text()), max_size=3))
def test_whatever_clients_sent_has_a_form(lab: ModuleType, messages: list[dict[str, Any]]) -> None:
    assert form_of(lab.Events().turn("s", 0, messages=tuple(messages)))
