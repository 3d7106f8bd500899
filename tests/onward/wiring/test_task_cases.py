"""Versions are judged by tasks that they solve with tools, in real sandboxes."""

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from api_harness import wait_for
from byte_renderer import CALL, END, ByteRenderer, call_ids, ids
from logged_world import MODEL, anchor_probe
from safetensors.torch import load_file, save_file
from task_folders import base_of, images, write_task

from core.clock import SystemClock
from core.errors import EngineUnavailable
from core.events import GateVerdict
from core.ids import PolicyRef, base_ref
from core.ports import GenerateRequest, TokenChunk, WeightsRef
from core.settings import EvalSettings
from environments.cases.trial import Trial, Tried
from environments.harness.harness import HarnessRun
from environments.sandboxes.sandbox import SandboxSpec
from environments.tasks.task import Task
from onward.directory.private import UMASK
from onward.wiring.evals.building import build_task_cases
from onward.wiring.evals.task_cases import TaskCases
from onward.wiring.foundation import open_offline
from serving.engines.local import LocalEngine
from serving.evals.cases import CannotRun, TaskCase, load_suite
from serving.evals.engine_answers import Talk
from serving.releases import ensure_anchor
from serving.releases.cases import CaseGate
from serving.rendering import load_renderer

__all__ = ["images"]  # a fixture

LIVE, WORSE = base_ref(1), base_ref(2)
ADD = "def add(one, other):\n    return one - other\n"
JUDGES = """\
#!/bin/sh
if grep -q "return one + other" add.py; then echo 1; else echo 0; fi >/logs/verifier/reward.txt
"""
SOLVED = "#!/bin/sh\nprintf 'def add(one, other):\\n    return one + other\\n' >add.py\n"
CASE = '[[case]]\nname = "add {}"\ntask = "tasks/add"\ntool_set = "lines"\nmax_tokens = 200\n'
WORK = [
    ("read_file", {"path": "add.py"}),
    ("edit_file", {"line": 2, "text": "    return one + other"}),
    ("done", {}),
]


class Versions:
    """An engine with two versions: the live one repairs the file, the worse one talks of it.

    Once, a second answer of the live one is broken off."""

    context_length = 10_000

    def __init__(self) -> None:
        self.requests: list[GenerateRequest] = []
        self.breaks_off = 1

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        version = request.version
        assert request.is_case
        assert version is not None
        await asyncio.sleep(0)
        self.requests.append(request)
        done = request.prompt_token_ids.count(CALL)
        if version == LIVE and done == 1 and self.breaks_off:
            self.breaks_off -= 1
            raise EngineUnavailable("it was broken off")
        said = call_ids(*WORK[done]) if version == LIVE else ids("I would change the second line.")
        tokens = (*said, END)
        yield TokenChunk(token_ids=tokens, logprobs=(-1.0,) * len(tokens), version=version, finish_reason="stop")

    def prompts(self, version: PolicyRef) -> list[tuple[int, ...]]:
        return [request.prompt_token_ids for request in self.requests if request.version == version]


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """Write a suite of three cases of one task: the fewest by which a version can be refused."""
    files = {"environment/add.py": ADD, "solution/solve.sh": SOLVED}
    dockerfile = "FROM base\nWORKDIR /app\nCOPY add.py ./\n"
    write_task(tmp_path / "suite" / "tasks" / "add", tests=JUDGES, dockerfile=dockerfile, files=files)
    (tmp_path / "suite" / "cases.toml").write_text("\n".join(map(CASE.format, range(3))))
    return tmp_path / "suite"


