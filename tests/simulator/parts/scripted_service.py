"""A small service that answers by rules over real HTTP, and can be told to fail, lose and repeat things."""

import asyncio
import json
import re
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from simulator.tasks.sampling import ACCUMULATOR, LOOP_VARIABLE, SUFFIXES, UserTask
from simulator.tasks.taste import Taste, wanted
from simulator.tasks.templates import TEMPLATES
from simulator.tasks.toolbox import tool_call

_REQUEST = re.compile(r"\[(\w+)\] (?:write|fix) (?:\w+\.py: )?(\w+)\(([^)]*)\)")
Message = dict[str, Any]


def task_of(request: str) -> UserTask:
    """Return the user's task, parsed from the request as a model has to."""
    found = _REQUEST.match(request)
    assert found is not None, request
    repo, function, arguments = found.groups()
    template = next(t for t in TEMPLATES for verb in t.verbs for end in SUFFIXES if verb + end == function)
    slots = [slot for slot, _ in template.arguments]
    names = dict(zip(slots, arguments.split(", "), strict=True)) | {"A": ACCUMULATOR, "V": LOOP_VARIABLE}
    return UserTask("", "write", repo, template, function, names, request, ())


def say(content: str) -> Message:
    return {"role": "assistant", "content": content}


def call(name: str, **arguments: Any) -> Message:
    return tool_call(name, **arguments) | {"content": None}


def expert(messages: list[Message]) -> Message:
    """Answer correctly, in the team's first taste: read, edit, test, done."""
    task = task_of(messages[0]["content"])
    if "] write " in task.request:
        return say(wanted(task, Taste()))
    results = [message["content"] for message in messages if message["role"] == "tool"]
    if not results:
        return call("read_file", path=task.path)
    if len(results) == 1:
        right = task.solution(hints=False, one_liner=False).split("\n")
        shown = [line.split(" ", 1)[1] for line in results[0].split("\n")]
        wrong = next(place for place, line in enumerate(right) if shown[place] != line)
        return call("edit_file", line=wrong + 1, text=right[wrong])
    return call("run_tests") if results[-1] == "ok" else call("done")


def bungler(messages: list[Message]) -> Message:
    """Answer with code that does not parse, or say that it is done when nothing is."""
    return say("def broken(:") if "] write " in messages[0]["content"] else call("done")


@dataclass
class Script:
    """The rules of the service, which may be changed while it runs."""

    answer: Callable[[list[Message]], Message] = expert
    versions: Callable[[int], int] = lambda _turns: 1  # of the turns before
    status: Callable[[str], int] = lambda _path: 200  # what requests to a path get
    drop: Callable[[str, int], bool] = lambda _path, _nth: False  # whether the nth request to a path is cut off
    finish_reason: str = ""
    broken_stream: bool = False
    early_end: bool = False  # streams end well-formed before the answer is whole
    cut: bool = False  # streams end with the connection, after the first piece
    patient: bool = False  # streams go on when the user has gone, and not before
    tokens: int = 40
    stalls: bool = False  # no turn is ever answered
    forgets: bool = False  # the first turn


