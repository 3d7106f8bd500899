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


def _answered(message: dict[str, Any], **times: Any) -> list[dict[str, Any]]:
    """Return the conversation with the results of the message's calls; the first has these times."""
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "here"} for call in message["tool_calls"]]
    return [ASKED, message, {**results[0], **times}, *results[1:]]


def test_times_reach_the_turn_that_made_the_call_and_not_the_model(service: Service) -> None:
    service.policy.scripts.append(Script((*call_ids("read", {}), *call_ids("grep", {}), 257), finish="stop"))
    first = service.chat(ASKED, tools=TOOLS, headers=HEADERS).json()
    told = _answered(first["choices"][0]["message"], onward={"started_at": STARTED, "ended_at": ENDED})
    second = service.chat(*told, tools=TOOLS, headers=HEADERS).json()
    turn = service.turn(second["onward"]["inference_id"])
    calls = service.get("/v1/sessions/timed").json()["turns"][0]["tool_calls"]
    assert calls[0]["started_at"] == "2026-03-01T10:00:00.250000Z"
    assert calls[0]["ended_at"] == "2026-03-01T10:00:01.500000Z"
    assert calls[1]["started_at"] is None
    assert service.get(f"/v1/turns/{first['onward']['inference_id']}").json()["tool_calls"] == calls
    before = service.turn(turn.parent_id or "")
    assert turn.prompt_token_ids[: len(before.prompt_token_ids)] == before.prompt_token_ids
    assert b"2026" not in bytes(token for token in turn.prompt_token_ids if token < 256)


@pytest.mark.parametrize(
    ("times", "named"),
    [
        ({"started_at": ENDED, "ended_at": STARTED}, "messages[2].onward.ended_at"),
        ({"started_at": STARTED}, "ended_at"),
        ({"started_at": STARTED, "ended_at": "2026-03-01T10:00:02"}, "onward"),
        ({"started_at": STARTED, "ended_at": ENDED, "seconds": 1}, "seconds"),
    ],
)
def test_times_that_make_no_sense_are_refused_by_name(
    quick_service: Service, times: dict[str, Any], named: str
) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    told = _answered({"role": "assistant", "content": "", "tool_calls": [call]}, onward=times)
    refused = quick_service.chat(*told, tools=TOOLS)
    assert refused.status_code == 400
    assert named in refused.text
