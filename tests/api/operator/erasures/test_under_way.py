"""Turns that are under way when their user, session or namespace is erased: what they say rests nowhere."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from api_harness import MODEL, Service, serve_replicas, wait_for
from at_rest import forms_of, where_at_rest
from byte_renderer import ids
from scripted_policy import says

from api.access.context import Context
from api.access.services import ApiServices
from api.operator.erasures import forgetting
from core.events import Completion
from core.operations.erasures import Erasure, is_erased

WORD = "Zugspitzfeuersalamander"
KEYS = ({"key": "key-that-rules", "name": "ada", "namespace": "default", "scopes": ("admin", "chat", "feedback")},)
BEARER = {"authorization": "Bearer key-that-rules"}


def under_way(service: Service, meanwhile: Callable[[], None], user: str, session: str) -> Completion:
    """Let something happen in the midst of an answer; return its turn once it is stored."""
    gate = threading.Event()
    service.policy.scripts.append(says(WORD, gate=gate))
    said = {"messages": [{"role": "user", "content": WORD}], "user": user, "session_id": session}
    body = {"model": MODEL, "stream": True, **said}
    with service.http.stream("POST", "/v1/chat/completions", json=body, headers=BEARER) as answer:
        lines = answer.iter_lines()
        next(lines)
        meanwhile()
        gate.set()
        assert "data: [DONE]" in list(lines), "its user gets it"
    return service.turn(answer.headers["x-onward-inference-id"])


@pytest.mark.parametrize("what", ["users/mallory", "sessions/talk", "namespaces/default"])
@pytest.mark.parametrize("replica", [0, 1], ids=["the process that is told", "another process"])
def test_a_turn_under_way_when_it_is_erased_is_a_tombstone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replica: int, what: str
) -> None:
    monkeypatch.setattr("api.operator.erasures.forgetting.LOOK_S", 0.01)
    forgot: list[ApiServices] = []

    async def forget_and_tell(context: Context, order: Erasure) -> None:
        await forgetting_of(context, order)
        forgot.append(context.services)

    forgetting_of = forgetting.forget
    monkeypatch.setattr(forgetting, "forget", forget_and_tell)
    with serve_replicas(tmp_path / "service", 2, keys=KEYS) as services:
        told, asked = services[0], services[replica]

        def erase() -> None:
            assert told.delete(f"/v1/{what}", **BEARER).status_code == 202
            wait_for(lambda: any(each is asked.services for each in forgot), "what follows from a look for orders")

        before = told.chat("hi", headers=BEARER, user="mallory", session_id="talk")
        told.turn(before.headers["x-onward-inference-id"])
        turn = under_way(asked, erase, "mallory", "talk")
        assert is_erased(turn)
        assert (turn.user_id, turn.text, turn.token_ids, turn.unstored is None) == (None, "", (), False)
        assert where_at_rest(tmp_path, forms_of(WORD, ids(WORD))) == []
        later = under_way(asked, lambda: None, "mallory", "talk")
        assert later.text == WORD, "what is said after the order is another matter"
