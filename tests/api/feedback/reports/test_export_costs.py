"""An export costs its limits what became of it, and the store one look for all of its events."""

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from api_harness import Service, serve, wait_for
from exports import SPEC, Program, counted, said, turn_with_call
from opentelemetry.exporter.otlp.proto.http import Compression
from sqlalchemy import Engine
from sqlalchemy.event import listen, remove

from api.feedback.reports import window
from api.feedback.reports.otlp import endpoint
from api.feedback.side_by_side import SLICE
from api.http.background import Aside
from core.ids import Namespace
from core.store.turns import MadeTurn


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with serve(tmp_path / "service", spec=SPEC) as service:
        yield service


def test_what_becomes_no_outcome_uses_up_no_limit(tmp_path: Path) -> None:
    """It would each time that the export comes again, and what stands behind it would never be reached."""
    keys = [{"key": "key-of-ada", "namespace": "ours", "requests_per_minute": 1, "burst": 3}]
    with serve(tmp_path / "service", spec=SPEC, keys=keys) as service:
        service.http.headers["authorization"] = "Bearer key-of-ada"
        inference_id, call_id = turn_with_call(service)
        editor = Program(service, headers={"authorization": "Bearer key-of-ada"})
        scored = {"event": "gen_ai.evaluation.result", "gen_ai__response__id": inference_id}
        decided = {"event__name": "codex.tool_decision", "decision": "denied", "source": "User"}
        for place in range(4):
            editor.log(**decided, call_id=f"unknown_{place}")
            editor.log(**scored, gen_ai__evaluation__score__value=2.0 + place)
            editor.log(**scored, gen_ai__evaluation__score__value=0.5, at_ns=(int(time.time()) + 10**6 + place) * 10**9)
        editor.log(**decided, call_id=call_id)
        expected = "became no outcome of any turn: from_the_future 4, invalid_value 4, unknown_tool_call 4"
        assert editor.send_logs() == (12, expected)
        wait_for(lambda: service.outcomes() or None, "the outcome in the store")
        assert [said(each) for each in service.outcomes()] == [("rejected", True, inference_id)]


def test_the_store_is_asked_once_for_all_events_of_an_export(service: Service) -> None:
    """But for each that is recorded, whose id it is asked for once."""
    inference_id, call_id = turn_with_call(service)
    service.turn(inference_id)
    service.live_state.forget()
    codex, judge = Program(service), Program(service)
    decided = {"event__name": "codex.tool_decision", "decision": "denied", "source": "User"}
    for place in range(100):
        codex.log(**decided, call_id=call_id if place == 50 else f"unknown_{place}")
        judge.log(
            event="gen_ai.evaluation.result",
            gen_ai__response__id=str(uuid.uuid4()),
            gen_ai__evaluation__score__value=0.5,
        )
    with selects() as found:
        assert codex.send_logs() == (99, "became no outcome of any turn: unknown_tool_call 99")
    assert len([each for each in found if "FROM turns" in each]) <= 3, "the turns, now and with all; and the joined one"
    assert len([each for each in found if "FROM outcomes" in each]) == 2, "all ids, and the recorded one's"
    with selects() as found:
        assert judge.send_logs() == (100, "became no outcome of any turn: unknown_id 100")
    assert len([each for each in found if "FROM turns" in each]) == 2, "the answers, now and with all"


def test_the_store_is_asked_once_for_all_conversations_and_once_for_the_turns_of_each(service: Service) -> None:
    inference_id, call_id = turn_with_call(service, headers={"x-session-id": "ours"})
    service.turn(inference_id)
    service.live_state.forget()
    decided = {"event__name": "claude_code.tool_decision", "decision": "reject", "source": "user_reject"}
    strange, known = Program(service, "cline"), Program(service)
    for place in range(100):
        strange.log("task.feedback", ulid=f"conversation-{place}", feedbackType="thumbs_up")
        known.log(**decided, session__id="ours", tool_use_id=call_id if place == 50 else f"unknown_{place}")
    with selects() as found:
        assert strange.send_logs() == (100, "became no outcome of any turn: unknown_conversation 100")
    assert len([each for each in found if "FROM turns" in each]) == 2, "the sessions, now and with all"
    with selects() as found:
        assert known.send_logs() == (99, "became no outcome of any turn: unknown_tool_call 99")
    looks = [each for each in found if "FROM turns" in each]
    assert len(looks) <= 6, "the session; its turns' ids and its turns, now and with all; and the joined one"


