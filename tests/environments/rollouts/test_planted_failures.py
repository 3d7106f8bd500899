"""Two hundred episodes, each with a failure planted in its first attempt: none is a reward of 0, and all are named."""

import asyncio
import contextvars
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import IO, Any, Final

import pytest
from rollouts_world import QUICK, Watched, plan_of, told_service
from task_folders import images, prepared, write_task

from environments.harness import model
from environments.harness.agent import Agent, HarnessSettings
from environments.harness.harness import Budget, Endpoint, HarnessRun
from environments.rollouts.attempt import Means, try_episode
from environments.rollouts.episode import Episode, EpisodeResult
from environments.rollouts.journal import RolloutJournal
from environments.rollouts.plan import TaskSet
from environments.rollouts.reporting.page import Page
from environments.rollouts.reports import FAILED, OUT_OF_TIME, REWARD
from environments.rollouts.run import run_rollouts
from environments.rollouts.scheduler import Place
from environments.sandboxes.bubblewrap import opened
from environments.sandboxes.bubblewrap.adapter import Bubblewrap
from environments.sandboxes.bubblewrap.opened import BubblewrapSandbox
from environments.sandboxes.sandbox import Sandbox, SandboxSpec
from environments.tasks.task import Task
from environments.tasks.verifying import verify

pytestmark = [pytest.mark.deep, pytest.mark.timeout(1200)]
__all__ = ["images"]  # a fixture

KINDS: Final = {
    "killed as it opens": "sandbox",
    "killed at work": "sandbox",
    "killed after the work": "sandbox",
    "killed in the tests": "sandbox",
    "disk full at work": "disk",
    "disk full under the tests": "disk",
    "never opens": "sandbox",
    "a service that says nothing": "service",
}
"""What is planted, and the part that it is a failure of."""
EACH: Final = 25
TIMES_FULL: Final = 2  # as often as tests are run before others' work is shown to them; then the disk has room again
# They wait where there is `hold`, and want an `answer` of 1.
TESTS = """#!/bin/sh
touch began
while test -e hold; do sleep 0.01; done
test "$(cat answer)" = 1 && echo 1 >/logs/verifier/reward.txt || echo 0 >/logs/verifier/reward.txt
"""


@dataclass
class Planted:
    """What is planted in the attempt under way, and how often the disk was full."""

    kind: str = ""
    full: int = 0


planted = contextvars.ContextVar[Planted]("planted")


class Breaking(Bubblewrap):
    async def open(self, spec: SandboxSpec) -> BubblewrapSandbox:
        if planted.get().kind == "never opens":
            await asyncio.Event().wait()
        return await super().open(spec)

    def _start(self, *given: Any) -> "subprocess.Popen[bytes]":
        process = super()._start(*given)
        if planted.get().kind == "killed as it opens":
            process.kill()
        return process


def temporary_file() -> IO[bytes]:
    """Return a file of this machine's disk, which has no room left where that is planted."""
    now = planted.get()
    if now.kind != "disk full under the tests" or now.full >= TIMES_FULL:
        return tempfile.TemporaryFile()
    now.full += 1
    return Path("/dev/full").open("w+b")


class Right:
    """Does what the task wants, after which it can be only the machine's fault."""

    name, version = "scripted", "1"
    folders: Mapping[str, Path] = MappingProxyType({})

    async def work(self, task: Task, sandbox: Sandbox, endpoint: Endpoint, budget: Budget) -> HarnessRun:
        done = await sandbox.run(("/bin/sh", "-c", "echo 1 >answer"), timeout_seconds=120)
        assert done.exit_code == 0, done
        match planted.get().kind:
            case "killed at work":
                await killed_at_work(sandbox)
            case "killed after the work":
                kill(sandbox)
            case "killed in the tests":
                await sandbox.write("hold", b"")
            case "disk full at work":
                write_a_log()
            case "a service that says nothing":
                return await Agent(HarnessSettings(patience_seconds=0.1)).work(task, sandbox, endpoint, budget)
        return HarnessRun("done", endpoint.headers["x-session-id"], (), ())


def write_a_log() -> None:
    Path("/dev/full").write_bytes(b"of the harness")


def kill(sandbox: Sandbox) -> None:
    assert isinstance(sandbox, BubblewrapSandbox)
    sandbox._process.kill()


