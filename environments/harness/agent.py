"""Our own harness: a loop that shows the model a task and its tools, and executes what it calls."""

import hashlib
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

import aiohttp

from environments.harness import prompts
from environments.harness.asker import SESSION, asker_headers
from environments.harness.context import Context
from environments.harness.execution import Executed, Group, execute
from environments.harness.harness import Budget, CallRecord, Ending, Endpoint, HarnessRun, UsedUp
from environments.harness.meter import Meter
from environments.harness.model import Answer, ContextFull, Conversation, Converse, Message, Model
from environments.harness.tools.offered import ToolSet, tools_of
from environments.harness.tools.tool import Bench, Commands
from environments.sandboxes.sandbox import Sandbox
from environments.tasks.task import Task

_SLACK_TOKENS: Final = 32


@dataclass(frozen=True)
class HarnessSettings:
    """How the harness works. What the model sees of it is part of the harness's version."""

    answer_tokens: int = 1024  # the most of one answer
    summary_tokens: int = 512
    output_characters: int = 8000  # of one call's result
    at_limit: Literal["summarise", "truncate", "stop"] = "summarise"  # of the context
    temperature: float = 1.0
    seed: int | None = None  # of what is sampled, where the service can repeat itself
    workload: str = "agent"
    tool_set: ToolSet = "usual"  # `lines`, for a small model, comes without words on how to work
    tools: tuple[str, ...] | None = None  # of the set; None: all
    must_call: bool = False  # each answer is one call, by the service's grammar: for a model that was taught no form
    commands: Commands = field(default_factory=Commands)
    most_malformed: int = 3  # answers in a row of which nothing can be executed
    patience_seconds: float = 60.0  # for a service that stays away


FOR_LINES: Final = HarnessSettings(72, tool_set="lines", at_limit="stop")
"""For a small model that was trained on the tools of a line editor, in a context of 512 tokens."""


class Agent:
    """The harness. One object serves any number of episodes at once."""

    name = "onward-agent"
    folders: Mapping[str, Path] = MappingProxyType({})

    def __init__(self, settings: HarnessSettings | None = None, converse: Converse | None = None) -> None:
        """Ask the model as `converse` does, else at the endpoint of each task. Raise ValueError for an unknown tool."""
        self.settings = settings = settings or HarnessSettings()
        self.tools = {tool.name: tool for tool in tools_of(settings.tools, settings.tool_set)}
        self.offered = [tool.as_offered(is_strict=settings.must_call) for tool in self.tools.values()]
        one_call: dict[str, Any] = {"tool_choice": "required", "parallel_tool_calls": False}
        drawn = {} if settings.seed is None else {"seed": settings.seed}
        self.fields: dict[str, Any] = {"temperature": settings.temperature, **drawn}
        self.choice = one_call if settings.must_call else {}
        self._converse = converse
        seen = (prompts.ALL, self.offered, settings.output_characters, settings.at_limit)
        self.version = f"1-{hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:8]}"

    async def work(self, task: Task, sandbox: Sandbox, endpoint: Endpoint, budget: Budget) -> HarnessRun:
        """Work on the task in one session (see `Harness`)."""
        headers = asker_headers(self, task, endpoint, self.settings.workload)
        async with self._conversation(endpoint, headers) as model:
            meter = Meter(budget)
            bench = Bench(sandbox, task.spec.workdir, self.settings.commands, lambda: meter.seconds_left)
            episode = _Episode(self, task, model, meter, bench)
            ending, used_up = await episode.run()
        return HarnessRun(
            ending=ending,
            used_up=used_up,
            session_id=headers[SESSION],
            inference_ids=tuple(answer.inference_id for answer in episode.answers),
            policy_versions=tuple(answer.policy_version for answer in episode.answers),
            calls=tuple(episode.calls),
            summaries=episode.summaries,
            prompt_tokens=meter.prompt_tokens,
            output_tokens=meter.output_tokens,
            critical_path_seconds=meter.critical_path_seconds,
        )

    @asynccontextmanager
    async def _conversation(self, endpoint: Endpoint, headers: dict[str, str]) -> AsyncIterator[Conversation]:
        if self._converse is not None:
            yield self._converse()
            return
        async with aiohttp.ClientSession() as http:
            yield Model(endpoint, http, headers, self.settings.patience_seconds)