def test_what_is_too_much_costs_the_event_loop_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is counted where the export is read: once for each kind, however many there are."""
    told: list[int] = []
    count = endpoint.count_unjoined

    def note(namespace: Namespace, source: str, reason: str, many: int = 1) -> None:
        told.append(many)
        count(namespace, source, reason, many)

    monkeypatch.setattr(endpoint, "count_unjoined", note)
    with serve(tmp_path / "service", spec=SPEC, feedback={"batch_items": 3}) as service:
        editor, before = Program(service), counted("vscode", "too_many")
        for place in range(50):
            editor.log(event__name="copilot_chat.edit.feedback", outcome="accepted", request_id=f"r{place}")
        assert editor.send_logs() == (50, "became no outcome of any turn: too_many 47, unknown_id 3")
        assert (sorted(told), counted("vscode", "too_many") - before) == ([3, 47], 47)


def test_names_are_linked_in_slices(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have their turn in between: the loop's own turns are counted at each name."""
    inference_id, _ = turn_with_call(service)
    service.turn(inference_id)
    program, claim = Program(service), service.live_state.claim
    turns, claims, counting = [0], Counter[int](), list[asyncio.Task[None]]()
    names = 6 * SLICE  # of each span the id of its answer, and its own

    async def count() -> None:
        while claims.total() < names:
            turns[0] += 1
            await asyncio.sleep(0)

    async def note(namespace: Namespace, key: str, digest: str) -> str | None:
        if key.startswith("link:"):
            if not counting:
                counting.append(asyncio.get_running_loop().create_task(count()))
            claims[turns[0]] += 1
        return await claim(namespace, key, digest)

    for place in range(3 * SLICE):
        program.span("chat", {"copilot_chat.server_request_id": inference_id, "gen_ai.response.id": f"name-{place}"})
    monkeypatch.setattr(service.live_state, "claim", note)
    assert program.send_spans() == ""
    assert claims.total() == names
    assert max(claims.values()) <= SLICE


def test_the_turns_are_looked_through_once_for_all_calls(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many events as an export may have would each pass all turns of the window on the event loop."""
    inference_id, call_id = turn_with_call(service)
    service.turn(inference_id)
    service.live_state.forget()
    looked: list[int] = []
    by_call = window._by_call

    def note(turns: Sequence[MadeTurn]) -> dict[str, list[MadeTurn]]:
        looked.append(len(turns))
        return by_call(turns)

    monkeypatch.setattr(window, "_by_call", note)
    codex = Program(service)
    for place in range(30):
        call = call_id if place == 20 else f"unknown_{place}"
        codex.log(event__name="codex.tool_decision", decision="denied", source="User", call_id=call)
    assert codex.send_logs() == (29, "became no outcome of any turn: unknown_tool_call 29")
    assert looked == [1, 1], "those of now, and with all that were on their way"


def test_what_clients_make_long_runs_one_at_a_time(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """All the threads on which others read the store would else be taken by small exports, or by texts to compare."""
    asked: list[str] = []
    run = Aside.run

    async def note(self: Aside, caller: object, work: Callable[[], Any]) -> Any:
        asked.append(getattr(work, "func", work).__name__)
        return await run(self, caller, work)

    monkeypatch.setattr(Aside, "run", note)
    inference_id, _ = turn_with_call(service)
    answer = service.chat("hi").headers["x-onward-inference-id"]
    service.turn(answer)
    program = Program(service)
    program.log(event__name="copilot_chat.edit.feedback", outcome="accepted", request_id=inference_id)
    program.send_logs(Compression.Gzip)
    of_answer = {"inference_id": answer, "metric_name": "edited"}
    for text in ({"final_text": "x"}, {"diff": "@@ -1 +1 @@"}):
        service.post("/v1/feedback", {**of_answer, **text})
    service.post("/v1/feedback", {**of_answer, "metric_name": "survived_1h", "snapshot": "x"})
    service.post("/v1/continue/data", {"name": "toolUsage", "data": {"accepted": True, "toolCallId": "x"}})
    assert asked == ["decompressed", "_understand", "_edited", "_edited", "_survived", "digest_of"]


@contextmanager
def selects() -> Iterator[list[str]]:
    """Yield the list of statements that read the store."""
    found: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: Any) -> None:
        if statement.startswith("SELECT"):
            found.append(statement)

    listen(Engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        remove(Engine, "before_cursor_execute", note)
