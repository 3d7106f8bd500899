"""Feedback with texts instead of values (edits, diffs, snapshots), and the subject that a metric requires."""

import difflib
from typing import Any

import pytest
from api_harness import MODEL, Service, wait_for
from byte_renderer import END, call_ids
from scripted_policy import Script, says

from core.text.edits import LONGEST

SUGGESTED = "one\ntwo\nthree\nfour"


@pytest.fixture
def suggested(service: Service) -> str:
    service.policy.scripts.append(says(SUGGESTED))
    return str(service.chat("hi").headers["x-onward-inference-id"])


@pytest.fixture(scope="module")
def suggested_before(quick_service: Service) -> str:
    quick_service.policy.scripts.append(says(SUGGESTED))
    return str(quick_service.chat("hi").headers["x-onward-inference-id"])


def give(service: Service, inference_id: str, metric: str, **fields: Any) -> Any:
    return service.post("/v1/feedback", {"metric_name": metric, "inference_id": inference_id, **fields})


FINAL = "one\ntwo!\nthree\nfour"
DIFF = "\n".join(difflib.unified_diff(SUGGESTED.split("\n"), FINAL.split("\n"), lineterm=""))
DISTANCE = 1 / len(FINAL)


@pytest.mark.parametrize(
    ("metric", "fields", "value"),
    [
        ("edit_distance", {"final_text": FINAL}, DISTANCE),
        ("edit_distance", {"diff": DIFF}, DISTANCE),
        ("edited", {"diff": DIFF}, 1 - DISTANCE),
        ("edited", {"final_text": ""}, 0.0),
        ("survived_1h", {"snapshot": "# new\n  two\nfour\nfive"}, 0.5),
        ("survived_1h", {"snapshot": ""}, 0.0),
        ("survived_1h", {"value": 0.25}, 0.25),
    ],
)
def test_a_text_is_measured(
    service: Service, suggested: str, metric: str, fields: dict[str, Any], value: float
) -> None:
    for _ in range(2):  # a retry says the same
        answer = give(service, suggested, metric, feedback_id="f", **fields)
        assert (answer.status_code, answer.json()["status"]) == (200, "recorded"), answer.text
    (outcome,) = wait_for(service.outcomes)
    assert outcome.value == pytest.approx(value)
    assert outcome.evidence == (None if "value" in fields else next(iter(fields.values())))
    assert service.get("/v1/feedback/f").json()["value"] == outcome.value


@pytest.mark.parametrize(
    ("text", "file", "value"),
    [
        ("xs):\n    return sum(xs", "def total(xs):\n    return sum(xs)\n", 1.0),
        ("xs):\n    return sum(xs", "def all(xs):\n    return sum(xs)\n", 0.5),
        ("\n    return 1\n", "def other(\n    return 1\n", 1.0),
    ],
)
def test_a_suggestion_within_a_line_survives_with_its_line(
    service: Service, text: str, file: str, value: float
) -> None:
    service.policy.scripts.append(says(text))
    body = {"model": MODEL, "prompt": "import os\ndef total(", "suffix": ")\nprint(total([]))"}
    inference_id = service.post("/v1/completions", body).headers["x-onward-inference-id"]
    assert give(service, inference_id, "survived_1h", snapshot=file).status_code == 200
    (outcome,) = wait_for(service.outcomes)
    assert outcome.value == value


def test_a_call_is_measured_by_what_it_writes(service: Service) -> None:
    tools = [{"type": "function", "function": {"name": "edit"}}]
    service.policy.scripts.append(Script((*call_ids("edit", {"path": "f", "new_text": "a\nb"}), END)))
    answer = service.chat("x", tools=tools)
    call_id = answer.json()["choices"][0]["message"]["tool_calls"][0]["id"]
    inference_id = answer.headers["x-onward-inference-id"]
    assert give(service, inference_id, "survived_1h", snapshot="b", tool_call_id=call_id).status_code == 200
    assert wait_for(service.outcomes)[0].value == 0.5
    refused = give(service, inference_id, "survived_1h", snapshot="b", tool_call_id="call_9")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tool_call_id")


@pytest.mark.parametrize(
    ("metric", "fields", "param"),
    [
        ("edited", {}, "value"),
        ("edited", {"value": 0.5, "final_text": "x"}, "final_text"),
        ("edited", {"diff": DIFF, "final_text": "x"}, "diff"),
        ("edited", {"snapshot": "x"}, "snapshot"),
        ("survived_1h", {"diff": DIFF}, "diff"),
        ("rating", {"final_text": "x"}, "final_text"),
        ("edited", {"diff": "@@ -1 +1 @@\n-zero\n+one"}, "diff"),
        ("edited", {"final_text": "x" * (LONGEST + 1)}, "final_text"),
        ("edited", {"diff": "@@ -1 +1 @@\n-one\n+" + "x" * LONGEST}, "diff"),
        ("edited", {"final_text": "x", "evidence": "y"}, "evidence"),
        ("likes", {"final_text": "x"}, "metric_name"),
        ("shipped", {"value": True}, "inference_id"),
    ],
)
def test_what_cannot_be_measured_names_the_field(
    quick_service: Service, suggested_before: str, metric: str, fields: dict[str, Any], param: str
) -> None:
    answer = give(quick_service, suggested_before, metric, **fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


def test_a_session_is_no_inference(service: Service) -> None:
    service.chat("hi", session_id="s1")
    said = {"session_id": "s1", "metric_name": "shipped", "value": True}
    assert service.post("/v1/feedback", said).status_code == 200
    for metric, fields, param in (("plan_useful", {"value": True}, "session_id"), ("edited", {"diff": DIFF}, "diff")):
        answer = service.post("/v1/feedback", {"session_id": "s1", "metric_name": metric, **fields})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_without_the_store_a_text_cannot_be_measured(service: Service, suggested: str) -> None:
    service.store.broken = True
    assert give(service, suggested, "edited", diff=DIFF).status_code == 503
