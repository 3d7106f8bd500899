"""What editors and agents export by OpenTelemetry becomes outcomes of the exact turn, or is counted."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_harness import Service, serve
from exports import SPEC, UNKNOWN, Program, counted, outcomes, said, turn_with_call

from api.feedback.reports.report import LONGEST_EVIDENCE


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with serve(tmp_path / "service", spec=SPEC) as service:
        yield service


# ------------------------------------------------------------------------------------------------ each program


def test_claude_code_decides_about_a_tool_call(service: Service) -> None:
    inference_id, call_id = turn_with_call(service)
    claude = Program(service, "com.anthropic.claude_code.events", {"service.name": "claude-code"})
    decided = {"event__name": "tool_decision", "tool_name": "Edit", "tool_use_id": call_id, "session__id": "theirs"}
    claude.log("claude_code.tool_decision", **decided, decision="accept", source="config")  # no user decided that
    claude.log("claude_code.tool_decision", **decided, decision="reject", source="user_reject")
    claude.log("claude_code.api_request", event__name="api_request", model="x")
    assert claude.send_logs() == (0, "")
    (outcome,) = outcomes(service)
    assert said(outcome) == ("rejected", True, inference_id)
    assert outcome.target_call is not None
    assert (outcome.target_call.tool_call_id, outcome.source) == (call_id, "user")
    assert outcome.tags == {"reported_by": "claude_code"}


def test_codex_decides_about_a_tool_call(service: Service) -> None:
    inference_id, call_id = turn_with_call(service)
    codex = Program(service, "codex_otel")
    decided = {"event__name": "codex.tool_decision", "call_id": call_id, "conversation__id": UNKNOWN}
    codex.log(**decided, decision="approved_for_session", source="User")
    codex.log(**decided, decision="approved", source="Config")
    assert codex.send_logs() == (0, "")
    assert [said(each) for each in outcomes(service)] == [("accepted", True, inference_id)]


def test_the_call_is_found_after_live_state_forgot_it(service: Service) -> None:
    inference_id, call_id = turn_with_call(service)
    service.turn(inference_id)
    service.live_state.forget()
    codex = Program(service)
    codex.log(event__name="codex.tool_decision", call_id=call_id, decision="denied", source="User")
    assert codex.send_logs() == (0, "")
    assert [said(each) for each in outcomes(service)] == [("rejected", True, inference_id)]


def test_copilot_chats_own_names_are_learned_from_its_spans(service: Service) -> None:
    answer = service.chat("hi")
    inference_id = answer.headers["x-onward-inference-id"]
    assert answer.headers["x-request-id"] == inference_id
    vscode = Program(service, "copilot-chat", {"service.name": "copilot-chat", "session.id": "window"})
    chat = vscode.span(
        "chat scripted",
        {
            "gen_ai.operation.name": "chat",
            "gen_ai.conversation.id": "conversation-1",
            "gen_ai.response.id": "client-request-1",
            "copilot_chat.server_request_id": answer.headers["x-request-id"],
        },
    )
    assert vscode.send_spans() == ""
    vscode.log(event__name="copilot_chat.edit.feedback", outcome="accepted", request_id="client-request-1", at_ns=1)
    vscode.log(event__name="copilot_chat.edit.feedback", outcome="saved", request_id="client-request-1", at_ns=2)
    survival = {"request_id": "client-request-1", "survival_rate_no_revert": 0.75, "survival_rate_four_gram": 0.5}
    for delay_ms, changed in ((5_000, False), (30_000, False), (300_000, False), (300_000, True)):
        vscode.log(
            event__name="copilot_chat.edit.survival",
            time_delay_ms=delay_ms,
            did_branch_change=changed,
            at_ns=delay_ms,
            **survival,
        )
    vscode.log(event__name="copilot_chat.user.feedback", rating="negative", request_id="client-request-1", at_ns=10**9)
    vscode.log(event__name="copilot_chat.inline.done", accepted=False, in_span=chat, at_ns=2 * 10**9)
    assert vscode.send_logs() == (0, "")
    assert [said(each) for each in outcomes(service, 5)] == [
        ("accepted", True, inference_id),
        ("survived_30s", 0.75, inference_id),
        ("survived_5m", 0.75, inference_id),
        ("answer_useful", False, inference_id),
        ("rejected", True, inference_id),
    ]


def test_a_hunk_without_its_span_is_joined_to_nothing(service: Service) -> None:
    service.chat("hi")
    before = counted("vscode", "unknown_id"), counted("vscode", "no_id")
    vscode = Program(service)
    vscode.log(event__name="copilot_chat.edit.hunk.action", outcome="rejected", request_id=UNKNOWN)
    vscode.log(event__name="copilot_chat.inline.done", accepted=True)
    assert vscode.send_logs() == (2, "became no outcome of any turn: no_id 1, unknown_id 1")
    assert (counted("vscode", "unknown_id"), counted("vscode", "no_id")) == (before[0] + 1, before[1] + 1)
    outcomes(service, 0)


def test_cline_is_joined_by_its_conversation_where_one_turn_fits(service: Service) -> None:
    first = service.chat("hi", session_id="task-1").headers["x-onward-inference-id"]
    cline = Program(service, "cline")
    used = {"ulid": "task-1", "tool": "write_to_file", "autoApproved": False}
    cline.log("task.tool_used", **used, success=True, at_ns=time.time_ns())
    cline.log("task.tool_used", **{**used, "autoApproved": True}, success=True)
    cline.log("task.feedback", ulid="task-1", feedbackType="thumbs_down", at_ns=time.time_ns())
    assert cline.send_logs() == (0, "")
    accepted, rating = outcomes(service, 2)
    assert said(accepted) == ("accepted", True, first)
    assert (rating.name, rating.value, rating.session_id, rating.inference_id) == ("rating", -1, "task-1", None)
    service.chat("again", session_id="task-1")
    second = Program(service, "cline")
    second.log("task.tool_used", **used, success=False, at_ns=time.time_ns())
    assert second.send_logs() == (1, "became no outcome of any turn: ambiguous 1")
    other = Program(service, "another scope")
    other.log("task.tool_used", **used, success=False)
    assert other.send_logs() == (0, ""), "what is not Cline's is none of ours"


def test_evaluations_are_outcomes_or_judgements(service: Service) -> None:
    answer = service.chat("hi").json()
    program = Program(service)
    of_answer = {"event": "gen_ai.evaluation.result", "gen_ai__response__id": answer["id"]}
    scored = "gen_ai__evaluation__score__value"
    program.log(**of_answer, at_ns=1000, gen_ai__evaluation__name="tests_passed", **{scored: 1.0})
    explained = {"gen_ai__evaluation__explanation": "it says what was asked" + " or not" * 10_000}
    program.log(**of_answer, at_ns=2000, gen_ai__evaluation__name="Relevance", **{scored: 0.25}, **explained)
    program.log(**of_answer, at_ns=3000, gen_ai__evaluation__name="Relevance", **{scored: 4.0})
    assert program.send_logs() == (1, "became no outcome of any turn: invalid_value 1")
    tests, relevance = outcomes(service, 2)
    inference_id = answer["onward"]["inference_id"]
    assert said(tests) == ("tests_passed", True, inference_id)
    assert said(relevance) == ("judgement", 0.25, inference_id)
    assert relevance.evidence is not None
    assert (relevance.evidence[:22], len(relevance.evidence)) == ("it says what was asked", LONGEST_EVIDENCE)
    assert relevance.source == "judge"
    shown = [each["evidence"] for each in service.get(f"/v1/turns/{inference_id}").json()["outcomes"]]
    assert [each and len(each) for each in shown] == [None, 4096], "all of it is shown by its own route"
    assert relevance.tags["gen_ai.evaluation.name"] == "Relevance"


def test_an_evaluation_within_a_span_is_of_the_spans_answer(service: Service) -> None:
    answer = service.chat("hi").json()
    program = Program(service)
    score = {"gen_ai.evaluation.name": "answer_useful", "gen_ai.evaluation.score.value": 0}
    program.span("chat", {"gen_ai.response.id": answer["id"]}, event=("gen_ai.evaluation.result", score))
    program.span("chat", {"gen_ai.response.id": "chatcmpl-" + UNKNOWN}, event=("gen_ai.evaluation.result", score))
    assert program.send_spans() == "became no outcome of any turn: unknown_id 1"
    assert [said(each) for each in outcomes(service)] == [("answer_useful", False, answer["onward"]["inference_id"])]


# ------------------------------------------------------------------------------------------------ joining


def test_a_name_that_two_answers_share_names_neither(service: Service) -> None:
    vscode = Program(service)
    for _ in range(2):
        answer = service.chat("hi").headers["x-request-id"]
        vscode.span("chat", {"gen_ai.response.id": "shared", "copilot_chat.server_request_id": answer})
    vscode.send_spans()
    vscode.log(event__name="copilot_chat.edit.feedback", outcome="accepted", request_id="shared")
    assert vscode.send_logs() == (1, "became no outcome of any turn: ambiguous 1")


def test_an_unknown_answer_is_never_found_by_its_time(service: Service) -> None:
    service.chat("hi", session_id="known")
    program = Program(service)
    chat = program.span("chat", {"gen_ai.response.id": service.chat("again").headers["x-request-id"]})
    program.send_spans()
    scored = {"gen_ai__evaluation__name": "judgement", "gen_ai__evaluation__score__value": 1.0}
    elsewhere = {"event": "gen_ai.evaluation.result", "gen_ai__response__id": "of another provider", **scored}
    program.log(**elsewhere, gen_ai__conversation__id="known", at_ns=time.time_ns())
    program.log(**elsewhere, in_span=chat, at_ns=time.time_ns())
    assert program.send_logs() == (2, "became no outcome of any turn: unknown_id 2")
    outcomes(service, 0)


def test_a_calls_id_says_more_than_the_span_it_is_in(service: Service) -> None:
    inference_id, call_id = turn_with_call(service)
    codex = Program(service)
    span = codex.span("chat", {"gen_ai.response.id": service.chat("later").headers["x-request-id"]})
    codex.send_spans()
    decided = {"event__name": "codex.tool_decision", "decision": "denied", "source": "User"}
    codex.log(**decided, call_id=call_id, in_span=span)
    assert codex.send_logs() == (0, "")
    assert [said(each) for each in outcomes(service)] == [("rejected", True, inference_id)]


@pytest.mark.parametrize("bound", [False, True])
def test_nobody_links_names_for_others(tmp_path: Path, bound: bool) -> None:
    names = ("ada", "bob")
    keys = [
        {"key": f"key-of-{name}", "namespace": "ours", "name": name, **({"user": name} if bound else {})}
        for name in names
    ]
    with serve(tmp_path / "service", spec=SPEC, keys=keys) as service:
        ada, bob = ({"authorization": f"Bearer key-of-{name}"} for name in names)
        answers = {
            name: service.chat("hi", headers=who).headers["x-request-id"]
            for name, who in zip(names, (ada, bob), strict=True)
        }
        for who, answer in ((bob, answers["bob"]), (ada, answers["ada"])):
            theirs = Program(service, headers=who)
            theirs.span("chat", {"gen_ai.response.id": "shared", "copilot_chat.server_request_id": answer})
            theirs.span("chat", {"gen_ai.response.id": "ada's", "copilot_chat.server_request_id": answers["ada"]})
            theirs.send_spans()
        for who, name, expected in ((ada, "shared", 0), (bob, "shared", 0), (bob, "ada's", 1), (ada, "ada's", 0)):
            theirs = Program(service, headers=who)
            theirs.log(event__name="copilot_chat.edit.feedback", outcome="accepted", request_id=name)
            assert theirs.send_logs()[0] == expected, (who, name)
        service.http.headers.update(ada)
        assert sorted(str(each.inference_id) for each in outcomes(service, 3)) == sorted(
            [answers["ada"], answers["ada"], answers["bob"]]
        )


def test_of_a_busy_conversation_nothing_is_guessed(tmp_path: Path) -> None:
    with serve(tmp_path / "service", spec=SPEC, feedback={"join_turns": 1}) as service:
        for words in ("a", "b"):
            service.chat(words, session_id="busy")
        cline = Program(service, "cline")
        cline.log("task.tool_used", ulid="busy", autoApproved=False, success=True, at_ns=time.time_ns())
        assert cline.send_logs() == (1, "became no outcome of any turn: too_many_turns 1")


def test_a_key_of_a_user_learns_nothing_of_others_from_what_is_refused(tmp_path: Path) -> None:
    """Neither whether there is such an answer or conversation, nor when anything was said in it."""
    keys = [{"key": f"key-of-{name}", "namespace": "ours", "user": name} for name in ("ada", "bob")]
    with serve(tmp_path / "service", spec=SPEC, keys=keys) as service:
        ada, bob = ({"authorization": f"Bearer key-of-{name}"} for name in ("ada", "bob"))
        answer = service.chat("hi", headers=ada, session_id="adas").json()
        score = {"event": "gen_ai.evaluation.result", "gen_ai__evaluation__score__value": 4.0}
        for conversation, answered in (("nobodys", "chatcmpl-" + UNKNOWN), ("adas", answer["id"])):
            cline, judge = Program(service, "cline", headers=bob), Program(service, headers=bob)
            for said_at in (1, time.time_ns()):
                cline.log("task.tool_used", ulid=conversation, autoApproved=False, success=True, at_ns=said_at)
            cline.log("task.feedback", ulid=conversation, feedbackType="thumbs_down")
            assert cline.send_logs() == (3, "became no outcome of any turn: unknown 3")
            judge.log(**score, gen_ai__response__id=answered, gen_ai__evaluation__name="Relevance")
            assert judge.send_logs() == (1, "became no outcome of any turn: invalid_value 1")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"call_id": "call_none"}, "unknown_tool_call"),
        ({}, "no_id"),
        ({"conversation__id": "nowhere"}, "unknown_conversation"),
    ],
)
def test_what_cannot_be_joined_says_why(service: Service, fields: dict[str, Any], reason: str) -> None:
    service.chat("hi")
    codex = Program(service)
    codex.log(event__name="codex.tool_decision", decision="denied", source="User", **fields)
    before = counted("codex", reason)
    assert codex.send_logs() == (1, f"became no outcome of any turn: {reason} 1")
    assert counted("codex", reason) == before + 1


def test_another_tenants_turns_are_unknown(tmp_path: Path) -> None:
    keys = [{"key": f"key-of-{name}", "namespace": name} for name in ("ada", "bob")]
    with serve(tmp_path / "service", spec=SPEC, keys=keys) as service:
        headers = [{"authorization": f"Bearer key-of-{name}"} for name in ("ada", "bob")]
        answer = service.chat("hi", headers=headers[0]).json()
        for whose, expected in zip(headers, ((0, ""), (1, "became no outcome of any turn: unknown_id 1")), strict=True):
            program = Program(service, headers=whose)
            score = {"gen_ai__evaluation__name": "judgement", "gen_ai__evaluation__score__value": 1.0}
            program.log(event="gen_ai.evaluation.result", gen_ai__response__id=answer["id"], **score)
            assert program.send_logs() == expected