async def killed_at_work(sandbox: Sandbox) -> None:
    command = asyncio.create_task(sandbox.run(("/bin/sh", "-c", "touch begun; sleep 1000"), timeout_seconds=900))
    await sandbox.run(("/bin/sh", "-c", "until test -e begun; do sleep 0.01; done"), timeout_seconds=120)
    kill(sandbox)
    await command


async def killed_in_the_tests(sandbox: Sandbox) -> None:
    """Kill it once the tests have begun; before they do, all commands are ended, this one's too."""
    waits = ("/bin/sh", "-c", "until test -e began; do sleep 0.01; done")
    while (await sandbox.run(waits, timeout_seconds=120)).exit_code:
        pass
    kill(sandbox)


def test_two_hundred_failures_are_named_and_none_is_a_reward_of_zero(
    tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted.set(Planted())
    monkeypatch.setattr(opened, "tempfile", SimpleNamespace(TemporaryFile=temporary_file))
    monkeypatch.setattr(model, "_SILENT_SECONDS", 0.2)
    folder = write_task(tmp_path / "task", "[environment]\nmemory_mb = 128\nstorage_mb = 16\n", tests=TESTS)
    journal = RolloutJournal(tmp_path / "journal.db")

    async def test() -> list[dict[str, Any]]:
        own = await prepared(folder, images)
        tasks = TaskSet("own", tuple(replace(own, name=kind) for kind in KINDS))
        sandboxes = Breaking(images / "sandboxes")

        async def judge(task: Task, sandbox: Sandbox) -> float:
            if planted.get().kind != "killed in the tests":
                return (await verify(task, sandbox, sandboxes)).reward
            killing = asyncio.create_task(killed_in_the_tests(sandbox))
            try:
                return (await verify(task, sandbox, sandboxes)).reward
            finally:
                await asyncio.gather(killing, return_exceptions=True)

        async with told_service() as (told, url):
            patience = replace(QUICK, open_seconds=15, attempts=8)
            plan = plan_of(tasks, url=url, tries=EACH, parallel=8, patience=patience)
            means = Means(sandboxes, Right(), judge)

            async def execute(episode: Episode, task: Task) -> EpisodeResult:
                planted.set(Planted(task.name if episode.attempt == 1 else ""))
                return await try_episode(episode, task, plan, means)

            page = tmp_path / "report.html"
            await run_rollouts(
                plan,
                journal,
                Place(execute),
                Watched(),
                Page(page, {"command": "test", "commit": None}),
                asyncio.Event(),
            )
            await sandboxes.close()
        return list(told.feedback.values())

    told = asyncio.run(test())
    results = list(journal.attempts(10_000))
    journal.close()
    check_attempts(results)
    check_told(told)
    check_page(tmp_path / "report.html", results)


def check_attempts(results: list[EpisodeResult]) -> None:
    first = [each for each in results if each.episode.attempt == 1]
    parts = Counter((each.episode.task, each.part) for each in first)
    assert parts == Counter(dict.fromkeys(KINDS.items(), EACH)), [each.why for each in first]
    assert {(each.verdict, each.reward) for each in first} == {("infrastructure", None)}
    assert all(each.why for each in first)
    judged = [each for each in results if each.reward is not None]
    assert Counter(each.episode.task for each in judged) == Counter(dict.fromkeys(KINDS, EACH))
    assert {each.reward for each in judged} == {1.0}


def check_told(told: list[dict[str, Any]]) -> None:
    """See that the service was told of each once: a failure with its part and why, and another session's reward."""
    rewards = [each for each in told if each["metric_name"] == REWARD]
    failures = [each for each in told if each["metric_name"] == FAILED]
    assert [each["value"] for each in rewards] == [1.0] * EACH * len(KINDS)
    assert not [each for each in told if each["metric_name"] == OUT_OF_TIME]
    first = [each["tags"] for each in failures if each["tags"]["attempt"] == "1"]
    assert Counter((each["task"], each["part"]) for each in first) == Counter(dict.fromkeys(KINDS.items(), EACH))
    assert all(each["why"] for each in first)
    assert not {each["session_id"] for each in rewards} & {each["session_id"] for each in failures}


def check_page(page: Path, results: list[EpisodeResult]) -> None:
    failures = Counter(str(each.part) for each in results if each.part is not None)
    named = ", ".join(f"{count} {part}" for part, count in sorted(failures.items()))
    assert f"<dd>{failures.total()} ({named})</dd>" in page.read_text()
    assert "<dt>passed</dt><dd>100%</dd>" in page.read_text()
