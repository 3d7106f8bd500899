"""Midtraining with a service's sessions mixed in gives the same from log and archive, and after a kill."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kept_world import COUNT, LATE, MIDDLE, append, archive, past
from logged_world import MODEL
from service_tree import wait_for

from core.errors import ConfigError
from core.events import Completion, Event
from learner.sequences.resemblance import KeptOut
from onward.commands.midtrain_command import midtrain
from onward.replays.session_corpus import SessionChoice, gather, suites_of
from simulator.tasks.corpus import write_corpus


@pytest.fixture(scope="module")
def events() -> list[Event]:
    return past(COUNT)


@pytest.fixture(scope="module")
def directories(events: list[Event], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return directories with the same past in the log and in the archive."""
    root = tmp_path_factory.mktemp("kept")
    for name in ("log", "archive"):
        append(root / name, events)
    archive(root / "archive")
    return {name: root / name for name in ("log", "archive")}


def gathered(directory: Path, out: Path, begin: str | None = None, end: str | None = None) -> Any:
    found = gather(SessionChoice(directory, begin, end, 0.5), MODEL, 256, out, {}, KeptOut(), again=False)
    return [json.loads(line) for line in found.file.read_text().splitlines()], found.figures["counts"]


@pytest.mark.parametrize("kept", ["log", "archive"])
def test_what_users_took_comes_back_in_its_exact_tokens(
    directories: dict[str, Path], events: list[Event], tmp_path: Path, kept: str
) -> None:
    documents, counts = gathered(directories[kept], tmp_path)
    taken = [turn for number, turn in enumerate(e for e in events if isinstance(e, Completion)) if number % 3]
    assert counts == {"turns": COUNT, "taken": len(taken), "below_min_reward": COUNT - len(taken)}
    wanted = {
        (*turn.prompt_token_ids, *turn.token_ids): [[len(turn.prompt_token_ids), len(turn.prompt_token_ids) + 12]]
        for turn in taken
    }
    assert {tuple(document["token_ids"]): document["spans"] for document in documents} == wanted
    assert gathered(directories["log"], tmp_path / "again") == (documents, counts), "in the same order"


def test_a_time_bounds_them(directories: dict[str, Path], tmp_path: Path) -> None:
    early, late = (
        gathered(directories["log"], tmp_path / name, *times)[1]
        for name, times in (("to", (None, MIDDLE)), ("from", (MIDDLE, None)))
    )
    assert (early["turns"], late["turns"]) == (COUNT // 2, COUNT // 2)


def test_suites_are_those_that_are_given_and_the_directorys_own(directories: dict[str, Path], tmp_path: Path) -> None:
    for name in ("own", "given"):
        (tmp_path / name).mkdir()
        case = (
            f'[[case]]\nname = "{name}"\nprompt = "?"\nsolution = "it"\nchecker = {{ kind = "exact", text = "it" }}\n'
        )
        (tmp_path / name / "cases.toml").write_text(case)
    own = {"ONWARD_RELEASE__EVALS__SUITE": str(tmp_path / "own")}
    found = suites_of([tmp_path / "given", tmp_path / "own" / ".." / "given"], directories["log"], own)
    assert [list(suite.solutions) for suite in found.suites] == [["given"], ["own"]], "each once"
    assert suites_of([]).suites == ()


def test_sessions_that_cannot_be_mixed_in_are_named(directories: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no turns to replay, or none from"):
        gathered(directories["log"], tmp_path, LATE)
    with pytest.raises(ConfigError, match="nowhere: no such directory"):
        gathered(tmp_path / "nowhere", tmp_path)
    with pytest.raises(ConfigError, match=r'no turn to mix in, of these: \{"below_min_reward": 24, "turns": 24\}'):
        gather(SessionChoice(directories["log"], None, None, 1.1), MODEL, 256, tmp_path, {}, KeptOut(), again=False)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"mix": 0.1}, "go together"),
        ({"sessions": Path("data")}, "go together"),
        ({"from_": LATE}, "--from, --to and --set are of --sessions"),
        ({"mix": 1.5, "sessions": Path("data")}, r"--mix 1\.5: want a share"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path: Path, options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        midtrain(tmp_path, tmp_path / "out", init=MODEL, **options)


def command(corpus: Path, out: Path, sessions: Path) -> list[str]:
    options = f"--init {MODEL} --steps 36 --rows 2 --save-every 2 --buffer-tokens 2000 --mix 0.4 --sessions {sessions}"
    return [sys.executable, "-m", "onward", "midtrain", str(corpus), str(out), *options.split(), "--resume"]


def finished(corpus: Path, out: Path, sessions: Path) -> Any:
    done = subprocess.run(command(corpus, out, sessions), capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    report = json.loads((out / "report.json").read_text())
    assert done.stdout.split()[-1] == report["weights_digest"]
    assert not [path.name for path in out.iterdir() if path.name.startswith(("midtrain", "sessions"))]
    return report


def test_killed_and_begun_again_it_ends_as_if_nothing_had_been(events: list[Event], tmp_path: Path) -> None:
    """The same command resumes from what is there; events logged meanwhile change nothing."""
    append(tmp_path / "data", events)
    write_corpus(tmp_path / "corpus", 40, seed=3)
    whole = finished(tmp_path / "corpus", tmp_path / "whole", tmp_path / "data")
    assert whole["sources"]["sessions"]["share"] == pytest.approx(0.4, abs=0.1)
    out = tmp_path / "parted"
    process = subprocess.Popen(
        command(tmp_path / "corpus", out, tmp_path / "data"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: (out / "midtrain.pt").exists() or process.poll() is not None, 240, "a checkpoint")
        assert process.poll() is None, "it ended before it was killed"
    finally:
        process.kill()
        process.wait()
    append(tmp_path / "data", past(COUNT))
    assert finished(tmp_path / "corpus", out, tmp_path / "data") == whole
