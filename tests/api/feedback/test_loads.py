"""The turn that feedback is about is loaded once per request, however many checks there are."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from api_harness import Service, wait_for
from byte_renderer import END, call_ids
from scripted_policy import Script
from sqlalchemy import Engine, event

MakeService = Callable[..., Service]
ADA = {"authorization": "Bearer key-of-ada"}
KEYS = ({"key": "key-of-ada", "namespace": "acme", "user": "ada", "scopes": ("chat", "feedback", "read")},)
TOOLS = [{"type": "function", "function": {"name": "edit"}}]


@contextmanager
def loads_of_turns() -> Iterator[list[str]]:
    """Yield the list of statements that read whole turns."""
    found: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: Any) -> None:
        if statement.startswith("SELECT turns.record"):
            found.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(Engine, "before_cursor_execute", note)


@pytest.mark.parametrize(
    ("settings", "headers"),
    [
        pytest.param({"feedback": {"user_per_minute": 100}}, {}, id="whose user is limited"),
        pytest.param({"keys": KEYS}, ADA, id="whose key is a user's"),
    ],
)
def test_a_turn_is_loaded_once(make_service: MakeService, settings: dict[str, Any], headers: dict[str, str]) -> None:
    service = make_service(**settings)
    service.policy.scripts.append(Script((*call_ids("edit", {"path": "f", "new_text": "a\nb"}), END)))
    answer = service.chat("x", tools=TOOLS, headers=headers)
    call_id = answer.json()["choices"][0]["message"]["tool_calls"][0]["id"]
    inference_id = answer.headers["x-onward-inference-id"]
    wait_for(service.all_turns, "the turn in the store")
    said = {"metric_name": "survived_1h", "inference_id": inference_id, "tool_call_id": call_id, "snapshot": "b"}
    with loads_of_turns() as loads:
        assert service.post("/v1/feedback", said, **headers).status_code == 200
    assert len(loads) == 1
