"""Code that fills a gap, in Mistral's form and in llama.cpp's."""

import json
from typing import Any

import pytest
from api_harness import MODEL, Service
from byte_renderer import END, MIDDLE, PREFIX, SUFFIX, ids
from scripted_policy import says

FIM: dict[str, Any] = {"model": MODEL, "prompt": "def f(", "suffix": "return x"}
INFILL: dict[str, Any] = {"input_prefix": "def f(", "input_suffix": "return x"}
GAP = (PREFIX, *ids("def f("), SUFFIX, *ids("return x"), MIDDLE)


def test_mistrals_route_answers_as_a_chat(service: Service) -> None:
    service.policy.scripts.append(says("x):"))
    answer = service.post("/v1/fim/completions", {**FIM, "random_seed": 7, "stop": "\n"}).json()
    assert (answer["object"], answer["choices"][0]["message"]["content"]) == ("chat.completion", "x):")
    turn = service.turn(answer["onward"]["inference_id"])
    assert (turn.prompt_token_ids, turn.token_ids) == (GAP, (*ids("x):"), END))
    assert (turn.sampling.seed, turn.workload, turn.purpose) == (7, "suggestion", "suggestion")


def test_mistrals_route_streams_with_its_usage(service: Service) -> None:
    service.policy.scripts.append(says("x):"))
    lines = service.post("/v1/fim/completions", {**FIM, "stream": True}).text.strip().split("\n\n")
    assert lines.pop() == "data: [DONE]"
    chunks = [json.loads(line[6:]) for line in lines]
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])
    assert (text, chunks[-1]["usage"]["completion_tokens"]) == ("x):", 4)


def test_llama_cpps_route_answers_in_its_form(service: Service) -> None:
    service.policy.scripts.append(says("x):"))
    extra = [{"filename": "a.py", "text": "import b"}]
    answer = service.post("/infill", {**INFILL, "input_extra": extra, "n_predict": 8, "samplers": ["top_k"]})
    said = answer.json()
    assert (said["content"], said["stop"], said["stop_type"], said["tokens_predicted"]) == ("x):", True, "eos", 4)
    assert answer.headers["x-onward-ignored"] == "samplers"
    turn = service.turn(said["onward"]["inference_id"])
    assert turn.prompt_token_ids == (PREFIX, *ids("a.py\nimport b\ndef f("), SUFFIX, *ids("return x"), MIDDLE)


def test_llama_cpps_route_streams(service: Service) -> None:
    service.policy.scripts.append(says("x):"))
    lines = service.post("/infill", {**INFILL, "stream": True}).text.strip().split("\n\n")
    parts = [json.loads(line[6:]) for line in lines]
    assert "".join(part["content"] for part in parts) == "x):"
    assert [part["stop"] for part in parts] == [False] * (len(parts) - 1) + [True]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/fim/completions", {**FIM, "prompt": ["a"]}, "prompt"),
        ("/v1/fim/completions", {**FIM, "prompt": "x" * 3000}, "prompt"),
        ("/infill", {**INFILL, "repeat_penalty": 1.2}, "repeat_penalty"),
        ("/infill", {**INFILL, "n_predict": 5000}, "n_predict"),
        ("/infill", {**INFILL, "input_prefix": "x" * 3000}, "input_prefix"),
    ],
)
def test_what_is_wrong_is_named(quick_service: Service, path: str, body: dict[str, Any], param: str) -> None:
    answer = quick_service.post(path, body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
