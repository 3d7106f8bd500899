"""The IDE's handling of answers, whole and streamed."""

import asyncio
import random
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import aiohttp
import pytest
from scripted_service import Message, ScriptedService, bungler, call, expert, say

from simulator.tasks.sampling import REPOS, Kind, sample_task
from simulator.tasks.sandbox import ForkServer
from simulator.tasks.taste import Taste
from simulator.users.ide import CONTEXT_TOKENS, MAX_TOKENS, MAX_TURNS, EditorSession, Ide, RequestFailed

WHOLE, STREAMED, HANGS_UP = 0.99, 0.1, 0.0
TASTE = Taste()
OTHER = Taste(hinted=frozenset(REPOS) - TASTE.hinted)


class Luck(random.Random):
    """A generator that always returns one number, so that every user is of one kind."""

    def __init__(self, value: float) -> None:
        super().__init__(0)
        self._value = value

    def random(self) -> float:
        return self._value


def work(
    service: ScriptedService, kind: Kind, luck: float = WHOLE, taste: Taste = TASTE, fails: bool = False
) -> EditorSession:
    session = EditorSession(sample_task(random.Random(11), kind))

    async def run() -> None:
        sandbox = ForkServer()
        async with aiohttp.ClientSession() as http:
            try:
                await Ide((service.url,), http, sandbox).work(session, taste, Luck(luck))
            finally:
                await sandbox.close()

    if fails:
        with pytest.raises(RequestFailed) as caught:
            asyncio.run(run())
        service.counts["status"] = caught.value.status or 0
    else:
        asyncio.run(run())
    return session


@pytest.mark.parametrize("luck", [WHOLE, STREAMED])
def test_right_code_in_taste_is_good(service: ScriptedService, luck: float) -> None:
    session = work(service, "write", luck)
    assert session.ending == "written"
    assert session.quality is not None
    assert session.quality.good
    (body, headers), *others = service.chats
    assert not others
    assert body.get("stream", False) == (luck == STREAMED)
    assert (headers["x-onward-workload"], headers["x-onward-environment"]) == ("write", "simulated")
    assert headers["x-session-done"] == "true"
    assert session.closed
    assert service.sessions[str(session.session_id)] == session.inference_ids
    assert session.versions == [1]


def test_taste_and_tests_both_count(service: ScriptedService) -> None:
    shifted = work(service, "write", taste=OTHER).quality
    assert shifted is not None
    assert shifted.tests_pass
    assert not shifted.good
    service.script.answer = bungler
    broken = work(service, "write").quality
    assert broken is not None
    assert not broken.syntax_ok
    assert not broken.good


def test_code_that_was_cut_off_is_not_good(service: ScriptedService) -> None:
    service.script.finish_reason = "length"
    quality = work(service, "write").quality
    assert quality is not None
    assert not quality.good


@pytest.mark.parametrize("luck", [WHOLE, STREAMED])
def test_a_fix_goes_through_the_tools(service: ScriptedService, luck: float) -> None:
    session = work(service, "fix", luck)
    assert session.ending == "done"
    assert session.quality is not None
    assert session.quality.good
    assert len(session.inference_ids) == 4
    assert service.sessions == {session.session_id: session.inference_ids}
    assert [headers.get("x-session-id") for _, headers in service.chats] == [None] + [session.session_id] * 3
    roles = [message["role"] for message in service.chats[-1][0]["messages"]]
    assert roles == ["user"] + ["assistant", "tool"] * 3
    results = [m["content"] for m in service.chats[-1][0]["messages"] if m["role"] == "tool"]
    assert results[1:] == ["ok", "pass"]
    assert not session.closed, "nobody could know that the last turn was the last"


def test_each_request_begins_with_the_one_before(service: ScriptedService) -> None:
    work(service, "fix")
    transcripts = [body["messages"] for body, _ in service.chats]
    for earlier, later in pairwise(transcripts):
        assert later[: len(earlier)] == earlier
        said, result = later[len(earlier) :]
        assert result["tool_call_id"] == said["tool_calls"][0]["id"]


def test_done_without_a_fix_is_not_good(service: ScriptedService) -> None:
    service.script.answer = bungler
    session = work(service, "fix")
    assert session.ending == "done"
    assert session.quality is not None
    assert not session.quality.good


def raw_call(name: str, arguments: str) -> Message:
    made = call(name)
    made["tool_calls"][0]["function"]["arguments"] = arguments
    return made


@pytest.mark.parametrize(
    "message",
    [
        say("I would rather not."),
        say(""),
        call("rm", path="x"),
        call("read_file", path="elsewhere.py"),
        call("read_file"),
        call("edit_file", line=1),
        call("edit_file", line=99, text="x"),
        call("edit_file", line=0, text="x"),
        call("edit_file", line="1", text="x"),
        call("edit_file", line=1, text=None),
        raw_call("run_tests", "{"),
        raw_call("run_tests", ""),
        raw_call("read_file", "[]"),
        raw_call("edit_file", '"line"'),
    ],
)
@pytest.mark.parametrize("luck", [WHOLE, STREAMED])
def test_malformed_answers_end_the_session(service: ScriptedService, message: Message, luck: float) -> None:
    service.script.answer = lambda _messages: message
    session = work(service, "fix", luck)
    assert session.ending == "malformed"
    assert session.quality is not None
    assert not session.quality.good
    assert len(session.inference_ids) == 1


