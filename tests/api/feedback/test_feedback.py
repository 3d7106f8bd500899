"""Feedback is checked, idempotent, amendable and withdrawable, also when services are slow or unavailable."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from api_harness import Service, wait_for
from byte_renderer import END, call_ids
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs
from scripted_policy import Script

from core.ids import RESERVED, OutcomeId

UNKNOWN = "0192f0c1-2345-7890-abcd-0123456789ab"


def inference(service: Service, **options: Any) -> str:
    return str(service.chat("hi", **options).headers["x-onward-inference-id"])


def say(service: Service, **fields: Any) -> Any:
    return service.post("/v1/feedback", {"metric_name": "accepted", "value": True, **fields})


def test_feedback_reaches_the_store(service: Service) -> None:
    inference_id = inference(service)
    answer = say(service, inference_id=inference_id, tags={"from": "ide"}, observed_at="2026-01-02T03:04:05+02:00")
    assert answer.status_code == 200
    assert answer.json()["status"] == "recorded"
    (outcome,) = wait_for(service.outcomes)
    assert (outcome.outcome_id, outcome.inference_id) == (answer.json()["feedback_id"], inference_id)
    assert (outcome.name, outcome.value, outcome.source, outcome.tags) == ("accepted", True, "client", {"from": "ide"})
    assert outcome.learn
    assert outcome.observed_at.isoformat() == "2026-01-02T01:04:05+00:00"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_an_answers_own_id_names_its_inference(service: Service, path: str) -> None:
    asked = {"messages": [{"role": "user", "content": "hi"}]} if "chat" in path else {"prompt": "hi"}
    answer = service.post(path, {"model": "scripted", **asked}).json()
    assert say(service, inference_id=answer["id"]).status_code == 200
    (outcome,) = wait_for(service.outcomes)
    assert outcome.inference_id == answer["onward"]["inference_id"]


def test_the_id_of_several_choices_names_none_of_them(service: Service) -> None:
    answer = service.chat("hi", n=2).json()
    assert say(service, inference_id=answer["id"]).status_code == 404
    for choice in answer["choices"]:
        assert say(service, inference_id=choice["onward"]["inference_id"]).status_code == 200


def test_who_lets_nothing_be_learned_from_words_says_so_with_them(service: Service) -> None:
    fields = {"feedback_id": "f1", "inference_id": inference(service), "metric_name": "comment", "value": "no"}
    assert say(service, **fields, learn=False).status_code == 200
    (outcome,) = wait_for(service.outcomes)
    assert (outcome.value, outcome.learn) == ("no", False)
    assert say(service, **fields).status_code == 409, "other content"


def test_a_retry_gets_the_same_answer_and_other_content_a_conflict(service: Service) -> None:
    inference_id = inference(service)
    fields = {"feedback_id": "f1", "inference_id": inference_id}
    answers = [say(service, **fields) for _ in range(2)]
    wait_for(service.outcomes)
    service.live_state.__init__()  # type: ignore[misc]
    answers.append(say(service, **fields))
    assert [answer.status_code for answer in answers] == [200] * 3
    assert answers[0].json() == answers[1].json() == answers[2].json() == {"feedback_id": "f1", "status": "recorded"}
    for forget in (False, True):
        if forget:
            service.live_state.__init__()  # type: ignore[misc]
        other = say(service, feedback_id="f1", inference_id=inference_id, value=False)
        assert other.status_code == 409
        assert other.json()["error"]["param"] == "feedback_id"
    assert len(service.outcomes()) == 1


def test_many_retries_at_once_are_one_outcome(service: Service) -> None:
    inference_id = inference(service)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: say(service, feedback_id="f1", inference_id=inference_id), range(8)))
    assert {answer.status_code for answer in answers} == {200}
    wait_for(service.outcomes)
    say(service, feedback_id="f2", inference_id=inference_id)
    wait_for(lambda: len(service.outcomes()) == 2)


def test_amending_and_withdrawing(service: Service) -> None:
    inference_id = inference(service)
    say(service, feedback_id="f1", inference_id=inference_id)
    wait_for(service.outcomes)
    assert service.get("/v1/feedback/f1").json()["status"] == "recorded"
    amended = say(service, feedback_id="f2", inference_id=inference_id, value=False, supersedes="f1")
    assert amended.status_code == 200
    wait_for(lambda: len(service.outcomes()) == 2)
    before = service.get("/v1/feedback/f1").json()
    assert (before["status"], before["successor"]) == ("superseded", "f2")
    assert service.delete("/v1/feedback/f1").status_code == 409
    again = say(service, feedback_id="f3", inference_id=inference_id, supersedes="f1")
    assert (again.status_code, again.json()["error"]["param"]) == (409, "supersedes")

    answers = [service.delete("/v1/feedback/f2") for _ in range(2)]
    wait_for(lambda: len(service.outcomes()) == 3)
    answers.append(service.delete("/v1/feedback/f2"))
    assert [answer.json() for answer in answers] == [{"feedback_id": "f2", "status": "withdrawn"}] * 3
    assert service.get("/v1/feedback/f2").json()["status"] == "withdrawn"
    withdrawal = next(outcome for outcome in service.outcomes() if outcome.withdrawn)
    assert (withdrawal.supersedes, withdrawal.value, withdrawal.inference_id) == ("f2", None, inference_id)
    taken = say(service, feedback_id=withdrawal.outcome_id, inference_id=inference_id)
    assert (taken.status_code, taken.json()["error"]["code"]) == (400, "reserved_id")
    assert len(service.outcomes()) == 3


def test_an_amendment_that_met_a_withdrawal_says_that_it_is_withdrawn(service: Service) -> None:
    inference_id = inference(service)
    say(service, feedback_id="f1", inference_id=inference_id)
    (first,) = wait_for(service.outcomes)
    say(service, feedback_id="f2", inference_id=inference_id, value=False, supersedes="f1")
    wait_for(lambda: len(service.outcomes()) == 2)
    assert service.get("/v1/feedback/f2").json()["status"] == "recorded"
    gone = structs.replace(first, outcome_id=OutcomeId("gone"), value=None, supersedes="f1", withdrawn=True)
    with service.store.work() as work:  # sent at the same moment, when nobody knew of the amendment
        work.outcomes.put([gone])
    shown = [service.get(f"/v1/feedback/{feedback_id}").json() for feedback_id in ("f1", "f2")]
    assert [(each["status"], each["successor"]) for each in shown] == [("withdrawn", None)] * 2
    late = say(service, feedback_id="f3", inference_id=inference_id, supersedes="f2")
    assert (late.status_code, late.json()["error"]["code"]) == (409, "superseded"), "else it is taken, and never counts"


def test_all_amendments_of_what_is_withdrawn_are_withdrawn(service: Service) -> None:
    inference_id = inference(service)
    say(service, feedback_id="f1", inference_id=inference_id)
    (first,) = wait_for(service.outcomes)
    for number in (2, 3):
        say(service, feedback_id=f"f{number}", inference_id=inference_id, supersedes=f"f{number - 1}")
        wait_for(lambda number=number: len(service.outcomes()) == number)  # type: ignore[misc]
    gone = structs.replace(first, outcome_id=OutcomeId("gone"), value=None, supersedes="f1", withdrawn=True)
    with service.store.work() as work:
        work.outcomes.put([gone])
    shown = [service.get(f"/v1/feedback/f{number}").json() for number in (1, 2, 3)]
    assert [(each["status"], each["successor"]) for each in shown] == [("withdrawn", None)] * 3


def test_what_supersedes_must_speak_of_the_same(service: Service) -> None:
    first, second = inference(service), inference(service)
    say(service, feedback_id="f1", inference_id=first)
    for fields in ({"inference_id": second}, {"inference_id": first, "metric_name": "rating", "value": 1}):
        answer = say(service, supersedes="f1", **fields)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "supersedes")
    answer = say(service, supersedes="nobody", inference_id=first)
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "supersedes")


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("accepted", 1),
        ("accepted", "yes"),
        ("accepted", 0.0),
        ("edited", True),
        ("edited", "0.5"),
        ("edited", 1.5),
        ("edited", -0.1),
        ("comment", 3),
        ("comment", False),
    ],
)
def test_a_value_of_the_wrong_type_names_the_field(quick_service: Service, metric: str, value: object) -> None:
    answer = say(quick_service, inference_id=inference(quick_service), metric_name=metric, value=value)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "value"


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999", "-1e400"])
def test_no_number_is_infinite(quick_service: Service, value: str) -> None:
    body = f'{{"inference_id": "{UNKNOWN}", "metric_name": "rating", "value": {value}}}'
    answer = quick_service.http.post("/v1/feedback", content=body)
    assert answer.status_code == 400


@pytest.mark.parametrize("value", ["1e308", "-1000000000001", "1" + 400 * "0"])
def test_no_number_is_larger_than_sums_of_it_can_hold(quick_service: Service, value: str) -> None:
    body = f'{{"inference_id": "{inference(quick_service)}", "metric_name": "rating", "value": {value}}}'
    answer = quick_service.http.post("/v1/feedback", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "value"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"metric_name": "likes", "inference_id": UNKNOWN}, "metric_name"),
        ({"inference_id": UNKNOWN, "session_id": "s"}, "inference_id"),
        ({}, "inference_id"),
        ({"inference_id": UNKNOWN, "colour": 1}, "colour"),
        ({"inference_id": UNKNOWN, "source": "derived"}, "source"),
        ({"inference_id": UNKNOWN, "feedback_id": "with space"}, "feedback_id"),
        *[({"inference_id": UNKNOWN, "feedback_id": f"{start}1"}, "feedback_id") for start in RESERVED],
        ({"inference_id": UNKNOWN, "tool_call_id": "c" * 513}, "tool_call_id"),
        ({"inference_id": UNKNOWN, "evidence": "x" * 262_145}, "evidence"),
        ({"inference_id": UNKNOWN, "observed_at": "2026-01-02T03:04:05"}, "observed_at"),
        ({"inference_id": UNKNOWN, "value": None}, "value"),
    ],
)
def test_bad_feedback_names_the_field(quick_service: Service, fields: dict[str, Any], param: str) -> None:
    answer = say(quick_service, **fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_nothing_is_observed_before_it_happens(make_service: Any) -> None:
    service = make_service(feedback={"clock_skew_s": 60})
    inference_id = inference(service)
    for ahead_s, status in ((30, 200), (90, 400)):
        observed_at = (datetime.now(UTC) + timedelta(seconds=ahead_s)).isoformat()
        answer = say(service, inference_id=inference_id, observed_at=observed_at)
        assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("observed_at", "from_the_future")
    for extreme in ("9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00"):
        answer = say(service, inference_id=inference_id, observed_at=extreme)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "observed_at")


@pytest.mark.parametrize("fields", [{"inference_id": UNKNOWN}, {"inference_id": "no-uuid"}, {"session_id": "nobody"}])
def test_unknown_subjects_are_404(quick_service: Service, fields: dict[str, Any]) -> None:
    answer = say(quick_service, **fields)
    assert answer.status_code == 404
    assert answer.json()["error"]["param"] == next(iter(fields))


def test_an_inference_that_the_store_gets_later_is_waited_for(make_service: Any) -> None:
    service = make_service(feedback={"lookup_s": 60})
    service.writing.clear()
    inference_id = inference(service)
    service.live_state.__init__()
    timer = threading.Timer(0.3, service.writing.set)
    timer.start()
    assert say(service, inference_id=inference_id).status_code == 200
    timer.join()


def test_feedback_is_taken_on_trust_while_the_writer_is_late(make_service: Any) -> None:
    """Live state has forgotten a recent turn: to answer that there is none would lose the outcome."""
    service = make_service(feedback={"lookup_s": 0.1})
    service.writing.clear()
    inference_id = inference(service)
    service.live_state.__init__()
    answer = say(service, feedback_id="f1", inference_id=inference_id)
    assert (answer.status_code, answer.json()["status"]) == (202, "pending")
    refused = service.get(f"/v1/turns/{inference_id}")
    assert refused.status_code == 503
    assert "not in the store yet" in refused.json()["error"]["message"]
    service.writing.set()
    wait_for(lambda: service.get("/v1/feedback/f1").status_code == 200)
    assert service.get(f"/v1/turns/{inference_id}").status_code == 200
    assert say(service, inference_id=UNKNOWN).status_code == 404, "the store has all, and not this"


def test_targets_must_exist(service: Service) -> None:
    tools = [{"type": "function", "function": {"name": "run"}}]
    service.policy.scripts.append(Script((*call_ids("run", {}), END)))
    answer = service.chat("x", tools=tools)
    inference_id = answer.headers["x-onward-inference-id"]
    call_id = answer.json()["choices"][0]["message"]["tool_calls"][0]["id"]
    length = answer.json()["usage"]["completion_tokens"]
    assert say(service, inference_id=inference_id, tool_call_id=call_id).status_code == 200
    assert say(service, inference_id=inference_id, target_range={"start": 0, "end": length}).status_code == 200
    beyond = [{"start": 0, "end": length + 1}, {"start": 0, "end": 1 << 70}, {"start": -(1 << 70), "end": 1}]
    for fields in ({"tool_call_id": "call_9"}, *({"target_range": span} for span in beyond)):
        refused = say(service, inference_id=inference_id, **fields)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, next(iter(fields)))


def test_a_store_that_is_away_leaves_feedback_pending(service: Service) -> None:
    inference_id = inference(service)
    service.store.broken = True
    answer = say(service, feedback_id="f1", inference_id=inference_id)
    assert (answer.status_code, answer.json()["status"]) == (202, "pending")
    assert service.get("/v1/feedback/f1").status_code == 503
    assert service.chat({"role": "user", "content": "hi"}).status_code == 200
    service.store.broken = False
    assert service.get("/v1/feedback/f1").json()["status"] == "recorded"


def test_a_log_that_is_away_is_a_503_and_the_retry_counts(service: Service) -> None:
    inference_id = inference(service)
    service.log.broken = True
    assert say(service, feedback_id="f1", inference_id=inference_id).status_code == 503
    service.log.broken = False
    assert say(service, feedback_id="f1", inference_id=inference_id, value=False).status_code == 200
    (outcome,) = wait_for(service.outcomes)
    assert outcome.value is False


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
FIELDS = (
    "feedback_id inference_id session_id metric_name value tags supersedes target_range tool_call_id observed_at "
    "evidence source"
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.dictionaries(st.sampled_from(FIELDS.split()), JSON, max_size=6), known=st.booleans())
def test_no_feedback_body_is_a_5xx(quick_service: Service, body: dict[str, Any], known: bool) -> None:
    if known:
        body = {**body, "metric_name": "comment", "value": "x"}
    answer = quick_service.post("/v1/feedback", body)
    assert answer.status_code in (200, 400, 404, 409), (body, answer.text)
    if answer.status_code != 200:
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
