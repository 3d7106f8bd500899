"""Agentic cases: real sandboxes, the real harness and API; the versions alone are scripted.

Three versions work on the same tasks: one calls the helper that there is, one writes it again, one does nothing."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import psutil
import pytest
from api_harness import MODEL, serve, wait_for
from byte_renderer import END, ByteRenderer, call_ids, ids
from kept_images import IMAGES
from sandboxed import require_bubblewrap

import onward
from core.errors import ConfigError
from core.events import Sampling
from core.ids import PolicyName, PolicyRef, base_ref
from core.ports import GenerateRequest, TokenChunk
from core.reward_spec import load_reward_spec
from environments.harness.harness import Budget
from onward.replays.evals import run
from onward.trials.attempts import Attempts, Workplace
from onward.trials.version_service import serve_version
from serving.evals.cases import Case, load_suite
from serving.evals.gate import Bounds, GateDecision, evaluate
from serving.evals.run import Limits
from serving.evals.task_cases import TaskCase

SPEC = load_reward_spec(Path(onward.__file__).parent / "rewards.toml")
TASKS = 4
HELPER = """
def slug(title, limit=40):
    words = [word.lower() for word in title.split() if word.isalnum()]
    joined = "-".join(words)
    if len(joined) > limit:
        joined = joined[:limit].rstrip("-")
    return joined