def test_a_question_ends_the_session(service: ScriptedService) -> None:
    service.script.answer = lambda _messages: call("ask", question="which line?")
    assert work(service, "fix").ending == "ask"


def test_an_agent_that_never_ends_is_stopped(service: ScriptedService) -> None:
    service.script.answer, service.script.tokens = lambda _messages: call("run_tests"), 10
    session = work(service, "fix")
    assert session.ending == "limit"
    assert len(session.inference_ids) == MAX_TURNS
    assert ["x-session-done" in headers for _, headers in service.chats] == [False] * (MAX_TURNS - 1) + [True]
    assert session.closed


@pytest.mark.parametrize("luck", [WHOLE, STREAMED])
def test_an_agent_is_stopped_before_the_context_is_full(service: ScriptedService, luck: float) -> None:
    service.script.answer, service.script.tokens = lambda _messages: call("run_tests"), 100
    session = work(service, "fix", luck)
    assert session.ending == "limit"
    assert not session.closed
    asked = [100 * len(body["messages"]) for body, _ in service.chats]
    assert asked == [100, 300, 500]
    assert all(tokens + MAX_TOKENS <= CONTEXT_TOKENS for tokens in asked[:-1])


@pytest.mark.parametrize("kind", ["write", "fix"])
def test_a_user_who_hangs_up_leaves_nothing_acknowledged(service: ScriptedService, kind: Kind) -> None:
    session = work(service, kind, HANGS_UP)
    assert session.ending == "hung_up"
    assert session.quality is None
    assert session.inference_ids == []


@pytest.mark.parametrize("luck", [WHOLE, STREAMED])
def test_a_refused_request_fails_the_session(service: ScriptedService, luck: float) -> None:
    service.script.status = lambda route: 503 if service.counts[route] == 3 else 200
    session = work(service, "fix", luck, fails=True)
    assert service.counts["status"] == 503
    assert session.ending == "failed"
    assert session.quality is None
    assert len(session.inference_ids) == 2, "what was acknowledged before still counts"


@pytest.mark.parametrize("luck", [WHOLE, STREAMED])
def test_a_cut_connection_fails_the_session(service: ScriptedService, luck: float) -> None:
    service.script.drop = lambda route, nth: route == "chat"
    session = work(service, "write", luck, fails=True)
    assert service.counts["status"] == 0
    assert session.ending == "failed"


def test_an_error_within_a_stream_fails_the_session(service: ScriptedService) -> None:
    service.script.broken_stream = True
    assert work(service, "write", STREAMED, fails=True).inference_ids == []


@pytest.mark.parametrize("kind", ["write", "fix"])
@pytest.mark.parametrize("answer", [expert, bungler, lambda _messages: call("ask", question="which?")])
def test_streamed_and_whole_answers_give_the_same_session(
    service: ScriptedService, kind: Kind, answer: Callable[[list[Message]], Message]
) -> None:
    service.script.answer = answer
    whole, streamed = work(service, kind, WHOLE), work(service, kind, STREAMED)
    for name in ("task", "ending", "closed", "code", "quality", "versions"):
        assert getattr(whole, name) == getattr(streamed, name), name
    assert len(whole.inference_ids) == len(streamed.inference_ids) == len(streamed.latencies_s)
    asked = [[said | {"content": said["content"] or ""} for said in body["messages"]] for body, _ in service.chats]
    middle = len(asked) // 2
    assert asked[:middle] == asked[middle:], "but for null and empty content, which are the same to a service"


@pytest.mark.parametrize("how", ["early_end", "cut"])
def test_a_stream_that_ends_early_fails_the_session(service: ScriptedService, how: str) -> None:
    setattr(service.script, how, True)
    session = work(service, "write", STREAMED, fails=True)
    assert (session.ending, session.inference_ids, session.quality) == ("failed", [], None)
    assert service.counts["status"] == 0


def test_hanging_up_closes_the_connection(service: ScriptedService) -> None:
    """The service sees the user leave in the middle of its answer."""
    service.script.patient = True
    assert work(service, "write", HANGS_UP).ending == "hung_up"
    deadline_s = time.monotonic() + 120
    while not service.hung_up and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert service.hung_up == 1


def test_the_script_is_an_expert_on_every_task() -> None:
    """Otherwise the tests above would test less than they say."""
    rng = random.Random(5)
    for kind in ("write", "fix"):
        for _ in range(200):
            task = sample_task(rng, kind)  # type: ignore[arg-type]
            messages: list[dict[str, Any]] = [{"role": "user", "content": task.request}]
            assert expert(messages)["role"] == "assistant"
