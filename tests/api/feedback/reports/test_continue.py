"""What Continue logs of its users is joined to the answer with exactly these words, or by the id of a tool call."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from api_harness import MODEL, Service, serve
from byte_renderer import END, call_ids
from exports import Program
from scripted_policy import Script, says

from core.events import Outcome
from core.reward_spec import load_reward_spec
from core.telemetry import REGISTRY
from onward.directory.layout import SHIPPED_REWARDS

SPEC = load_reward_spec(SHIPPED_REWARDS)
KEYS = [{"key": f"key-of-{name}", "namespace": "ours", "name": name} for name in ("ada", "bob")]
ADA, BOB = ({"authorization": f"Bearer key-of-{name}"} for name in ("ada", "bob"))


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with serve(tmp_path / "service", spec=SPEC, keys=KEYS, feedback={"join_turns": 5}) as service:
        service.http.headers.update(ADA)
        yield service


def suggest(service: Service, text: str, prompt: str = "def f(", **headers: str) -> str:
    service.policy.scripts.append(says(text))
    answer = service.post("/v1/completions", {"model": MODEL, "prompt": prompt}, **headers)
    return str(answer.headers["x-onward-inference-id"])


def log(service: Service, name: str, **data: Any) -> tuple[str, str | None]:
    """Send an event as Continue does, and return what became of it."""
    data = {"eventName": name, "schema": "0.2.0", "timestamp": datetime.now(UTC).isoformat(), "userId": "", **data}
    body = {"name": name, "data": data, "schema": "0.2.0", "level": "all", "profileId": "local"}
    answer = service.post("/v1/continue/data", body)
    assert answer.status_code == 200, answer.text
    return answer.json()["status"], answer.json().get("reason")


def outcomes(service: Service) -> list[tuple[Any, ...]]:
    """Return what was recorded, once the writer has read all of the log."""
    service.turn(suggest(service, "the last"))
    found: list[Outcome] = service.outcomes()
    return sorted((each.name, each.value, each.inference_id) for each in found)


def test_a_suggestion_is_found_by_its_words(service: Service) -> None:
    suggest(service, "other")
    inference_id = suggest(service, "x): pass")
    seen = {"completion": "x): pass", "prompt": "def f(", "completionId": "3f0c2a4e-0000-4000-8000-000000000001"}
    assert log(service, "autocomplete", accepted=True, **seen) == ("recorded", None)
    assert outcomes(service) == [("accepted", True, inference_id), ("shown", True, inference_id)]


def test_what_was_shown_and_left_is_shown_and_no_refusal(service: Service) -> None:
    inference_id = suggest(service, "x): pass")
    assert log(service, "autocomplete", accepted=False, completion="x): pass") == ("recorded", None)
    assert outcomes(service) == [("shown", True, inference_id)]


def test_where_two_said_the_same_the_prompt_decides_or_nothing(service: Service) -> None:
    suggest(service, "same", "a")
    second = suggest(service, "same", "b")
    assert log(service, "editOutcome", accepted=False, completion="same") == ("unjoined", "ambiguous")
    assert log(service, "editOutcome", accepted=False, completion="same", prompt="c") == ("unjoined", "unknown_text")
    assert log(service, "editOutcome", accepted=False, completion="same", prompt="b") == ("recorded", None)
    assert outcomes(service) == [("rejected", True, second)]


def test_another_on_its_way_to_the_store_is_waited_for(service: Service) -> None:
    suggest(service, "same")
    service.turn(suggest(service, "another"))
    service.writing.clear()
    suggest(service, "same")
    before = service.post(
        "/v1/continue/data", {"name": "editOutcome", "data": {"accepted": True, "completion": "same"}}
    )
    assert before.status_code == 503, "it could be the only one, or not"
    service.writing.set()
    assert log(service, "editOutcome", accepted=True, completion="same") == ("unjoined", "ambiguous")


def test_only_the_keys_own_answers_count(service: Service) -> None:
    suggest(service, "of bob's", **BOB)
    assert log(service, "editOutcome", accepted=True, completion="of bob's") == ("unjoined", "unknown_text")


def test_others_who_ask_often_keep_no_answer_from_being_found(service: Service) -> None:
    inference_id = suggest(service, "of ada's")
    for number in range(6):
        suggest(service, f"of bob's {number}", **BOB)
    assert log(service, "editOutcome", accepted=True, completion="of ada's") == ("recorded", None)
    assert outcomes(service) == [("accepted", True, inference_id)]


def test_old_answers_and_too_many_are_left_alone(service: Service) -> None:
    suggest(service, "soon old")
    later = datetime.now(UTC) + timedelta(hours=1)  # of a clock that is ahead: it is taken as now
    assert log(service, "editOutcome", accepted=True, completion="soon old", timestamp=later.isoformat()) == (
        "recorded",
        None,
    )
    for number in range(5):
        suggest(service, f"more {number}")
    assert log(service, "editOutcome", accepted=True, completion="soon old") == ("unjoined", "too_many_turns")


def test_a_tools_use_is_found_by_its_call(service: Service) -> None:
    service.policy.scripts.append(Script((*call_ids("edit", {"path": "a"}), END)))
    tools = [{"type": "function", "function": {"name": "edit", "parameters": {"type": "object"}}}]
    answer = service.chat("x", tools=tools).json()
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    used = {"functionName": "edit", "succeeded": True, "output": []}
    assert log(service, "toolUsage", toolCallId=call["id"], accepted=False, **used) == ("recorded", None)
    assert log(service, "toolUsage", toolCallId="call_none", accepted=True, **used) == ("unjoined", "unknown_tool_call")
    assert log(service, "toolUsage", toolCallId=call["id"], **used) == ("ignored", None), "it says no decision"
    assert outcomes(service) == [("rejected", True, answer["onward"]["inference_id"])]


def test_thumbs_are_about_the_answer(service: Service) -> None:
    service.policy.scripts.append(says("the answer"))
    inference_id = service.chat("hi").headers["x-onward-inference-id"]
    assert log(service, "chatFeedback", feedback=False, completion="the answer", sessionId="s") == ("recorded", None)
    assert outcomes(service) == [("answer_useful", False, inference_id)]


def test_an_interaction_tells_which_session_is_continues(service: Service) -> None:
    service.policy.scripts.append(says("the answer"))
    answer = service.chat("hi").json()["onward"]
    assert log(service, "chatInteraction", completion="the answer", sessionId="continue-1") == ("linked", None)
    cline = Program(service, "cline", headers=ADA)
    cline.log("task.feedback", ulid="continue-1", feedbackType="thumbs_up")
    assert cline.send_logs() == (0, "")
    service.turn(suggest(service, "the last"))
    (rating,) = service.outcomes()
    assert (rating.name, rating.session_id) == ("rating", answer["session_id"])


def test_sent_again_it_counts_once(service: Service) -> None:
    suggest(service, "x")
    at = datetime.now(UTC).isoformat()
    for _ in range(3):
        assert log(service, "editOutcome", accepted=True, completion="x", timestamp=at) == ("recorded", None)
    assert len(outcomes(service)) == 1


@pytest.mark.parametrize(
    "event",
    [
        ("tokensGenerated", {"generatedTokens": 7}),
        ("autocomplete", {"completion": "x"}),
        ("autocomplete", {"accepted": "yes"}),
        ("surprise", {}),
    ],
)
def test_what_says_nothing_is_ignored(service: Service, event: tuple[str, dict[str, Any]]) -> None:
    assert log(service, event[0], **event[1]) == ("ignored", None)


@pytest.mark.parametrize("timestamp", ["0001-01-01T00:00:00", "0001-01-01T00:00:00+05:00", "soon", 7, "1969-12-31"])
def test_a_time_that_is_none_is_told(service: Service, timestamp: Any) -> None:
    suggest(service, "x")
    said = {"completion": "x", "timestamp": timestamp}
    assert log(service, "editOutcome", accepted=True, **said) == ("unjoined", "bad_time")
    assert log(service, "chatInteraction", sessionId="s", **said) == ("ignored", None)
    assert log(service, "tokensGenerated", **said) == ("ignored", None)


def test_an_interaction_counts_against_the_limits(tmp_path: Path) -> None:
    keys = [{"key": "key-of-ada", "namespace": "ours", "requests_per_minute": 1, "burst": 1}]
    with serve(tmp_path / "service", spec=SPEC, keys=keys) as service:
        service.http.headers.update(ADA)
        body = {"name": "chatInteraction", "data": {"completion": "x", "sessionId": "s"}}
        assert [service.post("/v1/continue/data", body).status_code for _ in range(2)] == [200, 429]


def test_what_is_found_nowhere_counts_against_the_limits(tmp_path: Path) -> None:
    """It costs a look at the store all the same; what says nothing costs none."""
    keys = [{"key": "key-of-ada", "namespace": "ours", "requests_per_minute": 1, "burst": 2}]
    with serve(tmp_path / "service", spec=SPEC, keys=keys) as service:
        service.http.headers.update(ADA)
        nothing = {"name": "tokensGenerated", "data": {}}
        unknown = {"name": "autocomplete", "data": {"accepted": True, "completion": "nobody's"}}
        sent = [nothing, unknown, nothing, unknown, unknown]
        assert [service.post("/v1/continue/data", body).status_code for body in sent] == [200, 200, 200, 200, 429]


def test_without_code_there_is_nothing_to_join_by(service: Service) -> None:
    labels = {"namespace": "ours", "source": "continue", "reason": "no_id"}
    before = REGISTRY.get_sample_value("onward_unjoined_events_total", labels) or 0.0
    assert log(service, "editOutcome", accepted=True) == ("unjoined", "no_id")
    assert log(service, "editOutcome", accepted=True, completion="  \n") == ("unjoined", "no_text")
    assert REGISTRY.get_sample_value("onward_unjoined_events_total", labels) == before + 1


@pytest.mark.parametrize(
    ("body", "param"),
    [({"name": "x"}, "data"), ({"name": "", "data": {}}, "name")],
)
def test_a_refusal_names_the_field(service: Service, body: dict[str, Any], param: str) -> None:
    answer = service.post("/v1/continue/data", body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
