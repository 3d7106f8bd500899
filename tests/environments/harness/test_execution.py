"""Calls of one answer: side by side where they only read, in their order where they do not."""

import asyncio
import itertools
import time
from pathlib import Path

import msgspec
import pytest
from api_harness import Service
from worked import calling, work

from environments.harness.execution import Group, execute
from environments.harness.harness import Budget
from environments.harness.model import Call
from environments.harness.tools.tool import Bench, Commands, HarnessTool, Result
from environments.sandboxes.sandbox import Sandbox


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """Takes nothing."""


def _executed(names: list[str]) -> tuple[Group, list[str]]:
    """Execute calls of tools that wait for 50 ms, and return the order in which they began and ended."""
    happened: list[str] = []

    def tool(name: str, reads_only: bool) -> HarnessTool:
        async def run(bench: Bench, asked: Nothing) -> Result:
            happened.append(f"{name} begins")
            await asyncio.sleep(0.05)
            happened.append(f"{name} ends")
            return Result(name)

        return HarnessTool(name, Nothing, run, reads_only=reads_only)

    tools = {name: tool(name, name.startswith("look")) for name in set(names)}
    calls = [Call(f"call_{place}", name, "{}") for place, name in enumerate(names)]
    sandbox: Sandbox = None  # type: ignore[assignment]
    return asyncio.run(execute(calls, tools, Bench(sandbox, "/workspace"))), happened


def test_calls_that_read_run_at_the_same_time_and_count_as_the_longest() -> None:
    group, happened = _executed(["look1", "look2", "look3", "look4"])
    assert [each.endswith("begins") for each in happened] == [True] * 4 + [False] * 4
    assert max(call.started_at for call in group.calls) < min(call.ended_at for call in group.calls)
    assert group.critical_path_seconds == max(call.seconds for call in group.calls)
    assert [call.call.name for call in group.calls] == ["look1", "look2", "look3", "look4"]


def test_a_change_waits_for_what_was_asked_before_it_and_the_rest_for_the_change() -> None:
    group, happened = _executed(["look1", "change1", "change2", "look2", "look3"])
    assert happened.index("look1 ends") < happened.index("change1 begins")
    assert happened.index("change1 ends") < happened.index("change2 begins")
    assert happened.index("change2 ends") < min(happened.index("look2 begins"), happened.index("look3 begins"))
    assert group.critical_path_seconds >= 0.2


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_a_step_of_the_clock_is_no_time_that_a_call_took(step: float, monkeypatch: pytest.MonkeyPatch) -> None:
    wall, looks = time.time, itertools.count()
    monkeypatch.setattr(time, "time", lambda: wall() + step * next(looks))
    begun_s = time.monotonic()
    group, _ = _executed(["look1", "change1"])
    passed_s = time.monotonic() - begun_s
    assert 0.09 < group.critical_path_seconds <= passed_s
    for call in group.calls:
        assert 0.045 < call.ended_at - call.started_at <= passed_s


def test_commands_of_one_answer_really_run_at_the_same_time(service: Service, repository: Path) -> None:
    service.policy.context_length = 60_000
    both = calling(("find", {"name": "*.py"}), ("grep", {"pattern": "add"}), ("read", {"path": "notes.txt"}))
    begun = time.time()
    done, _ = work(service, repository, [both, calling(("done", {}))], budget=Budget(context_tokens=60_000))
    records = [record for record in done.calls if record.group == 0]
    assert len(records) == 3
    assert max(record.started_at for record in records) < min(record.ended_at for record in records)
    assert begun <= records[0].started_at <= records[0].ended_at <= time.time()


def test_a_command_finds_what_those_before_it_in_the_answer_wrote(service: Service, repository: Path) -> None:
    service.policy.context_length = 60_000
    shows = Commands(test=("cat",))
    slow = ("terminal", {"command": "sleep 0.3; echo 1 >written"})
    changes = ("terminal", {"command": "sleep 0.3; rm written; echo 1 >again"})
    three = calling(slow, ("run_tests", {"paths": ["written"]}), changes, ("run_tests", {"paths": ["again"]}))
    done, _ = work(service, repository, [three, calling(("done", {}))], commands=shows, answer_tokens=1000)
    assert [record.succeeded for record in done.calls if record.group == 0] == [True] * 4


def test_what_is_no_text_is_shown_and_breaks_nothing() -> None:
    async def run(bench: Bench, asked: Nothing) -> Result:
        return Result(b"caf\xe9.py:1".decode(errors="surrogateescape"))

    tools = {"look": HarnessTool("look", Nothing, run, reads_only=True)}
    sandbox: Sandbox = None  # type: ignore[assignment]
    group = asyncio.run(execute([Call("call_0", "look", "{}")], tools, Bench(sandbox, "/workspace")))
    assert group.calls[0].text == "caf?.py:1"
    assert len(group.calls[0].digest) == 64
