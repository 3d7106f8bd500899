"""Answers from an engine that has the version loaded, without any service around it.

A case that is asked once is a request; a task is a conversation, whose prompts continue the very tokens before them."""

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from core.errors import EngineUnavailable, InvalidRequest
from core.events import FinishReason, Sampling, ToolCall
from core.ids import UNKNOWN, PolicyRef, new_inference_id, new_session_id
from core.ports import GenerateRequest, Policy, Renderer, TokenChunk
from serving.evals.cases import CannotRun, Case

Message = Mapping[str, Any]
_TIMES = "onward"  # of a call, in the message of its result: told to a service, and shown to no model


class EngineLost(CannotRun):
    """The engine went, or turned to another version, before the answer was whole: asked again, it may come."""


class NoRoom(CannotRun):
    """The context has no room for the answer that was asked for."""


@dataclass(frozen=True)
class Said:
    """One answer of a conversation. `message` is what the next request has it as.

    `seconds` are the engine's, from the first token on: waiting behind users is nothing that a version does."""

    message: dict[str, Any]
    text: str
    calls: tuple[ToolCall, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    output_tokens: int
    seconds: float


class Talk(Protocol):
    """A conversation with one version, as a task's harness has it."""

    @property
    def version(self) -> PolicyRef: ...

    def say(
        self, messages: Sequence[Message], tools: Sequence[Message], sampling: Sampling, *, may_call: bool = True
    ) -> Awaitable[Said]:
        """Ask for the next answer. `tools` are shown, and may be called where `may_call`. Raises CannotRun, NoRoom."""
        ...


BeginTalk = Callable[[], Talk]


class EngineAnswers:
    """The answers of one version."""

    def __init__(self, policy: Policy, renderer: Renderer, version: PolicyRef) -> None:
        self._policy, self._renderer, self._version = policy, renderer, version

    async def __call__(self, case: Case) -> str:
        """Ask once. Raises CannotRun, and Lost when asking again may help."""
        with _in_words_of_cases():
            prompt = self._renderer.render(case.request(), ())
            room = self._policy.context_length - len(prompt)
            if room < 1:
                raise CannotRun(
                    f"its {len(prompt)} tokens leave no room for an answer within {self._policy.context_length}"
                )
            sampling = Sampling(temperature=case.temperature, max_tokens=min(case.most_tokens, room), seed=case.seed)
            request = _request(self._renderer, prompt, sampling, self._version)
            parser, text = self._renderer.parser(tools=(), after=prompt), ""
            chunks, _ = await _whole(self._policy, request)
            for chunk in chunks:
                text += parser.feed(chunk.token_ids).content
            return text + parser.finish().content


class EngineTalk:
    """A conversation with one version: an implementation of Talk over the engine."""

    def __init__(self, policy: Policy, renderer: Renderer, version: PolicyRef) -> None:
        self.version = version
        self._policy, self._renderer = policy, renderer
        self._session_id = new_session_id()
        self._known: list[Message] = []  # which the tokens are of, the answer among them
        self._calls: Sequence[Message] = ()  # of that answer
        self._token_ids: tuple[int, ...] = ()

    async def say(
        self, messages: Sequence[Message], tools: Sequence[Message], sampling: Sampling, *, may_call: bool = True
    ) -> Said:
        """Ask for the next answer. Raises CannotRun, NoRoom, and Lost when asking again may help."""
        if tools and self._renderer.tools_refused is not None:
            raise CannotRun(f"the model cannot be shown tools: {self._renderer.tools_refused}")
        shown = [{name: value for name, value in message.items() if name != _TIMES} for message in messages]
        with _in_words_of_cases():
            prompt = self._prompt(shown, tools)
            if len(prompt) + sampling.max_tokens > self._policy.context_length:
                raise NoRoom(f"{len(prompt)} tokens and an answer of {sampling.max_tokens} exceed the model's context")
            request = _request(self._renderer, prompt, sampling, self.version, str(self._session_id))
            chunks, seconds = await _whole(self._policy, request)
            said = self._said(chunks, prompt, tools if may_call else (), seconds)
        self._known, self._calls = [*shown, said.message], said.message.get("tool_calls", ())
        self._token_ids = (*prompt, *_tokens(chunks))
        return said

    def _prompt(self, messages: Sequence[Message], tools: Sequence[Message]) -> tuple[int, ...]:
        count = len(self._known)
        if self._known and list(messages[:count]) == self._known:
            return self._renderer.extend(self._token_ids, messages[count:], self._calls)
        return self._renderer.render(messages, tools)

    def _said(
        self, chunks: Sequence[TokenChunk], prompt: tuple[int, ...], tools: Sequence[Message], seconds: float
    ) -> Said:
        parser = self._renderer.parser(tools=tools, after=prompt)
        deltas = [*(parser.feed(chunk.token_ids) for chunk in chunks), parser.finish()]
        text = "".join(delta.content for delta in deltas)
        calls = tuple(call for delta in deltas for call in delta.tool_calls)
        reason = chunks[-1].finish_reason
        assert reason is not None, "the last chunk has one"
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if calls:
            message["tool_calls"] = [_as_message(call) for call in calls]
        return Said(message, text, calls, reason, len(prompt), len(_tokens(chunks)), seconds)


@contextmanager
def _in_words_of_cases() -> Iterator[None]:
    """Raise Lost for an engine that is gone, and CannotRun for what the model cannot do."""
    try:
        yield
    except EngineUnavailable as error:
        raise EngineLost(str(error)) from error
    except InvalidRequest as error:
        raise CannotRun(str(error)) from error


async def _whole(policy: Policy, request: GenerateRequest) -> tuple[list[TokenChunk], float]:
    """Return an answer's chunks, of which it is known that all of them are the version's, and their seconds.

    These count from the first token on: how long a request waits behind others is the engine's affair.

    An engine of one version that switches in the middle of an answer continues under the new one. Raises Lost."""
    chunks: list[TokenChunk] = []
    began = time.monotonic()
    async for chunk in policy.generate(request):
        began = began if chunks else time.monotonic()
        chunks.append(chunk)
    seconds, last = time.monotonic() - began, chunks[-1]
    if last.finish_reason == "abort":
        raise EngineLost(f"version {request.version} was broken off amid an answer")
    if last.version_spans is not None:
        spoke = {span.version for span in last.version_spans}
    else:
        spoke = {chunk.version if chunk.confirmed else UNKNOWN for chunk in chunks if chunk.token_ids}
    if spoke - {request.version}:
        raise EngineLost(f"an answer is not all version {request.version}'s: its engine was given another")
    return chunks, seconds


def _request(
    renderer: Renderer,
    prompt: tuple[int, ...],
    sampling: Sampling,
    version: PolicyRef,
    session: str | None = None,
) -> GenerateRequest:
    return GenerateRequest(
        inference_id=new_inference_id(new_session_id()),
        prompt_token_ids=prompt,
        sampling=sampling,
        stop_token_ids=renderer.stop_token_ids,
        version=version,
        cache_key=session,
        streamed=False,
        is_case=True,
    )


def _tokens(chunks: Sequence[TokenChunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


def _as_message(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
