"""One service for all of this folder: users spoke of parts of its answers, and it learned from that."""

from pathlib import Path
from typing import Any

import pytest
from service_tree import Service, user, wait_for

SETTINGS = """
[learner.batch]
turns = 12
min_turns = 12
[learner.users]
share_repeats = false
"""
SPOKEN_OF = 8  # by their users; four more by a tool and by what users said next
SPEC = """
[outcomes.accepted]
type = "boolean"
weight = 1.0
decides = true
[outcomes.rejected]
type = "boolean"
weight = -0.5
decides = true
[outcomes.edited]
type = "number"
measure = "kept"
weight = 0.5
decides = true
[outcomes.comment]
type = "text"
[outcomes.demonstration]
type = "text"
[outcomes.call_failed]
type = "boolean"
role = "complaint"
weight = -1.0
decides = true
[outcomes.follow_up]
type = "boolean"
role = "complaint"
weight = -0.75
decides = true
[derived]
rules = ["failed_calls", "follow_up"]
"""
MISSING = "Error: no such file"
DISPLEASED = "no, that is wrong: use our logger"
TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "parameters": {
            "type": "object",
            "properties": {"path": {"enum": ["core.py", "main.py", "test.py"]}},
            "required": ["path"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="package")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the service, which has ended. Replays of it may have other settings than it had."""
    root = tmp_path_factory.mktemp("taught") / "service"
    root.mkdir()
    (root / "rewards.toml").write_text(SPEC)
    (root / "onward.toml").write_text(SETTINGS)  # replays read it, too
    service = Service(root, {}).start()
    try:
        for number in range(SPOKEN_OF):
            _tell(service, service.chat(f"write f{number}", max_tokens=12), number)
        _let_a_call_fail(service)
        for name in "abc":
            _go_on(service, f"write {name}", service.chat(f"write {name}", max_tokens=12), user(DISPLEASED))
        wait_for(lambda: len(service.get("/v1/policies")["data"]) > 1, 120, "a version more")
    finally:
        service.stop()
    return root


def _tell(service: Service, answer: Any, number: int) -> None:
    about = {"inference_id": answer["onward"]["inference_id"]}
    text, tokens = answer["choices"][0]["message"]["content"] or "", answer["usage"]["completion_tokens"]
    half = {"target_range": {"start": 0, "end": max(1, tokens // 2)}}
    said = "no, use our logger <|im_end|>"
    service.post("/v1/feedback", {**about, "metric_name": "comment", "value": said, **half})
    if number % 2 and text.strip():
        service.post("/v1/feedback", {**about, "metric_name": "edited", "final_text": text.strip()[:-1] + "!"})
    else:
        service.post("/v1/feedback", {**about, "metric_name": "rejected", "value": True, **half})


def _let_a_call_fail(service: Service) -> None:
    wanted = {"max_tokens": 64, "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    answers = (service.chat("read it", **wanted) for _ in range(20))  # some end before the call does
    answer = next(each for each in answers if each["choices"][0]["message"].get("tool_calls"))
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    _go_on(service, "read it", answer, {"role": "tool", "tool_call_id": call["id"], "content": MISSING}, tools=[TOOL])


def _go_on(service: Service, asked: str, answer: Any, next_message: dict[str, str], **fields: Any) -> None:
    """Go on with a conversation, as any client does that reports nothing."""
    messages = [user(asked), answer["choices"][0]["message"], next_message]
    service.post("/v1/chat/completions", {"model": "onward-tiny", "messages": messages, "max_tokens": 2, **fields})