@dataclass
class ScriptedService:
    script: Script = field(default_factory=Script)
    url: str = ""
    sessions: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    session_of: dict[str, str] = field(default_factory=dict)
    outcomes: dict[str, dict[str, Any]] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    chats: list[tuple[dict[str, Any], dict[str, str]]] = field(default_factory=list)  # body and headers
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    hung_up: int = 0
    alarms: list[dict[str, Any]] = field(default_factory=list)  # the newest first
    releases: list[dict[str, Any]] = field(default_factory=list)  # the oldest first
    repeated: set[str] = field(default_factory=set)  # outcomes that are there twice
    after: dict[int, Callable[[], None]] = field(default_factory=dict)  # what happens at the nth look at a session

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._faults])
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/feedback", self._feedback)
        app.router.add_post("/v1/sessions/{id}/end", self._end)
        app.router.add_get("/v1/sessions/{id}", self._session)
        app.router.add_get("/v1/policies", self._policies)
        app.router.add_get("/v1/alarms", self._alarms)
        app.router.add_get("/v1/releases", self._releases)
        app.router.add_get("/metrics", self._metrics)
        return app

    @web.middleware
    async def _faults(self, request: web.Request, handler: Any) -> web.StreamResponse:
        route = request.path.split("/")[2 if request.path.startswith("/v1/") else 1]
        self.counts[route] += 1
        if self.script.drop(route, self.counts[route]):
            response: web.StreamResponse = await handler(request)  # taken in, but nobody hears of it
            assert request.transport is not None
            request.transport.abort()
            return response
        if (status := self.script.status(route)) != 200:
            return web.json_response({"error": {"message": "scripted", "type": "server_error"}}, status=status)
        answered: web.StreamResponse = await handler(request)
        return answered

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.chats.append((body, {name.lower(): value for name, value in request.headers.items()}))
        if self.script.stalls:
            await asyncio.Event().wait()
        message = self.script.answer(body["messages"])
        session_id = request.headers.get("x-session-id") or str(uuid.uuid4())
        inference_id = str(uuid.uuid4())
        version = self.script.versions(len(self.chats) - 1)
        onward = {"inference_id": inference_id, "session_id": session_id, "policy_version": version}
        finish = self.script.finish_reason or ("tool_calls" if message.get("tool_calls") else "stop")
        if body.get("stream"):
            response = await self._stream(request, message, finish, onward)
        else:
            choice = {"index": 0, "message": message, "finish_reason": finish}
            usage = {
                "total_tokens": self.script.tokens * len(body["messages"]),
                "completion_tokens": self.script.tokens,
            }
            response = web.json_response({"choices": [choice], "usage": usage, "onward": onward})
        if not (self.script.forgets and len(self.chats) == 1):
            self.sessions[session_id].append(inference_id)
        self.session_of[inference_id] = session_id
        return response

    async def _stream(self, request: web.Request, message: Message, finish: str, onward: Any) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        try:
            for delta in _deltas(message):
                await _send(response, {"choices": [{"delta": delta, "finish_reason": None}]})
                await asyncio.sleep(0)
                if self.script.cut and len(delta) == 1:
                    assert request.transport is not None
                    request.transport.abort()
                    return response
                if self.script.patient and len(delta) == 1:
                    await _gone(request)
            if self.script.early_end:
                return response
            if self.script.broken_stream:
                await _send(response, {"error": {"message": "scripted"}})
                return response
            await _send(response, {"choices": [{"delta": {}, "finish_reason": finish}], "onward": onward})
            usage = {"total_tokens": self.script.tokens * len((await request.json())["messages"])}
            await _send(response, {"choices": [], "usage": usage, "onward": onward})
            await response.write(b"data: [DONE]\n\n")
        except ConnectionResetError:
            self.hung_up += 1
        return response

    async def _feedback(self, request: web.Request) -> web.Response:
        body = await request.json()
        feedback_id = body["feedback_id"]
        if self.outcomes.setdefault(feedback_id, body) != body:
            return web.json_response({"error": {"message": "other content"}}, status=409)
        return web.json_response({"feedback_id": feedback_id, "status": "recorded"})

    async def _end(self, request: web.Request) -> web.Response:
        self.ended.append(request.match_info["id"])
        return web.json_response({"status": "ended"})

    async def _session(self, request: web.Request) -> web.Response:
        session_id = request.match_info["id"]
        self.after.pop(self.counts["sessions"], lambda: None)()
        if session_id not in self.sessions:
            return web.json_response({"error": {"message": "unknown"}}, status=404)
        turns = [
            {"inference_id": turn, "outcomes": self._about("inference_id", turn)} for turn in self.sessions[session_id]
        ]
        return web.json_response({"turns": turns, "outcomes": self._about("session_id", session_id)})

    def _about(self, kind: str, subject: str) -> list[dict[str, Any]]:
        about = [{"outcome_id": key} for key, body in self.outcomes.items() if body.get(kind) == subject]
        return about + [outcome for outcome in about if outcome["outcome_id"] in self.repeated]

    async def _policies(self, _request: web.Request) -> web.Response:
        figures = {"loss": 0.5, "seconds_waiting": 1.5, "seconds_reading": 0.0, "seconds_updating": 0.5}
        newest = {"version": 2, "turns": 30, "state": "live", "metrics": figures, "parent": 1, "digest": "two"}
        first = {"version": 1, "turns": 0, "state": "retired", "metrics": {}, "parent": None, "digest": "one"}
        return web.json_response({"live": 2, "data": [{"policy": "tiny"} | each for each in (newest, first)]})

    async def _alarms(self, request: web.Request) -> web.Response:
        assert request.query["state"] == "all"
        return web.json_response({"alarms": self.alarms, "next": None})

    async def _releases(self, request: web.Request) -> web.Response:
        after, limit = int(request.query["after"]), int(request.query["limit"])
        numbered = [{"sequence": number, **step} for number, step in enumerate(self.releases, 1)]
        return web.json_response({"data": numbered[after : after + limit]})

    async def _metrics(self, _request: web.Request) -> web.Response:
        lines = (
            "# HELP onward_policy_version The version that serves",
            f"onward_policy_version {float(self.script.versions(len(self.chats)))}",
            'onward_rewards_total{kind="first"} 60.0',
            "onward_engine_busy_seconds_total 0.55",
            "onward_probe_seconds_total 0.22",
            'onward_feedback_to_served_quantile_seconds{quantile="0.5"} 3.5',
            'onward_feedback_to_served_quantile_seconds{quantile="0.99"} 7.25',
        )
        return web.Response(text="\n".join(lines) + "\n")


def _deltas(message: Message) -> Iterator[dict[str, Any]]:
    """Yield the content in pieces, then each call's name with the first half of its arguments, then the second half."""
    yield {"role": "assistant", "content": ""}
    content = message["content"] or ""
    for place in range(0, len(content), 8):
        yield {"content": content[place : place + 8]}
    for index, made in enumerate(message.get("tool_calls") or ()):
        name, arguments = made["function"]["name"], made["function"]["arguments"]
        middle = len(arguments) // 2
        function = {"name": name, "arguments": arguments[:middle]}
        yield {"tool_calls": [{"index": index, "id": made["id"], "type": "function", "function": function}]}
        yield {"tool_calls": [{"index": index, "function": {"arguments": arguments[middle:]}}]}


async def _send(response: web.StreamResponse, chunk: dict[str, Any]) -> None:
    await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")


async def _gone(request: web.Request) -> None:
    """Wait until the client has closed the connection."""
    for _ in range(12_000):
        if request.transport is None or request.transport.is_closing():
            return
        await asyncio.sleep(0.01)


@contextmanager
def serving() -> Iterator[ScriptedService]:
    """Run the service in a thread with its own event loop, on a port that the system chose."""
    service, loop, started = ScriptedService(), asyncio.new_event_loop(), threading.Event()

    async def start() -> web.AppRunner:
        runner = web.AppRunner(service.app(), shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        service.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    def run() -> None:
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(start())
        loop.call_soon(started.set)  # within `run_forever`, which an earlier stop would not end
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(120)
    try:
        yield service
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
