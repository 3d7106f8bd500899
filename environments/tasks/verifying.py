"""Judges what an agent left behind, by the task's own tests, in the agent's sandbox or in one of their own.

Tests that crash, write nothing or do not end have failed the agent where its work made them do so, and else have failed
themselves. They are run again; who is to blame is then told by whether they judge the task's own solution, or untouched
work where there is none."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from environments.errors import OF_THIS_MACHINE, NothingTold, NoVerdict, TaskError, VerifierOutOfTime, no_verdict_where
from environments.sandboxes.sandbox import CommandResult, Sandbox, Sandboxes
from environments.tasks.adapters.scoring import score
from environments.tasks.artifacts import carry, names_in
from environments.tasks.opening import open_sandbox
from environments.tasks.rewards import NAMED, REWARD, TEXT, TOLD, from_named, from_text, reward_of
from environments.tasks.solving import solve
from environments.tasks.task import JudgedAnswer, Task

Reader = Callable[[bytes], dict[str, float]]

_OF_TESTS: tuple[tuple[str, Reader], ...] = ((NAMED, from_named), (TEXT, from_text))  # in Harbor's order
_TESTS = "/tests"
_TAIL_BYTES = 2_000
_MAKING_READY_SECONDS = 60.0
# A reward that was there before is none, and whatever else the agent made of these places is removed.
_MAKE_READY = """
set -e
rm -rf /tests /logs/verifier
if [ -L /logs ] || [ ! -d /logs ]; then rm -rf /logs; fi
mkdir -p /logs/verifier
"""


@dataclass(frozen=True)
class Verdict:
    """What the tests said. `rewards` holds all that they named, `output` the end of what they wrote to say so."""

    reward: float
    rewards: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    output: str = ""


async def verify(task: Task, sandbox: Sandbox, sandboxes: Sandboxes) -> Verdict:
    """Return the verdict on what lies in an agent's sandbox; the agent is done with it.

    Work that the tests twice give no verdict on is worth 0 where they can judge other work. Raises
    InfrastructureFailure where a sandbox fails; OSError where this machine is out of something; NoVerdict, or
    VerifierOutOfTime, where they judge no other either; NothingTold where the harness was to judge, and did not."""
    if task.answer is None and task.tests is None:
        return await _read(sandbox, ((TOLD, from_named),), NothingTold("the harness of its library wrote no reward"))
    try:
        return await _verdict(task, sandbox, sandboxes)
    except NoVerdict:
        pass  # once, it may be the machine's
    try:
        return await _verdict(task, sandbox, sandboxes)
    except NoVerdict as none:
        if await _can_judge(task, sandboxes):
            return Verdict(0.0, {REWARD: 0.0}, output=str(none))
        raise


async def _can_judge(task: Task, sandboxes: Sandboxes) -> bool:
    """Tell whether the tests give a verdict on the task's own solution, or on untouched work where there is none."""
    try:
        if task.answer is not None:
            await score(task.answer, None, sandboxes, task.verifier_timeout_seconds)
            return True
        async with await open_sandbox(task, sandboxes) as sandbox:
            if task.solution is not None:
                await solve(task, sandbox)
            await _verdict(task, sandbox, sandboxes)
    except (NoVerdict, TaskError):
        return False
    return True


async def _verdict(task: Task, sandbox: Sandbox, sandboxes: Sandboxes) -> Verdict:
    if task.answer is not None:
        return await _answered(task, task.answer, sandbox, sandboxes)
    for hook in task.hooks:
        # Whether it could do its work is seen by the tests, which get what it left.
        await _in_time(sandbox, ("/bin/sh", "-c", hook.command), hook.timeout_seconds, task.spec.workdir, {})
    await sandbox.end_commands()  # which could write a reward after the tests did
    if task.verifier_spec is None:
        return await _judged(task, sandbox, task.spec.workdir)
    async with await sandboxes.open(task.spec) as untouched:
        began = await names_in(task.artifacts, untouched)
    async with await sandboxes.open(task.verifier_spec) as own:
        await carry(began, sandbox, own)
        return await _judged(task, own, task.verifier_spec.workdir)


async def _judged(task: Task, sandbox: Sandbox, workdir: str) -> Verdict:
    assert task.tests is not None, "verify() has looked"
    ready = await _in_time(sandbox, ("/bin/sh", "-c", _MAKE_READY), _MAKING_READY_SECONDS, "/", {})
    if ready.exit_code != 0:
        raise NoVerdict(f"the sandbox could not be made ready: {_tail(ready)}")
    with no_verdict_where("the tests could not be put into the sandbox"):
        await sandbox.copy_in(task.tests, _TESTS)
    command = ("/bin/sh", "-c", f"chmod +x {_TESTS}/test.sh && exec {_TESTS}/test.sh")
    result = await _in_time(sandbox, command, task.verifier_timeout_seconds, workdir, task.verifier_environment)
    memory = ", out of memory" if result.out_of_memory else ""
    nothing = NoVerdict(f"the tests (exit code {result.exit_code}{memory}: {_tail(result)}) wrote no reward")
    return replace(await _read(sandbox, _OF_TESTS, nothing), seconds=result.seconds, output=_tail(result))


async def _answered(task: Task, answer: JudgedAnswer, sandbox: Sandbox, sandboxes: Sandboxes) -> Verdict:
    """Judge an answer in words; who left none, or nothing that is text, gets nothing."""
    try:
        given = (await sandbox.read(answer.file)).decode()
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno in OF_THIS_MACHINE:
            raise
        return Verdict(0.0, {REWARD: 0.0}, output=str(error))
    reward = await score(answer, given, sandboxes, task.verifier_timeout_seconds)
    return Verdict(reward, {REWARD: reward}, output=given[-_TAIL_BYTES:])


async def _read(sandbox: Sandbox, places: Sequence[tuple[str, Reader]], nothing: NoVerdict) -> Verdict:
    """Return the verdict in the first of the files that is there. Raises `nothing` where none is."""
    for path, read in places:
        with no_verdict_where(f"{path} cannot be read"):
            try:
                rewards = read(await sandbox.read(path))
            except FileNotFoundError:
                continue
            return Verdict(reward_of(rewards), rewards)
    raise nothing


async def _in_time(
    sandbox: Sandbox, command: tuple[str, ...], timeout_seconds: float, workdir: str, environment: Mapping[str, str]
) -> CommandResult:
    result = await sandbox.run(command, timeout_seconds=timeout_seconds, workdir=workdir, environment=environment)
    if result.timed_out:
        said = shlex.join(command)[-120:]
        raise VerifierOutOfTime(f"{said} took more than {timeout_seconds:g} s: {_tail(result)}")
    return result


def _tail(result: CommandResult) -> str:
    return (result.stdout + result.stderr)[-_TAIL_BYTES:].decode(errors="replace").strip()
