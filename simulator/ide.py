"""An IDE session over HTTP: what a plugin does, with the user's file on one side and the service on the other."""

import random
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp
import msgspec

from simulator.editor import Editor
from simulator.sandbox import Sandbox
from simulator.tasks import Task
from simulator.taste import Quality, Taste, judge_fix, judge_write
from simulator.toolbox import TOOLS

MAX_TURNS = 7
MAX_TOKENS = 72
MODEL = "onward-tiny"
_REQUEST_TIMEOUT = aiohttp.ClientTimeout(total=60)
_STREAM_SHARE = 0.2
_HANG_UP_SHARE = 0.01
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode

Ending = Literal["written", "done", "ask", "malformed", "limit", "hung_up"]


class RequestFailed(Exception):
    """The service answered with an error, or not at all."""


@dataclass
class Session:
    """What happened in one session, as the IDE saw it."""

    task: Task
    session_id: str | None = None
    inference_ids: list[str] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)
    ending: Ending = "malformed"
    code: str = ""
    quality: Quality | None = None


@dataclass(frozen=True)
class Answer:
    message: dict[str, Any]
    finish_reason: str | None
    onward: dict[str, Any]


class Ide:
    """Shares one connection pool among all sessions."""

    def __init__(self, base_url: str, http: aiohttp.ClientSession, sandbox: Sandbox) -> None:
        self._base_url = base_url
        self._http = http
        self._sandbox = sandbox

    async def work(self, task: Task, taste: Taste, rng: random.Random) -> Session:
        """Raises RequestFailed. The session's quality is ground truth, judged here."""
        session = Session(task)
        if task.kind == "write":
            await self._write(session, taste, rng)
        else:
            await self._fix(session, rng)
        return session

    async def _write(self, session: Session, taste: Taste, rng: random.Random) -> None:
        messages = [{"role": "user", "content": session.task.request}]
        answer = await self._turn(session, messages, None, rng)
        if answer is None:
            session.ending = "hung_up"
            return
        session.ending = "written"
        session.code = answer.message["content"] or ""
        passed = answer.finish_reason == "stop" and await self._passes(session)
        session.quality = judge_write(session.code, passed, taste)

    async def _passes(self, session: Session) -> bool:
        return (await self._sandbox.run(session.code, session.task.tests)).all_passed

    async def _fix(self, session: Session, rng: random.Random) -> None:
        editor = Editor(session.task, self._sandbox)
        messages: list[dict[str, Any]] = [{"role": "user", "content": session.task.request}]
        for _ in range(MAX_TURNS):
            answer = await self._turn(session, messages, TOOLS, rng)
            if answer is None:
                session.ending = "hung_up"
                return
            await self._act(editor, answer, messages)
            if editor.ending is not None:
                break
        session.ending = editor.ending or "limit"
        session.code = editor.code
        session.quality = judge_fix(editor.code, await editor.tests_pass(), session.ending == "done")

    async def _act(self, editor: Editor, answer: Answer, messages: list[dict[str, Any]]) -> None:
        """Execute the model's calls and put their results into the transcript."""
        calls = answer.message.get("tool_calls") or []
        if not calls:
            editor.ending = "malformed"
            return
        messages.append({"role": "assistant", "content": answer.message["content"], "tool_calls": calls})
        for call in calls:
            result = await editor.call(call["function"]["name"], call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
            if editor.ending is not None:
                return

    async def _turn(
        self, session: Session, messages: list[dict[str, Any]], tools: Any, rng: random.Random
    ) -> Answer | None:
        """One chat completion; None when the user hung up in the middle of it."""
        body: dict[str, Any] = {"model": MODEL, "messages": messages, "max_tokens": MAX_TOKENS}
        if tools is not None:
            body["tools"] = tools
        headers = {"x-onward-workload": session.task.kind, "x-onward-environment": "simulated"}
        if session.session_id is not None:
            headers["x-session-id"] = session.session_id
        started = self._now()
        if rng.random() < _STREAM_SHARE:
            answer = await self._stream(body, headers, hang_up=rng.random() < _HANG_UP_SHARE / _STREAM_SHARE)
        else:
            answer = await self._ask(body, headers)
        if answer is not None:
            session.latencies_s.append(self._now() - started)
            session.session_id = answer.onward["session_id"]
            session.inference_ids.append(answer.onward["inference_id"])
            session.versions.append(answer.onward["policy_version"])
        return answer

    def _now(self) -> float:
        return self._http.loop.time()

    async def _ask(self, body: dict[str, Any], headers: dict[str, str]) -> Answer:
        answer = await self.post("/v1/chat/completions", body, headers)
        choice = answer["choices"][0]
        return Answer(choice["message"], choice["finish_reason"], answer["onward"])

    async def _stream(self, body: dict[str, Any], headers: dict[str, str], *, hang_up: bool) -> Answer | None:
        """The same from server-sent events. A user who hangs up leaves after the first piece."""
        content, calls, finish, onward = "", [], None, None
        try:
            async with self._http.post(
                self._base_url + "/v1/chat/completions",
                data=_encode(body | {"stream": True}),
                headers=headers | {"content-type": "application/json"},
                timeout=_REQUEST_TIMEOUT,
            ) as response:
                if response.status != 200:
                    raise RequestFailed(f"{response.status}: {await response.text()}")
                async for line in response.content:
                    if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                        continue
                    chunk = _decode(line[6:])
                    if "error" in chunk:
                        raise RequestFailed(str(chunk["error"]))
                    onward = chunk.get("onward") or onward
                    for choice in chunk["choices"]:
                        content += choice["delta"].get("content") or ""
                        calls += choice["delta"].get("tool_calls") or []
                        finish = choice["finish_reason"] or finish
                    if hang_up and content:
                        response.close()
                        return None
        except (aiohttp.ClientError, TimeoutError) as error:
            raise RequestFailed(repr(error)) from error
        if onward is None or finish is None:
            raise RequestFailed("the stream ended early")
        return Answer({"role": "assistant", "content": content, "tool_calls": _whole(calls)}, finish, onward)

    async def post(self, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> Any:
        """Raises RequestFailed for anything but a 2xx."""
        try:
            async with self._http.post(
                self._base_url + path,
                data=_encode(body),
                headers={"content-type": "application/json", **(headers or {})},
                timeout=_REQUEST_TIMEOUT,
            ) as response:
                data = await response.read()
                if response.status >= 300:
                    raise RequestFailed(f"{path}: {response.status}: {data.decode(errors='replace')}")
                return _decode(data)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise RequestFailed(f"{path}: {error!r}") from error


def _whole(deltas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Calls put together from their deltas: names come once, arguments in pieces."""
    calls: dict[int, dict[str, Any]] = {}
    for delta in deltas:
        call = calls.setdefault(delta["index"], {"type": "function", "function": {"name": "", "arguments": ""}})
        if delta.get("id"):
            call["id"] = delta["id"]
        function = delta.get("function") or {}
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""
    return [calls[index] for index in sorted(calls)]
