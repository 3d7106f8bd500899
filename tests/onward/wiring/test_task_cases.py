"""Versions are judged by tasks that they solve with tools, in real sandboxes; the models alone are scripted."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from byte_renderer import CALL, END, ByteRenderer, call_ids, ids
from sandboxed import require_bubblewrap
from task_folders import base_of, small_base, write_task

from core.clock import SystemClock
from core.errors import EngineUnavailable
from core.events import GateVerdict
from core.ids import PolicyRef, base_ref
from core.ports import GenerateRequest, TokenChunk
from core.settings import EvalSettings
from onward.wiring.evals.building import build_task_cases
from serving.evals.cases import load_suite
from serving.releases.cases import CaseGate

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
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_bubblewrap()
    folder = tmp_path_factory.mktemp("images")
    folder.chmod(0o755)
    small_base(folder)
    return folder


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """Write a suite of three cases of one task: the fewest by which a version can be refused."""
    files = {"environment/add.py": ADD, "solution/solve.sh": SOLVED}
    dockerfile = "FROM base\nWORKDIR /app\nCOPY add.py ./\n"
    write_task(tmp_path / "suite" / "tasks" / "add", tests=JUDGES, dockerfile=dockerfile, files=files)
    (tmp_path / "suite" / "cases.toml").write_text("\n".join(map(CASE.format, range(3))))
    return tmp_path / "suite"


def judged(suite: Path, images: Path, versions: Versions, candidate: PolicyRef) -> GateVerdict:
    """Have the gate of a release controller judge a candidate beside the live version."""
    loaded = load_suite(suite)
    bases = {"*": str(base_of(images))}
    tasks = build_task_cases(loaded, images, bases, allowed=True, asked_by="release.evals.suite")
    assert tasks is not None
    settings = EvalSettings(suite=suite, margin=0.6, allow_commands=True, concurrency=2)
    gate = CaseGate(
        loaded,
        lambda: nullcontext(versions),  # type: ignore[arg-type]
        ByteRenderer(),
        settings,
        SystemClock(),
        tasks.opened,
    )
    view: Any = SimpleNamespace(live=LIVE, replicas=[SimpleNamespace(pinnable=(LIVE, candidate))])
    policy: Any = SimpleNamespace(version=candidate, verdict=None)

    async def verdict() -> GateVerdict:
        while (found := gate.verdict(view, policy)) is None:  # noqa: ASYNC110 - it asks in a thread of its own
            await asyncio.sleep(0.02)
        return found

    try:
        return asyncio.run(verdict())
    finally:
        gate.stop()


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


def test_the_live_version_passes_beside_itself(suite: Path, images: Path) -> None:
    verdict = judged(suite, images, Versions(), LIVE)
    assert verdict.action == "pass", verdict
    assert verdict.figures["cases_unscored"] == 0


def test_tests_that_judge_no_work_at_all_hold_the_version(suite: Path, images: Path) -> None:
    (suite / "cases.toml").write_text(CASE.format(0))
    (suite / "tasks" / "add" / "tests" / "test.sh").write_text("#!/bin/sh\necho nothing\n")
    verdict = judged(suite, images, Versions(), WORSE)
    assert verdict.action == "hold", verdict
    assert "candidate: add 0: verifier: the tests (exit code 0: nothing) wrote no reward" in verdict.why
