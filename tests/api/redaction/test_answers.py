"""Placeholders keep a session coherent, and clients get their values back, whole or streamed."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_harness import MODEL, Service, serve
from byte_renderer import END, call_ids
from exports import outcomes
from scripted_policy import Script, says

from api.turns.private.client_words import ClientWords
from core.settings import PrivacySettings

KEY = "ghp_" + "Zk3mQ9vT2xLr8Wn4Yb6Hc1Jd5Fs7Gp0AeUiO"
MAIL = "rosalind.zander@quarzwerk-hamm.de"
ASKED = f"use {KEY} and write to {MAIL}"
PLACEHOLDER = re.compile(r"<[A-Z]+_[a-z2-7]{6}>")
TOOL = {"type": "function", "function": {"name": "send", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture
def private(tmp_path: Path) -> Iterator[Service]:
    with serve(tmp_path / "service", privacy=PrivacySettings(redact=("secrets", "pii"))) as service:
        yield service


def placeholders(service: Service, **fields: Any) -> tuple[str, str]:
    """Return what stands for key and address."""
    answer = service.chat(ASKED, **fields).json()
    key, mail = PLACEHOLDER.findall(service.turn(answer["onward"]["inference_id"]).messages[0]["content"])
    return key, mail


def streamed(service: Service, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    answer = service.post(path, {"model": MODEL, "stream": True, **body})
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@pytest.mark.parametrize("chunk_tokens", [1, 2, 5, 100])
def test_values_come_back_in_whole_and_streamed_answers(private: Service, chunk_tokens: int) -> None:
    key, mail = placeholders(private)
    said = f"a <b> {key}{mail}, <SECRET_abcdef> and <EMAIL"
    private.policy.default = says(said, chunk_tokens=chunk_tokens)
    wanted = said.replace(key, KEY).replace(mail, MAIL)
    whole = private.chat(ASKED).json()
    assert whole["choices"][0]["message"]["content"] == wanted
    turn = private.turn(whole["onward"]["inference_id"])
    assert (turn.text, turn.trainable) == (said, True)
    chat = {"messages": [{"role": "user", "content": ASKED}]}
    chunks = streamed(private, "/v1/chat/completions", chat)
    assert "".join(each["choices"][0]["delta"].get("content", "") for each in chunks if each["choices"]) == wanted
    events = streamed(private, "/v1/messages", chat | {"max_tokens": 200})
    assert "".join(each["delta"]["text"] for each in events if each["type"] == "content_block_delta") == wanted
    events = streamed(private, "/v1/responses", {"input": ASKED})
    assert "".join(each["delta"] for each in events if each["type"] == "response.output_text.delta") == wanted
    assert next(each["text"] for each in events if each["type"] == "response.output_text.done") == wanted
    chunks = streamed(private, "/v1/completions", {"prompt": ASKED})
    assert "".join(each["choices"][0]["text"] for each in chunks if each["choices"]) == wanted
    tabby = private.post("/tabby/v1/completions", {"segments": {"prefix": ASKED}}).json()
    assert tabby["choices"][0]["text"] == wanted[: len(tabby["choices"][0]["text"])]


def test_values_come_back_as_json_writes_them_and_in_stop_strings(private: Service) -> None:
    password = 'sl"ash\\\\9x'
    first = private.chat(f"password = '{password}'").json()
    (name,) = PLACEHOLDER.findall(private.turn(first["onward"]["inference_id"]).messages[0]["content"])
    private.policy.default = Script((*call_ids("send", {"text": f"it is {name}!"}), END))
    call = private.chat(f"password = '{password}'", tools=[TOOL]).json()["choices"][0]["message"]["tool_calls"][0]
    assert json.loads(call["function"]["arguments"]) == {"text": f"it is {password}!"}
    words = ClientWords({name: password}, is_json=True)
    said = json.dumps({"text": f"it is {name}!"})
    parts = [words.part("", each, (), is_last=False)[1] for each in said] + [words.part("", "", (), is_last=True)[1]]
    assert json.loads("".join(parts)) == json.loads(words.content(said)) == {"text": f"it is {password}!"}
    private.policy.default = says(f"up to {name} and on")
    asked = [{"role": "user", "content": f"password = '{password}'"}]
    body = {"model": MODEL, "max_tokens": 200, "stop_sequences": [password], "messages": asked}
    assert private.post("/v1/messages", body).json()["stop_sequence"] == password


def test_the_next_turn_continues_the_very_tokens(private: Service) -> None:
    key, mail = placeholders(private)
    private.policy.default = says(f"I wrote to {mail} with {key}.")
    first = private.chat(ASKED).json()
    answer = first["choices"][0]["message"]
    told = [{"role": "user", "content": ASKED}, {"role": "assistant", "content": answer["content"]}]
    second = private.chat(*told, {"role": "user", "content": f"again, {MAIL}"}).json()
    one, two = (private.turn(each["onward"]["inference_id"]) for each in (first, second))
    assert (two.parent_id, two.session_id) == (one.inference_id, one.session_id)
    assert (
        two.prompt_token_ids[: len(one.prompt_token_ids) + len(one.token_ids)] == one.prompt_token_ids + one.token_ids
    )
    assert two.messages[2]["content"] == f"again, {mail}"


def test_a_response_gets_back_what_an_earlier_request_said(private: Service) -> None:
    key, _ = placeholders(private)
    first = private.post("/v1/responses", {"model": MODEL, "input": ASKED}).json()
    private.turn(first["onward"]["inference_id"])
    private.policy.default = says(f"it was {key}")
    body = {"model": MODEL, "previous_response_id": first["id"], "input": "which key?"}
    assert private.post("/v1/responses", body).json()["output"][0]["content"][0]["text"] == f"it was {KEY}"
    stranger = private.chat("which key?").json()  # of another session
    assert stranger["choices"][0]["message"]["content"] == f"it was {key}"


def test_placeholders_differ_by_speaker_and_by_the_services_key(tmp_path: Path) -> None:
    privacy = PrivacySettings(redact=("secrets", "pii"), restore=False)
    found = set()
    for number, secret in enumerate(("one-secret", "another-secret")):
        with serve(tmp_path / str(number), privacy=privacy, user_hash_key=secret) as service:
            key, mail = placeholders(service, user="ada")
            assert (key, mail) == placeholders(service, user="ada")
            service.policy.default = says(f"it is {mail}")
            assert service.chat(ASKED).json()["choices"][0]["message"]["content"] == f"it is {mail}"
            found |= {key, placeholders(service, user="eve")[0], placeholders(service)[0]}
    assert len(found) == 6


def test_feedback_says_the_same_placeholders_as_its_turn(private: Service) -> None:
    key, mail = placeholders(private, user="ada")
    private.policy.default = says(f"key: {key}\nmail: {mail}\n")
    turn_id = private.chat(ASKED, user="ada").json()["onward"]["inference_id"]
    private.turn(turn_id)
    final = {"metric_name": "edited", "final_text": f"key: {KEY}\nmail: {MAIL}\n"}
    assert private.post("/v1/feedback", {"inference_id": turn_id, **final}).status_code == 200
    (outcome,) = outcomes(private)
    assert (outcome.value, outcome.evidence) == (1.0, f"key: {key}\nmail: {mail}\n")


def test_continue_reports_an_answer_in_the_clients_words(private: Service) -> None:
    key, _ = placeholders(private)
    private.policy.default = says(f"export TOKEN={key}")
    answer = private.chat(ASKED).json()
    private.turn(answer["onward"]["inference_id"])
    data = {"completion": f"export TOKEN={KEY}", "prompt": ASKED, "accepted": True}
    said = private.post("/v1/continue/data", {"name": "editOutcome", "data": data})
    assert said.json() == {"status": "recorded"}, said.text