class _Episode:
    """One task's work, as far as it has come."""

    def __init__(self, agent: Agent, task: Task, model: Conversation, meter: Meter, bench: Bench) -> None:
        self._agent, self._task, self._model, self._meter, self._bench = agent, task, model, meter, bench
        self._settings = agent.settings
        self._context = Context(self._opening(), agent.offered)
        self.answers: list[Answer] = []
        self.calls: list[CallRecord] = []
        self.summaries = 0
        self._malformed = 0

    async def run(self) -> tuple[Ending, UsedUp | None]:
        while True:
            if self._meter.used_up is not None:
                return "budget", self._meter.used_up
            try:
                if not await self._make_room():
                    return "context", None
                answer = await self._ask()
            except ContextFull:
                return "context", None
            if not answer.calls and answer.finish_reason != "length":
                return "done", None
            if await self._follow(answer):
                return "done", None
            if self._malformed >= self._settings.most_malformed:
                return "malformed", None

    async def _ask(self) -> Answer:
        most = max(1, min(self._settings.answer_tokens, self._meter.tokens_left))
        answer = await self._model.answer(
            self._context.messages,
            tools=self._agent.offered,
            max_tokens=most,
            **self._agent.fields,
            **self._agent.choice,
        )
        self._note(answer)
        self._context.answered(answer)
        return answer

    async def _follow(self, answer: Answer) -> bool:
        """Do what an answer asks for; True where it says that the work is done."""
        if not answer.calls:
            self._malformed += 1
            self._context.add({"role": "user", "content": prompts.CUT_OFF})
            return False
        group = await execute(answer.calls[: self._meter.calls_left], self._agent.tools, self._bench)
        self._record(answer, group)
        for executed in group.calls:
            self._context.add_result(executed, self._settings.output_characters)
        is_malformed = all(executed.is_malformed for executed in group.calls)
        self._malformed = self._malformed + 1 if is_malformed else 0
        return any(executed.ends for executed in group.calls)

    def _note(self, answer: Answer) -> None:
        self.answers.append(answer)
        self._meter.answered(answer)

    def _record(self, answer: Answer, group: Group) -> None:
        self._meter.executed(len(group.calls), group.critical_path_seconds)
        number = len(self.answers) - 1
        self.calls += [_record(answer, number, executed) for executed in group.calls]

    # ------------------------------------------------------------------------------------------------ the context

    @property
    def _summary_room(self) -> int:
        """Tokens that are kept free, so that the model can always be asked for a summary."""
        if self._settings.at_limit != "summarise":
            return 0
        return self._context.estimate(len(prompts.SUMMARISE)) + self._settings.summary_tokens + _SLACK_TOKENS

    def _fits(self) -> bool:
        needed = self._context.tokens + self._settings.answer_tokens + self._summary_room
        return needed <= self._meter.budget.context_tokens

    async def _make_room(self) -> bool:
        """See to it that the next answer has room, as the settings say; False where it has none."""
        if self._fits():
            return True
        if self._settings.at_limit == "stop":
            return False
        if self._settings.at_limit == "truncate":
            while not self._fits() and self._context.forget_oldest():
                self._meter.begins_anew()
            self._context.shorten_new(self._meter.budget.context_tokens - self._settings.answer_tokens)
            return self._fits()
        await self._summarise()
        return self._fits()

    async def _summarise(self) -> None:
        """Have the model write down what it needs, and begin again with that."""
        self._context.shorten_new(self._meter.budget.context_tokens - self._summary_room)
        asked: list[dict[str, Any]] = [*self._context.messages, {"role": "user", "content": prompts.SUMMARISE}]
        answer = await self._model.answer(
            asked,
            {"x-turn-type": "summary"},
            tools=self._agent.offered,
            tool_choice="none",
            max_tokens=self._settings.summary_tokens,
            **self._agent.fields,
        )
        self._note(answer)
        self.summaries += 1
        self._meter.begins_anew()
        self._context.begin_again(self._opening(answer.text))

    def _opening(self, summary: str | None = None) -> list[Message]:
        is_told_how = self._settings.tool_set == "usual"
        return prompts.opening(self._bench.workdir, self._task.instruction, summary, is_told_how=is_told_how)


def _record(answer: Answer, group: int, executed: Executed) -> CallRecord:
    return CallRecord(
        inference_id=answer.inference_id,
        call_id=executed.call.id,
        tool=executed.call.name,
        group=group,
        started_at=executed.started_at,
        ended_at=executed.ended_at,
        succeeded=executed.succeeded,
        output_digest=executed.digest,
        output_bytes=len(executed.text.encode()),
    )
