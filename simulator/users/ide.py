"""An IDE session over HTTP, as a plugin holds it, with the user's file on one side and the service on the other."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp
import msgspec

from simulator.tasks.sampling import UserTask
from simulator.tasks.sandbox import ForkServer
from simulator.tasks.taste import SessionQuality, Taste, judge_fix, judge_write
from simulator.tasks.toolbox import TOOLS
from simulator.users.client import JSON, Client, RequestFailed, decode, encode
from simulator.users.editor import Editor

MAX_TURNS = 7
MAX_TOKENS = 72
CONTEXT_TOKENS = 512  # the tiny model's; an IDE stops an agent before its service must refuse
MODEL = "onward-tiny"
REQUEST_TIMEOUT = aiohttp.ClientTimeout(total=60)
_STREAM_SHARE = 0.2
_HANG_UP_SHARE = 0.01
_FRAME_TOKENS = 16  # what the chat template puts around a message, at most

Ending = Literal["written", "done", "ask", "malformed", "limit", "hung_up", "failed"]


@dataclass
class EditorSession:
    """One session as the IDE saw it.

    Inferences are listed once their answer was whole, which is when the service has acknowledged them. `quality` is
    None when there is nothing to judge, `user` where users are not told apart."""

    task: UserTask
    session_id: str | None = None
    inference_ids: list[str] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)
    ending: Ending = "failed"
    closed: bool = False  # the service was told that no other turn will follow
    code: str = ""
    quality: SessionQuality | None = None
    user: str | None = None
    environment: str = "simulated"


@dataclass(frozen=True)
class IdeAnswer:
    message: dict[str, Any]
    finish_reason: str | None
    onward: dict[str, Any]
    tokens: int  # of prompt and answer


class Ide:
    """An IDE whose sessions share one connection pool."""

    def __init__(self, base_urls: Sequence[str], http: aiohttp.ClientSession, sandbox: ForkServer) -> None:
        """Send requests to the replicas at `base_urls` in turn."""
        self._client = Client(base_urls, http, REQUEST_TIMEOUT)
        self._sandbox = sandbox

    async def work(self, session: EditorSession, taste: Taste, rng: random.Random) -> None:
        """Work through the session and fill it in, its quality (ground truth, judged here) at the end.

        Raises RequestFailed, with what was acknowledged before in the session."""
        if session.task.kind == "write":
            await self._write(session, taste, rng)
        else:
            await self._fix(session, rng)

    async def _write(self, session: EditorSession, taste: Taste, rng: random.Random) -> None:
        messages = [{"role": "user", "content": session.task.request}]
        answer = await self._turn(session, messages, None, rng, last=True)
        if answer is None:
            session.ending = "hung_up"
            return
        session.ending = "written"
        session.code = answer.message["content"] or ""
        passed = answer.finish_reason == "stop" and await self._passes(session)
        session.quality = judge_write(session.code, passed, taste.style(session.task))

    async def _passes(self, session: EditorSession) -> bool:
        return (await self._sandbox.run(session.code, session.task.tests)).all_passed

    async def _fix(self, session: EditorSession, rng: random.Random) -> None:
        editor = Editor(session.task, self._sandbox)
        messages: list[dict[str, Any]] = [{"role": "user", "content": session.task.request}]
        for number in range(1, MAX_TURNS + 1):
            answer = await self._turn(session, messages, TOOLS, rng, last=number == MAX_TURNS)
            if answer is None:
                session.ending = "hung_up"
                return
            known = len(messages)
            await self._act(editor, answer, messages)
            if editor.ending is not None or not _fits(answer.tokens, messages[known:]):
                break
        session.ending = editor.ending or "limit"
        session.code = editor.code
        session.quality = judge_fix(editor.code, await editor.tests_pass(), session.ending == "done")

    async def _act(self, editor: Editor, answer: IdeAnswer, messages: list[dict[str, Any]]) -> None:
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
        self, session: EditorSession, messages: list[dict[str, Any]], tools: Any, rng: random.Random, *, last: bool
    ) -> IdeAnswer | None:
        """Make one chat completion; return None when the user hung up in the middle of it.

        `last` says that no other turn will follow."""
        body: dict[str, Any] = {"model": MODEL, "messages": messages, "max_tokens": MAX_TOKENS}
        if tools is not None:
            body["tools"] = tools
        if session.user is not None:
            body["user"] = session.user
        headers = {"x-onward-workload": session.task.kind, "x-onward-environment": session.environment}
        if session.session_id is not None:
            headers["x-session-id"] = session.session_id
        if last:
            headers["x-session-done"] = "true"
        started_s = time.monotonic()
        if rng.random() < _STREAM_SHARE:
            answer = await self._stream(body, headers, hang_up=rng.random() < _HANG_UP_SHARE / _STREAM_SHARE)
        else:
            answer = await self._ask(body, headers)
        if answer is not None:
            session.latencies_s.append(time.monotonic() - started_s)
            session.session_id = answer.onward["session_id"]
            session.inference_ids.append(answer.onward["inference_id"])
            session.versions.append(answer.onward["policy_version"])
            session.closed = last
        return answer

    async def _ask(self, body: dict[str, Any], headers: dict[str, str]) -> IdeAnswer:
        answer = await self._client.post("/v1/chat/completions", body, headers)
        choice = answer["choices"][0]
        tokens = answer["usage"]["total_tokens"]
        return IdeAnswer(choice["message"], choice["finish_reason"], answer["onward"], tokens)

    async def _stream(self, body: dict[str, Any], headers: dict[str, str], *, hang_up: bool) -> IdeAnswer | None:
        """Ask for the answer as server-sent events. A user who hangs up leaves after the first chunk with content."""
        pieces = _Pieces()
        try:
            async with self._client.http.post(
                self._client.url("/v1/chat/completions"),
                data=encode(body | {"stream": True, "stream_options": {"include_usage": True}}),
                headers=headers | JSON,
                timeout=self._client.timeout,
            ) as response:
                if response.status != 200:
                    raise RequestFailed(f"{response.status}: {await response.text()}", response.status)
                async for line in response.content:
                    if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                        continue
                    pieces.add(decode(line[6:]))
                    if hang_up and pieces.started:
                        response.close()
                        return None
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
            raise RequestFailed(f"stream: {error!r}") from error
        return pieces.whole()


class _Pieces:
    """A streamed answer as it comes together."""

    def __init__(self) -> None:
        self._content = ""
        self._calls: list[dict[str, Any]] = []
        self._finish_reason: str | None = None
        self._onward: dict[str, Any] | None = None
        self._usage: dict[str, int] | None = None

    @property
    def started(self) -> bool:
        return bool(self._content or self._calls)

    def add(self, chunk: dict[str, Any]) -> None:
        """Add a chunk. Raises RequestFailed for an error in the midst of the stream."""
        if "error" in chunk:
            raise RequestFailed(f"stream: {chunk['error']}")
        self._onward = chunk.get("onward") or self._onward
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk["choices"]:
            self._content += choice["delta"].get("content") or ""
            self._calls += choice["delta"].get("tool_calls") or []
            self._finish_reason = choice["finish_reason"] or self._finish_reason

    def whole(self) -> IdeAnswer:
        """Return the whole answer. Raises RequestFailed for a stream that ended too early."""
        if self._onward is None or self._finish_reason is None or self._usage is None:
            raise RequestFailed("stream: ended early")
        message = {"role": "assistant", "content": self._content, "tool_calls": _joined(self._calls)}
        return IdeAnswer(message, self._finish_reason, self._onward, self._usage["total_tokens"])


def _joined(deltas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join calls from their deltas: names come once, arguments in pieces."""
    calls: dict[int, dict[str, Any]] = {}
    for delta in deltas:
        call = calls.setdefault(delta["index"], {"type": "function", "function": {"name": "", "arguments": ""}})
        if delta.get("id"):
            call["id"] = delta["id"]
        function = delta.get("function") or {}
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""
    return [calls[index] for index in sorted(calls)]


def _fits(tokens: int, replies: list[dict[str, Any]]) -> bool:
    """Return whether the context holds one more answer after these messages, where a token is at least one byte."""
    new = sum(len((reply["content"] or "").encode()) + _FRAME_TOKENS for reply in replies if reply["role"] == "tool")
    return tokens + new + MAX_TOKENS <= CONTEXT_TOKENS