def judged(suite: Path, images: Path, engine: Any, candidate: PolicyRef, renderer: Any = None) -> GateVerdict:
    """Have the gate of a release controller judge a candidate beside the live version.

    The service's files are private, and what its sandboxes stand on is made anew."""
    view: Any = SimpleNamespace(live=LIVE, replicas=[SimpleNamespace(pinnable=(LIVE, candidate))])
    policy: Any = SimpleNamespace(version=candidate, verdict=None)
    before = os.umask(UMASK)
    try:
        loaded, bases = load_suite(suite), {"*": str(base_of(images))}
        tasks = build_task_cases(loaded, suite.parent / "kept", bases, allowed=True, asked_by="release.evals.suite")
        assert tasks is not None
        settings = EvalSettings(suite=suite, margin=0.6, allow_commands=True, concurrency=2)
        shown = renderer or ByteRenderer()
        gate = CaseGate(loaded, lambda: nullcontext(engine), shown, settings, SystemClock(), tasks.opened)
        try:
            verdict: GateVerdict = wait_for(lambda: gate.verdict(view, policy), "the verdict")
        finally:
            gate.stop()
    finally:
        os.umask(before)
    return verdict


def test_a_version_that_calls_no_tools_any_more_is_refused(suite: Path, images: Path) -> None:
    versions = Versions()
    verdict = judged(suite, images, versions, WORSE)
    assert verdict.action == "refuse", verdict
    assert (verdict.figures["cases_live"], verdict.figures["cases_candidate"]) == (1.0, 0.0)
    assert "add 0 (its tests give 0, less than 1 (the work ended: done))" in verdict.why
    by_calls = [[prompt for prompt in versions.prompts(LIVE) if prompt.count(CALL) == calls] for calls in range(3)]
    assert list(map(len, by_calls)) == [3, 4, 3], "what was broken off is asked again, and none of it begins anew"
    sampled = (*by_calls[0][0], *call_ids(*WORK[0]), END)
    assert all(prompt[: len(sampled)] == sampled for prompt in by_calls[1])


def test_tests_that_judge_no_work_at_all_hold_the_version(suite: Path, images: Path) -> None:
    (suite / "cases.toml").write_text(CASE.format(0))
    (suite / "tasks" / "add" / "tests" / "test.sh").write_text("#!/bin/sh\necho nothing\n")
    verdict = judged(suite, images, Versions(), WORSE)
    assert verdict.action == "hold", verdict
    assert "candidate: add 0: verifier: the tests (exit code 0: nothing) wrote no reward" in verdict.why