"""
CALLS = "from text import slug\n\ndef path_of(page):\n    return 'pages/' + slug(page) + '.html'\n"
REPEATS = (
    HELPER.replace("slug", "_file").replace("words", "parts").replace("joined", "name").replace("title", "page")
    + "\ndef path_of(page):\n    return 'pages/' + _file(page) + '.html'\n"
)
TESTS = """#!/bin/sh
cd /app
if python3 -c "from pages import path_of; assert path_of('Hello World {number}') == 'pages/hello-world-{number}.html'"
then echo 1; else echo 0; fi >/logs/verifier/reward.txt
"""
CALLER, REPEATER, IDLER = base_ref(1), base_ref(2), base_ref(3)
WRITES = {CALLER: CALLS, REPEATER: REPEATS}


class Workers:
    """A policy whose versions differ in what they write into `pages.py`; having written, each says that it is done."""

    context_length = 100_000
    live_version = CALLER

    def live_of(self, policy: PolicyName) -> PolicyRef:
        return self.live_version

    def __init__(self) -> None:
        self.asked: list[PolicyRef] = []
        self.labelled: dict[PolicyRef, PolicyRef] = {}  # what answers instead
        self.answers = asyncio.Event()
        self.answers.set()

    def untrainable(self, sampling: Sampling) -> tuple[str, ...]:
        return ()

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        version = request.version or self.live_version  # who asks an endpoint gets what is live
        assert request.is_case == (request.version is not None)
        self.asked.append(version)
        await self.answers.wait()
        prompt = bytes(token for token in request.prompt_token_ids if token < 256)
        text = WRITES.get(version)
        if text is None or b"lines were written" in prompt:
            tokens = (*ids("It is done."), END)
        else:
            tokens = (*call_ids("write", {"path": "pages.py", "content": text}), END)
        yield TokenChunk(
            token_ids=tokens,
            logprobs=(-0.1,) * len(tokens),
            version=self.labelled.get(version, version),
            finish_reason="stop",
        )


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_bubblewrap()
    suite = tmp_path_factory.mktemp("suite")
    for number in range(TASKS):
        folder = suite / f"task-{number}"
        files = {
            "task.toml": 'schema_version = "1.0"\n[verifier]\ntimeout_sec = 30.0\n[agent]\ntimeout_sec = 60.0\n',
            "instruction.md": f"Write path_of(page) in pages.py, for page {number}.",
            "environment/Dockerfile": "FROM python:3.11-slim\nWORKDIR /app\nCOPY text.py /app/text.py\n",
            "environment/text.py": HELPER,
            "tests/test.sh": TESTS.format(number=number),
        }
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)
    return suite


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    folder = tmp_path_factory.mktemp("work")
    IMAGES.mkdir(parents=True, exist_ok=True)
    (folder / "images").symlink_to(IMAGES)
    return Workplace(folder, {"python:*": "machine"}, Budget(context_tokens=60_000))


async def says_nothing(case: Case) -> str:
    return ""


def judged(suite: Path, workplace: Workplace, workers: Workers, candidate: PolicyRef, live: PolicyRef) -> GateDecision:
    """Judge a version beside what is live, as the gate of releases does."""
    loaded = load_suite(suite)
    serve = partial(serve_version, renderer=ByteRenderer(), spec=SPEC, model="tiny")
    attempts = Attempts(loaded, workplace, serve)

    async def ask() -> GateDecision:
        async with attempts.opened(workers, candidate) as one, attempts.opened(workers, live) as other:
            return await evaluate(loaded, says_nothing, says_nothing, Limits(), Bounds(), (one, other))

    return asyncio.run(ask())


@pytest.mark.parametrize(("planted", "worth"), [(IDLER, 0.0), (REPEATER, 0.5)])
def test_a_worse_version_is_refused_by_its_work(
    suite: Path, workplace: Workplace, planted: PolicyRef, worth: float
) -> None:
    """The one that writes the helper again passes all tests, and still loses."""
    workers = Workers()
    found = judged(suite, workplace, workers, planted, CALLER)
    assert found.action == "refuse", found
    assert (found.figures["live"], found.figures["candidate"]) == (1.0, worth)
    assert set(workers.asked) == {planted, CALLER}
    assert sorted(found.lost) == [f"task-{number}" for number in range(TASKS)]


def test_a_version_that_works_as_well_is_not_refused(suite: Path, workplace: Workplace) -> None:
    found = judged(suite, workplace, Workers(), CALLER, CALLER)
    assert (found.action, found.figures["candidate"], found.lost) == ("hold", 1.0, []), found
    assert "too few" in found.why or "would in" in found.why


def test_asking_that_is_given_up_leaves_nothing_running(suite: Path, workplace: Workplace) -> None:
    """The controller stops in the middle, as it does for an order: neither sandboxes nor servers outlive it."""
    workers = Workers()
    workers.answers.clear()  # nobody answers
    loaded = load_suite(suite)
    serve = partial(serve_version, renderer=ByteRenderer(), spec=SPEC, model="tiny")
    attempts = Attempts(loaded, workplace, serve)

    async def ask() -> None:
        async with attempts.opened(workers, CALLER) as attempt:
            await attempt(next(case for case in loaded.cases if isinstance(case, TaskCase)))

    async def give_up() -> set[int]:
        before = running_programs()
        asking = asyncio.create_task(ask())
        while not workers.asked:  # noqa: ASYNC110 - the sandbox is open, and the agent asks
            await asyncio.sleep(0.01)
        assert running_programs() - before
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        return running_programs() - before

    assert asyncio.run(give_up()) == set()


def running_programs() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def test_answers_of_another_version_count_for_none(suite: Path, workplace: Workplace) -> None:
    workers = Workers()
    workers.labelled[IDLER] = CALLER
    found = judged(suite, workplace, workers, IDLER, CALLER)
    assert found.action == "hold"
    assert "not by the version's doing" in found.why
    assert "others answered" in found.why


def test_a_task_that_cannot_be_honoured_is_named_before_anything_is_asked(
    suite: Path, workplace: Workplace, tmp_path: Path
) -> None:
    broken = tmp_path / "suite"
    shutil.copytree(suite, broken)
    (broken / "task-1" / "task.toml").write_text("[agent]\ntimeout = 3\n")
    with pytest.raises(ConfigError, match=r"task-1.*timeout is unknown"):
        Attempts(load_suite(broken), workplace, partial(serve_version, renderer=ByteRenderer(), spec=SPEC, model="t"))


def test_agents_work_for_endpoints_and_nothing_is_learned_from_their_turns(
    suite: Path, workplace: Workplace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve(tmp_path, policy=Workers()) as service:
        target = f"{service.url}/v1", MODEL
        assert run(suite, target, None, (60.0, 4, False), 0.05, None, as_json=True, workplace=workplace)
        assert json.loads(capsys.readouterr().out)["right"] == 1.0
        turns = wait_for(lambda: service.all_turns() if len(service.all_turns()) == 2 * TASKS else [], "all turns")
        assert {(turn.learn, turn.purpose, turn.environment) for turn in turns} == {(False, "side", "simulated")}
        assert not run(suite, target, None, (60.0, 4, False), 0.05, None, as_json=True)
        assert json.loads(capsys.readouterr().out)["right"] is None
