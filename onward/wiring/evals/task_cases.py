"""The tasks of eval suites: versions work on them with our harness, in sandboxes of this machine.

The release gate, and `onward propose`, talk to an engine in their own process; `onward evals run` asks an endpoint."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from core.errors import ConfigError
from core.events import Sampling
from environments.cases.prepared import check_task, prepared, require_sandboxes
from environments.cases.rules import Rules
from environments.cases.trial import NoTrial, Trial, Tried, try_once
from environments.errors import EnvironmentFault, InfrastructureFailure
from environments.harness.agent import FOR_LINES, HarnessSettings
from environments.harness.harness import Budget, Endpoint
from environments.harness.model import Answer, Call, ContextFull, Converse, Message
from environments.sandboxes.bubblewrap.adapter import Bubblewrap
from environments.sandboxes.pool import Pool
from environments.tasks.task import Task
from serving.evals.cases import CannotRun, Quality, Suite, TaskCase
from serving.evals.engine_answers import BeginTalk, NoRoom, Talk
from serving.evals.run import Solver, SolverOf, Worked

_OF_A_TRY: Final = 3  # sandboxes at once: the agent's, an untouched or a solved one, and the tests' own
_SIDES: Final = 2
_OF_THE_CLOCK: Final = 0.5  # the seconds of work that may be used: these have to be over before the task's own clock is
_NO_ENDPOINT: Final = Endpoint("")  # of a harness that is given its conversation


class TaskCases:
    """What a suite's tasks are worked on with. `kept` keeps images and what sandboxes share."""

    def __init__(self, suite: Suite, kept: Path, images: Mapping[str, str]) -> None:
        self._suite, self._kept, self._images = suite, kept.resolve(), images
        self._tasks: dict[str, Task] = {}
        self._failed: dict[str, str] = {}  # why tasks could not be had, since sandboxes were opened

    async def require(self) -> None:
        """Check the tasks, and that sandboxes open here. Raises ConfigError naming the case, or what is missing."""
        for name, folder in self._suite.tasks.items():
            try:
                check_task(folder)
            except EnvironmentFault as error:
                raise ConfigError(f"case {name!r}: task: {error}") from error
        try:
            await require_sandboxes(self._kept)
        except InfrastructureFailure as failure:
            named = ", ".join(map(repr, self._suite.tasks))
            raise ConfigError(f"the suite has tasks ({named}), and no sandbox opens here: {failure}") from failure

    @asynccontextmanager
    async def opened(self, at_once: int) -> AsyncIterator[SolverOf]:
        """Open what versions in reach of this process work with (an implementation of `OpenTasks`)."""
        async with self._sandboxes(at_once) as sandboxes:

            def solver_of(begin: BeginTalk, context_tokens: int) -> Solver:
                return self._solver(sandboxes, _NO_ENDPOINT, context_tokens, lambda: _Spoken(begin()))

            yield solver_of

    @asynccontextmanager
    async def at_endpoints(self, at_once: int) -> AsyncIterator[Callable[[Endpoint, Callable[[Tried], None]], Solver]]:
        """Open what versions at endpoints work with; `note` is told of each try."""
        async with self._sandboxes(at_once) as sandboxes:

            def solver_at(endpoint: Endpoint, note: Callable[[Tried], None]) -> Solver:
                return self._solver(sandboxes, endpoint, None, None, note)

            yield solver_at

    @asynccontextmanager
    async def _sandboxes(self, at_once: int) -> AsyncIterator[Pool]:
        self._preparing, self._failed = asyncio.Lock(), {}  # of this event loop
        tries = max(_SIDES, at_once)  # a candidate and a live version have one each, even of a single request
        sandboxes = Pool(Bubblewrap(self._kept / "sandboxes"), most_open=_OF_A_TRY * tries)
        try:
            yield sandboxes
        finally:
            await sandboxes.close()

    def _solver(
        self,
        sandboxes: Pool,
        endpoint: Endpoint,
        context_tokens: int | None,
        converse: Converse | None,
        note: Callable[[Tried], None] = lambda tried: None,
    ) -> Solver:
        async def solve(case: TaskCase) -> Worked:
            trial = _trial(case, await self._task(case), context_tokens)
            try:
                tried = await try_once(trial, endpoint, sandboxes, converse)
            except NoTrial as error:
                raise CannotRun(str(error)) from error
            note(tried)
            work = tried.work
            tokens = work.prompt_tokens + work.output_tokens
            seconds = work.critical_path_seconds
            return Worked(tried.reward, tried.flaws, work.ending, len(work.calls), tokens, seconds)

        return solve

    async def _task(self, case: TaskCase) -> Task:
        """Return a case's task, its image prepared: all of them with the first. Raises CannotRun."""
        if case.name not in self._tasks:
            async with self._preparing:
                await self._prepare()
        if (why := self._failed.get(case.name)) is not None:
            raise CannotRun(why)
        return self._tasks[case.name]

    async def _prepare(self) -> None:
        """Prepare what nobody has tried to prepare since sandboxes were opened."""
        known = self._tasks.keys() | self._failed.keys()
        missing = {name: folder for name, folder in self._suite.tasks.items() if name not in known}
        if not missing:
            return
        made = await prepared(list(missing.values()), self._kept, self._images)
        for name, task in zip(missing, made, strict=True):
            if isinstance(task, Task):
                self._tasks[name] = task
            else:
                self._failed[name] = task


class _Spoken:
    """A conversation of the harness's with a version in reach."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk

    async def answer(self, messages: Sequence[Message], headers: dict[str, str] | None = None, **fields: Any) -> Answer:
        """Ask for the next turn. Raises ContextFull; InfrastructureFailure where there is no answer."""
        drawn = {name: fields[name] for name in ("temperature", "max_tokens", "seed") if name in fields}
        may_call = fields.get("tool_choice") != "none"
        try:
            said = await self._talk.say(messages, fields["tools"], Sampling(**drawn), may_call=may_call)
        except NoRoom as error:
            raise ContextFull(str(error)) from error
        except CannotRun as error:
            raise InfrastructureFailure("service", str(error)) from error
        return Answer(
            inference_id="",  # no service logs it
            policy_version=str(self._talk.version),
            message=said.message,
            text=said.text,
            calls=tuple(Call(call.id, call.name, call.arguments) for call in said.calls),
            finish_reason=said.finish_reason,
            prompt_tokens=said.prompt_tokens,
            output_tokens=said.output_tokens,
            seconds=said.seconds,
        )


def _trial(case: TaskCase, task: Task, context_tokens: int | None) -> Trial:
    settings = replace(
        FOR_LINES if case.tool_set == "lines" else HarnessSettings(), temperature=case.temperature, seed=case.seed
    )
    if case.max_tokens is not None:
        settings = replace(settings, answer_tokens=case.max_tokens)
    given = case.budget
    context = given.context_tokens or context_tokens or Budget().context_tokens
    usual = min(Budget().critical_path_seconds, _OF_THE_CLOCK * task.agent_timeout_seconds)
    seconds = usual if given.seconds is None else given.seconds
    return Trial(task, settings, Budget(given.tokens, given.calls, seconds, context), _rules(case.quality))


def _rules(quality: Quality | None) -> Rules | None:
    return None if quality is None else Rules(quality.duplicates, quality.most_added_lines)
