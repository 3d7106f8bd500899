"""What a namespace redacts is in no file of the service, wherever a request or its answer had it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_harness import MODEL, Service, serve, wait_for
from at_rest import forms_of, where_at_rest
from byte_renderer import END, call_ids, ids
from exports import SPEC, Program, outcomes
from scripted_policy import Script, says

from core.settings import PrivacySettings

KEY = "ghp_" + "Zk3mQ9vT2xLr8Wn4Yb6Hc1Jd5Fs7Gp0AeUiO"
MAIL = "rosalind.zander@quarzwerk-hamm.de"
PHONE = "+49 2381 5550172"
PASSWORD = "kaltes$Wasser44"
SAID = [KEY, MAIL, PHONE, PASSWORD]
WORDS = f'token {KEY}, mail {MAIL}, call {PHONE}, password = "{PASSWORD}"'
FORMS = {f"{text[:8]} as {name}": form for text in SAID for name, form in forms_of(text, ids(text)).items()}
PRIVACY = PrivacySettings(redact=("secrets", "pii"))
PLACEHOLDER = re.compile(r"<[A-Z]+_[a-z2-7]{6}>")


@pytest.fixture
def private(tmp_path: Path) -> Iterator[Service]:
    with serve(tmp_path / "service", privacy=PRIVACY) as service:
        yield service


def ok(answer: Any) -> Any:
    assert answer.status_code in (200, 202), answer.text
    return answer


def send_everywhere(service: Service) -> int:
    """Send the words by every route that takes some, in every field; return how many turns that makes."""
    tool = {
        "type": "function",
        "function": {
            "name": "sing",
            "description": WORDS,
            "parameters": {"type": "object", "properties": {KEY: {"enum": [WORDS]}}},
        },
    }
    call = {"id": "c1", "type": "function", "function": {"name": "sing", "arguments": json.dumps({KEY: f"a\n{WORDS}"})}}
    history = [
        {"role": "system", "content": WORDS},
        {"role": "user", "content": [{"type": "text", "text": WORDS}], "name": MAIL},
        {"role": "assistant", "content": [{"type": "text", "text": WORDS}, {"type": "refusal", "refusal": WORDS}]},
        {"role": "assistant", "content": WORDS, "reasoning_content": WORDS, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": WORDS},
    ]
    extra = {"metadata": {"note": WORDS}, "stop": [WORDS], "tools": [tool], KEY: "is no field"}
    first = ok(service.chat(*history, headers={"x-onward-harness": WORDS}, **extra)).json()
    ok(service.chat(WORDS, user="ada"))
    ok(service.chat(WORDS, stream=True, n=2))
    ok(service.post("/v1/completions", {"model": MODEL, "prompt": WORDS, "suffix": WORDS, "stop": WORDS, KEY: 1}))
    said = {"role": "user", "content": [{"type": "text", "text": WORDS}]}
    ok(service.post("/v1/messages", {"model": MODEL, "max_tokens": 9, "system": WORDS, "messages": [said]}))
    ok(service.post("/v1/messages/count_tokens", {"model": MODEL, "messages": [said]}))
    response = ok(service.post("/v1/responses", {"model": MODEL, "instructions": WORDS, "input": WORDS})).json()
    ok(service.post("/v1/responses", {"model": MODEL, "previous_response_id": response["id"], "input": WORDS}))
    ok(service.post("/v1/fim/completions", {"model": MODEL, "prompt": WORDS, "suffix": WORDS}))
    infill = {"input_prefix": WORDS, "input_suffix": WORDS, "input_extra": [{"text": WORDS, "filename": KEY}]}
    ok(service.post("/infill", infill | {"prompt": WORDS}))
    snippet = {"filepath": KEY, "body": WORDS}
    segments = {"prefix": WORDS, "suffix": WORDS, "clipboard": WORDS, "declarations": [snippet]}
    ok(service.post("/tabby/v1/completions", {"segments": segments, "language": "python"}))
    give_feedback(service, first["onward"]["inference_id"])
    return 11


def give_feedback(service: Service, inference_id: str) -> None:
    service.turn(inference_id)
    about = {"inference_id": inference_id}
    ok(service.post("/v1/feedback", {**about, "metric_name": "comment", "value": WORDS, "tags": {KEY: WORDS}}))
    ok(service.post("/v1/feedback", {**about, "metric_name": "accepted", "value": True, "evidence": WORDS}))
    ok(service.post("/v1/feedback", {**about, "metric_name": "edited", "final_text": WORDS}))
    batch = {"feedback": [{**about, "metric_name": "edited", "final_text": WORDS + WORDS}]}
    ok(service.post("/v1/feedback/batch", batch))


def test_no_file_has_what_is_redacted(private: Service, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    turns = send_everywhere(private)
    wait_for(lambda: len(private.all_turns()) >= turns, "all turns in the store")
    assert where_at_rest(tmp_path, FORMS) == []
    captured = capfd.readouterr()
    assert not [text for text in SAID if text in captured.out + captured.err]
    sent = [bytes(t for t in request.prompt_token_ids if t < 256) for request in private.policy.requests]
    assert not [text for text in SAID for prompt in sent if text.encode() in prompt]
    assert all(turn.trainable for turn in private.all_turns())


def test_without_redaction_they_are_found(service: Service, tmp_path: Path) -> None:
    """The search itself works."""
    turns = send_everywhere(service)
    wait_for(lambda: len(service.all_turns()) >= turns, "all turns in the store")
    found = where_at_rest(tmp_path, FORMS)
    assert {each.rsplit(": ", 1)[1].split(" as ")[0] for each in found} == {text[:8] for text in SAID}


def test_an_answer_that_says_a_secret_by_itself_is_given_and_not_stored(private: Service, tmp_path: Path) -> None:
    private.policy.scripts.append(says(f"the key is {KEY}."))
    answer = ok(private.chat("what is the key?")).json()
    assert KEY in answer["choices"][0]["message"]["content"]
    assert answer["onward"]["untrainable_reasons"] == ["redacted"]
    arguments = {"text": f"first line\n{KEY}\n"}
    private.policy.scripts.append(Script((*call_ids("sing", arguments), END)))
    tool = {"type": "function", "function": {"name": "sing", "parameters": {"type": "object", "properties": {}}}}
    second = ok(private.chat("call", tools=[tool])).json()
    private.policy.scripts.append(says(f"stop {KEY}", chunk_tokens=100))
    third = ok(private.chat("cut", stop=["stop"])).json()  # the words end before it, the tokens do not
    for each in (answer, second, third):
        turn = private.turn(each["onward"]["inference_id"])
        assert (turn.untrainable_reasons, turn.text, turn.token_ids) == (("redacted",), "", ())
    assert where_at_rest(tmp_path, FORMS) == []
    told = [{"role": "user", "content": "what is the key?"}]
    told += [{"role": "assistant", "content": f"the key is {KEY}."}, {"role": "user", "content": "thanks"}]
    turn = private.turn(ok(private.chat(*told)).json()["onward"]["inference_id"])
    assert PLACEHOLDER.search(turn.messages[1]["content"])
    assert where_at_rest(tmp_path, FORMS) == []


def test_another_namespace_keeps_its_words(tmp_path: Path) -> None:
    keys = [{"key": f"secret-{name}", "namespace": name, "scopes": ["chat", "read"]} for name in ("acme", "open")]
    privacy = PrivacySettings.model_validate({"namespaces": {"acme": {"redact": ["secrets"]}}})
    with serve(tmp_path / "service", privacy=privacy, keys=keys) as service:
        said = {}
        for name in ("acme", "open"):
            answer = service.chat(WORDS, headers={"authorization": f"Bearer secret-{name}"})
            said[name] = service.turn(ok(answer).json()["onward"]["inference_id"]).messages[0]["content"]
    assert said["open"] == WORDS
    assert KEY not in said["acme"]
    assert MAIL in said["acme"]


def test_what_an_export_explains_is_redacted(tmp_path: Path) -> None:
    with serve(tmp_path / "service", privacy=PRIVACY, spec=SPEC) as service:
        answer = ok(service.chat(f"hi, {KEY}")).json()
        service.turn(answer["onward"]["inference_id"])
        program = Program(service)
        program.log(
            "gen_ai.evaluation.result",
            gen_ai__response__id=answer["id"],
            gen_ai__evaluation__name="Relevance",
            gen_ai__evaluation__score__value=0.25,
            gen_ai__evaluation__explanation=WORDS,
        )
        assert program.send_logs() == (0, "")
        (judged,) = outcomes(service)
        assert judged.value == 0.25
        assert len(PLACEHOLDER.findall(judged.evidence or "")) == len(SAID)
        assert where_at_rest(tmp_path, FORMS) == []
