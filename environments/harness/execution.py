"""The calls of one answer, executed: those that only read side by side, all others alone and in their order."""

import asyncio
import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from environments.harness.model import Call
from environments.harness.tools.tool import Bench, HarnessTool, Result, ToolRefused


@dataclass(frozen=True)
class Executed:
    """One call that was executed. `is_malformed`: it named no tool, or its arguments were not what the tool takes.

    `started_at` is in seconds since the Unix epoch. `seconds` is how long it took, by a clock that nobody sets: a step
    of the machine's clock (after it was suspended or moved, say) is no time that the model used."""

    call: Call
    text: str
    succeeded: bool
    is_malformed: bool
    ends: bool
    started_at: float
    seconds: float

    @property
    def ended_at(self) -> float:
        return self.started_at + self.seconds

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True)
class Group:
    """All calls of one answer, in the order in which they were asked for.

    `critical_path_seconds`: of calls that ran side by side, the longest counts alone."""

    calls: tuple[Executed, ...]
    critical_path_seconds: float


async def execute(calls: Sequence[Call], tools: Mapping[str, HarnessTool], bench: Bench) -> Group:
    """Execute the calls. Raises InfrastructureFailure where the sandbox fails."""
    done: list[Executed] = []
    seconds = 0.0
    for stretch in _stretches(calls, tools):
        ran = await _side_by_side(stretch, tools, bench)
        seconds += max(each.seconds for each in ran)
        done += ran
    return Group(tuple(done), seconds)


def _stretches(calls: Sequence[Call], tools: Mapping[str, HarnessTool]) -> Iterator[list[Call]]:
    """Yield the calls that run at once: neighbours that only read, or one that does not."""
    waiting: list[Call] = []
    for call in calls:
        if call.name not in tools or tools[call.name].reads_only:
            waiting.append(call)
            continue
        if waiting:
            yield waiting
        waiting = []
        yield [call]
    if waiting:
        yield waiting


async def _side_by_side(calls: Sequence[Call], tools: Mapping[str, HarnessTool], bench: Bench) -> list[Executed]:
    """Return what came of all calls. The first error ends the others, and is raised as it is."""
    tasks = [asyncio.create_task(_execute(call, tools, bench)) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _execute(call: Call, tools: Mapping[str, HarnessTool], bench: Bench) -> Executed:
    started_at, began = time.time(), time.monotonic()
    tool, is_malformed = tools.get(call.name), False
    try:
        if tool is None:
            is_malformed = True
            raise ToolRefused(f"there is no tool {call.name!r}; there are {', '.join(tools)}")
        is_malformed = True
        arguments = tool.arguments(call.arguments)
        is_malformed = False
        result = await tool.run(bench, arguments)
    except ToolRefused as refused:
        result = Result(str(refused), succeeded=False)
    ends = tool is not None and tool.ends and not is_malformed
    text = result.text.encode(errors="replace").decode()  # names of files may be no text at all
    return Executed(call, text, result.succeeded, is_malformed, ends, started_at, time.monotonic() - began)
