"""Drafts of sessions: mined where a user kept an answer, never without his consent, and what they hold."""

import json
from datetime import timedelta
from typing import Any

import made_events
import msgspec
import pytest

from core.events import Completion, Counts, Outcome, ToolCall
from core.ids import SessionId
from core.operations.drafts import REUSE, Draft
from core.reward_spec import DerivedSpec
from core.reward_spec.roles import USUAL
from serving.evals.mining.mine import mined

IMAGE = "sha256:" + "ab" * 32
PROMPT = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Sum a list."})
CODE = "def total(xs):\n    return sum(xs)\n\nclass Sums:\n    pass"


def turn(number: int = 0, **fields: Any) -> Completion:
    usual: dict[str, Any] = {"messages": PROMPT, "text": CODE, "turn_index": number}
    return made_events.completion(SessionId("session"), **{**usual, **fields})


def said(about: Completion, name: str, value: bool | float | str) -> Outcome:
    return made_events.outcome(about, name=name, value=value)


def draft(turns: list[Completion], *outcomes: Outcome) -> Draft | None:
    return mined(turns, outcomes, {**USUAL, "infrastructure_failure": "void"}, DerivedSpec())


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(id=name, name=name, arguments=json.dumps(arguments), index=0)


def test_a_kept_answer_is_a_draft_with_its_request_and_where_it_comes_from() -> None:
    kept = turn(tags={"repository": "shop"}, environment_image=IMAGE)
    found = draft([kept], said(kept, "accepted", True))
    assert found is not None
    assert (found.session_id, found.inference_id, found.why) == ("session", kept.inference_id, "accepted True")
    assert found.repository == {"repository": "shop", "environment_image": IMAGE}
    case = found.case
    assert (case.kind, case.messages, case.answer, case.reuse) == ("answer", PROMPT, CODE, REUSE)
    assert json.loads(case.checker) == {"kind": "contains", "all": ["total", "Sums"]}
    assert found.state == "waiting"


def test_what_the_user_made_of_an_answer_is_the_answer() -> None:
    edited = turn()
    found = draft([edited], said(edited, "edited", 0.7), said(edited, "demonstration", "def total(xs): ..."))
    assert found is not None
    assert found.case.answer == "def total(xs): ..."


def test_what_was_written_into_files_is_the_answer_and_the_tests_are_those_that_ran() -> None:
    wrote = turn(0, text="", tool_calls=(call("write_file", path="a.py", content=CODE),), environment_image=IMAGE)
    ran = turn(1, text="", tool_calls=(call("run", command="python -m pytest -q"),), tags={"image": "shop"})
    found = draft([wrote, ran], said(ran, "tests_passed", True))
    assert found is not None
    case = found.case
    assert (case.kind, case.answer, case.tests) == ("task", CODE, "python -m pytest -q")
    assert (case.instruction, case.dockerfile) == ("Sum a list.", f"FROM shop@{IMAGE}\n")


def test_a_session_with_tools_asks_for_its_first_request_alone() -> None:
    result = {"role": "tool", "tool_call_id": "c", "content": "a.py"}
    kept = turn(messages=(*PROMPT, {"role": "assistant", "content": "", "tool_calls": []}, result))
    found = draft([kept], said(kept, "accepted", True))
    assert found is not None
    assert found.case.messages == (PROMPT[1],)


@pytest.mark.parametrize(
    "changes",
    [
        {"learn": False},
        {"unstored": Counts(prompt_tokens=1, output_tokens=1, characters=1)},
        {"environment": "simulated"},
    ],
)
def test_without_consent_of_every_turn_nothing_is_mined(changes: dict[str, Any]) -> None:
    kept = turn(0)
    other = msgspec.structs.replace(turn(1), **changes)
    assert draft([kept], said(kept, "accepted", True)) is not None
    assert draft([kept, other], said(kept, "accepted", True)) is None


@pytest.mark.parametrize(
    "told",
    [
        [],
        [("accepted", False)],
        [("edited", 0.0)],
        [("accepted", True), ("reverted", True)],
        [("tests_passed", True)],
    ],
)
def test_where_nothing_shows_that_an_answer_was_good_nothing_is_mined(told: list[tuple[str, bool | float]]) -> None:
    only = turn()
    assert draft([only], *(said(only, *each) for each in told)) is None


def test_tests_that_failed_once_are_none_that_passed() -> None:
    wrote = turn(tool_calls=(call("write_file", path="a.py", content=CODE), call("run", command="pytest")))
    found = draft(
        [wrote], said(wrote, "accepted", True), said(wrote, "tests_passed", True), said(wrote, "tests_passed", False)
    )
    assert found is not None
    assert found.case.tests == ""


def test_a_session_has_one_draft_whichever_of_its_answers_was_kept() -> None:
    first, second = turn(0), turn(1, text="def better(): ...")
    before = draft([first], said(first, "accepted", True))
    later = draft([first, second], said(first, "accepted", True), said(second, "accepted", True))
    other = msgspec.structs.replace(first, session_id=SessionId("another"))
    assert before is not None
    assert later is not None
    assert (later.draft_id, later.inference_id) == (before.draft_id, second.inference_id)
    elsewhere = draft([other], said(other, "accepted", True))
    assert elsewhere is not None
    assert elsewhere.draft_id != before.draft_id


def test_blank_lines_in_a_file_are_no_answer() -> None:
    wrote = turn(text="Done.", tool_calls=(call("write_file", path="a.py", content="\n \n"),))
    found = draft([wrote], said(wrote, "accepted", True))
    assert found is not None
    assert found.case.answer == "Done."


def test_the_last_answer_that_was_kept_is_taken() -> None:
    first, second, third = turn(0), turn(1, text="def better(): ..."), turn(2, text="def worse(): ...")
    found = draft(
        [first, second, third],
        said(first, "accepted", True),
        said(second, "accepted", True),
        said(third, "rejected", True),
    )
    assert found is not None
    assert found.inference_id == second.inference_id


def of_session(about: Completion, name: str) -> Outcome:
    return msgspec.structs.replace(said(about, name, True), inference_id=None, session_id=about.session_id)


def test_what_is_said_of_the_session_is_said_of_its_answers() -> None:
    only = turn()
    assert draft([only], of_session(only, "accepted")) is not None
    for blame in ("rejected", "infrastructure_failure"):
        assert draft([only], said(only, "accepted", True), of_session(only, blame)) is None


def test_tests_that_passed_before_an_answer_say_nothing_of_it() -> None:
    wrote = turn(text="", tool_calls=(call("write_file", path="a.py", content=CODE), call("run", command="pytest")))
    passed = said(wrote, "tests_passed", True)
    early = msgspec.structs.replace(passed, received_at=wrote.received_at - timedelta(seconds=1))
    assert draft([wrote], passed) is not None
    assert draft([wrote], early) is None