def test_what_cannot_be_had_is_tried_once_and_keeps_nobody_waiting(
    suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those that can be had, the work is judged before the task's own clock ends it."""
    made = Task("add", "", "", SandboxSpec(), agent_timeout_seconds=600.0, verifier_timeout_seconds=600.0)
    trials: list[Trial] = []
    asked: list[int] = []
    is_slow, prepares = asyncio.Event(), asyncio.Event()

    async def prepared(folders: Sequence[Path], kept: Path, images: Mapping[str, str]) -> list[Task | str]:
        asked.append(len(folders))
        if is_slow.is_set():
            prepares.set()
            await asyncio.Event().wait()
        return [made, *["image: it is not here"] * (len(folders) - 1)]

    async def try_once(trial: Trial, *others: object) -> Tried:
        trials.append(trial)
        return Tried(1.0, (), HarnessRun("done", None, (), ()))

    monkeypatch.setattr("onward.wiring.evals.task_cases.prepared", prepared)
    monkeypatch.setattr("onward.wiring.evals.task_cases.try_once", try_once)
    loaded = load_suite(suite)
    cases = [case for case in loaded.cases if isinstance(case, TaskCase)]
    tasks = TaskCases(loaded, tmp_path / "kept", {})

    async def twice(count: int) -> None:
        async with tasks.opened(1) as solver_of:
            solve = solver_of(_never, 10_000)
            for _ in range(count):
                assert (await solve(cases[0])).reward == 1.0
                for case in cases[1:]:
                    with pytest.raises(CannotRun, match="it is not here"):
                        await solve(case)

    asyncio.run(twice(2))
    assert asked == [3]
    assert {trial.budget.critical_path_seconds for trial in trials} == {300.0}

    async def later() -> None:
        is_slow.set()
        async with tasks.opened(1) as solver_of:
            solve = solver_of(_never, 10_000)
            waiting = asyncio.create_task(solve(cases[1]))
            await prepares.wait()
            assert (await solve(cases[0])).reward == 1.0, "it waits for none that cannot be had"
            waiting.cancel()

    asyncio.run(later())
    assert asked == [3, 2], "what failed is tried anew for the next version"


def _never() -> Talk:
    raise AssertionError("nobody talks here")


FIXES = (
    (
        "infra",
        "is_in_cart",
        "rows, num",
        "[1, 5], 5",
        "x == num",
        "            return True\n    return True",
        "    return False",
    ),
    (
        "infra",
        "any_neg_week",
        "nums",
        "[1, -5]",
        "x < 0",
        "            return True\n    return True",
        "    return False",
    ),
    (
        "games",
        "has_week",
        "rows, num",
        "[1, 5], 5",
        "x == num",
        "            return False\n    return False",
        "            return True",
    ),
)
"""Bugs that the shipped model repairs: repository, function, arguments, example, test, what is wrong, what is right."""
CALL_MARK, A_WORD, READ_FILE, DONE = 7, 272, 414, 398
"""Tokens of the shipped model: calls begin with the first; the last two are whole names of tools."""


@pytest.fixture
def fixes(tmp_path: Path) -> Path:
    cases = []
    for repository, name, arguments, example, test, bug, line in FIXES:
        loop = arguments.split(",")[0]
        files = {
            "instruction.md": f"[{repository}] fix {name}.py: {name}({arguments}) of {example} should be True",
            f"environment/{name}.py": f"def {name}({arguments}):\n    for x in {loop}:\n        if {test}:\n{bug}\n",
        }
        judges = JUDGES.replace("-q", "-qx").replace("return one + other", line).replace("add.py", f"{name}.py")
        dockerfile = f"FROM base\nWORKDIR /app\nCOPY {name}.py ./\n"
        write_task(tmp_path / "fixes" / name, tests=judges, dockerfile=dockerfile, files=files)
        cases.append(f'[[case]]\nname = "{name}"\ntask = "{name}"\ntool_set = "lines"\n')
    (tmp_path / "fixes" / "cases.toml").write_text("\n".join(cases))
    return tmp_path / "fixes"


@pytest.mark.parametrize(
    ("swapped", "action"),
    [
        pytest.param((CALL_MARK, A_WORD), "refuse", marks=pytest.mark.deep),
        ((READ_FILE, DONE), "refuse"),
        ((A_WORD, A_WORD), "pass"),
    ],
    ids=["calls nothing", "calls the wrong tool", "the same"],
)
def test_weights_that_work_no_more_are_refused(
    tmp_path: Path, fixes: Path, images: Path, swapped: tuple[int, int], action: str
) -> None:
    """The candidate is the shipped model, in which two tokens changed places."""
    weights = load_file(MODEL / "model.safetensors")
    embedding = weights["model.embed_tokens.weight"]
    embedding[list(swapped)] = embedding[list(reversed(swapped))]
    save_file(weights, tmp_path / "worse.safetensors")
    with closing(open_offline(tmp_path / "service")) as target:
        live = ensure_anchor(
            target.store, target.log, target.weights, target.blobs, MODEL, "tiny", "local", anchor_probe
        )
        ref = target.weights.publish(WORSE, [tmp_path / "worse.safetensors"], live.version)
        engine = LocalEngine(target.settings.serving, MODEL, target.weights, live)
        engine.load(WeightsRef(version=WORSE, digest=ref.digest, path=ref.path, parent=live.version))
        engine.start()
        try:
            verdict = judged(fixes, images, engine, WORSE, load_renderer(MODEL))
        finally:
            engine.close()
    assert verdict.action == action, verdict
    assert (verdict.figures["cases_live"], verdict.figures["cases_unscored"]) == (1.0, 0)
