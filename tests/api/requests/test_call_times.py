"""The times of tool calls, which the following request tells: they reach the calls of the turn that made them."""

from typing import Any

import pytest
from api_harness import Service
from byte_renderer import call_ids
from scripted_policy import Script

TOOLS = [{"type": "function", "function": {"name": name}} for name in ("read", "grep")]
HEADERS = {"x-session-id": "timed"}
STARTED, ENDED = "2026-03-01T10:00:00.25Z", "2026-03-01T10:00:01.5Z"
ASKED = {"role": "user", "content": "Where is it?"}


def _asked(service: Service) -> dict[str, Any]:
    service.policy.scripts.append(Script((*call_ids("read", {}), *call_ids("grep", {}), 257), finish="stop"))
    answer: dict[str, Any] = service.chat(ASKED, tools=TOOLS, headers=HEADERS).json()
    return answer


def _answered(first: dict[str, Any], **times: Any) -> list[dict[str, Any]]:
    message = first["choices"][0]["message"]
    one, other = message["tool_calls"]
    results = [
        {"role": "tool", "tool_call_id": one["id"], "content": "here", **times},
        {"role": "tool", "tool_call_id": other["id"], "content": "there"},
    ]
    return [ASKED, message, *results]


def test_times_reach_the_turn_that_made_the_call(service: Service) -> None:
    first = _asked(service)
    told = _answered(first, onward={"started_at": STARTED, "ended_at": ENDED})
    second = service.chat(*told, tools=TOOLS, headers=HEADERS)
    assert second.status_code == 200, second.text
    service.turn(second.json()["onward"]["inference_id"])
    session = service.get("/v1/sessions/timed").json()
    calls = session["turns"][0]["tool_calls"]
    assert calls[0]["started_at"] == "2026-03-01T10:00:00.250000Z"
    assert calls[0]["ended_at"] == "2026-03-01T10:00:01.500000Z"
    assert calls[1]["started_at"] is None
    story = service.get(f"/v1/turns/{session['turns'][0]['inference_id']}").json()
    assert story["tool_calls"] == calls


def test_the_model_is_shown_no_times_and_the_turn_continues(service: Service) -> None:
    first = _asked(service)
    told = _answered(first, onward={"started_at": STARTED, "ended_at": ENDED})
    second = service.chat(*told, tools=TOOLS, headers=HEADERS).json()
    turn = service.turn(second["onward"]["inference_id"])
    before = service.turn(turn.parent_id or "")
    assert turn.prompt_token_ids[: len(before.prompt_token_ids)] == before.prompt_token_ids
    assert b"2026" not in bytes(token for token in turn.prompt_token_ids if token < 256)
    assert turn.messages[2]["onward"]["started_at"].startswith("2026-03-01T10:00:00")


@pytest.mark.parametrize(
    ("times", "named"),
    [
        ({"started_at": ENDED, "ended_at": STARTED}, "messages[2].onward.ended_at"),
        ({"started_at": STARTED}, "ended_at"),
        ({"started_at": STARTED, "ended_at": "2026-03-01T10:00:02"}, "onward"),
        ({"started_at": STARTED, "ended_at": ENDED, "seconds": 1}, "seconds"),
    ],
)
def test_times_that_make_no_sense_are_refused_by_name(service: Service, times: dict[str, Any], named: str) -> None:
    refused = service.chat(*_answered(_asked(service), onward=times), tools=TOOLS, headers=HEADERS)
    assert refused.status_code == 400
    assert named in refused.text
