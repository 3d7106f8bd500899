"""The commands that pages show for a directory: docs/security.md, docs/operations.md and docs/evals.md."""

import json
import shutil
from contextlib import closing
from pathlib import Path

import pytest
from cyclopts import App
from kept_world import COUNT, append, past
from logged_world import MODEL, anchor_probe, make_reward
from shown_examples import COMMANDS, DEEP, commands, of_test

from core.events import Completion, Topic
from onward.cli import app
from onward.wiring.foundation import open_foundation
from serving.releases import ensure_anchor

CASES = """
[[case]]
name = "sum of a list"
prompt = "Write a Python function that sums a list."
checker = { kind = "contains", all = ["def "] }
"""


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[str | int | None, str]:
    """Run `onward ...`, or `onward ... > FILE`; return its exit code and what it printed."""
    program, *arguments = words
    assert program == "onward", words
    file = Path(arguments.pop()) if ">" in arguments else None
    try:
        app([each for each in arguments if each != ">"], result_action="return_value")
        code: str | int | None = 0
    except SystemExit as ended:
        code = ended.code
    said = capsys.readouterr().out
    if file is not None:
        file.write_text(said)
    return code, said


def unexplained(words: str, of: App) -> list[str]:
    """Return the options that `--help` lists without a word, of a command and of those below it."""
    arguments = () if of.default_command is None else of.assemble_argument_collection()
    found = [f"{words} {each.name}" for each in arguments if each.show and not (each.parameter.help or "").strip()]
    below = (name for name in of if not name.startswith("-"))
    return found + [each for name in below for each in unexplained(f"{words} {name}", of[name])]


def test_help_explains_every_option() -> None:
    assert "rollback" in list(app)
    assert unexplained("onward", app) == []


def test_what_pages_show_can_be_done_in_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A key is made, rotated and revoked, the trail says so, and all of it comes back from a backup."""
    monkeypatch.chdir(tmp_path)
    open_foundation(tmp_path / "DIR").close()
    told: list[str] = []
    keys, audit = of_test(COMMANDS, "docs/security.md")
    for words in commands([keys]):
        code, said = run([made_id(capsys) if word == "KEY_ID" else word for word in words], capsys)
        assert code == 0, words
        told.append(said)
    assert "acme-plugin" in told[1]
    assert "is revoked" in told[-1]
    for words in commands([audit]):
        code, said = run(words, capsys)
        assert code == 0, (words, said)
        assert ("the trail is whole" in said) == ("verify" in words)
    assert json.loads((tmp_path / "head.json").read_text())
    backup = of_test(COMMANDS, "docs/operations.md")
    kept = {"/backups/2026-11-26": tmp_path / "backups" / "2026-11-26"}
    assert [run(words, capsys)[0] for words in commands(backup, kept)] == [0, 0]
    assert run(["onward", "keys", "list", "NEW", "--json"], capsys)[1].count("acme-plugin") == 2


def made_id(capsys: pytest.CaptureFixture[str]) -> str:
    key = json.loads(run(["onward", "keys", "list", "DIR", "--json"], capsys)[1])[0]
    return str(key["key_id"])


@pytest.mark.deep
def test_what_pages_teach_can_be_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A replay, its comparison with another, what it proposes, and checkpoints of others beside it: docs/evals.md."""
    monkeypatch.chdir(tmp_path)
    events = past(COUNT)
    append(tmp_path / "DIR", events)
    turns = [event for event in events if isinstance(event, Completion)]
    with closing(open_foundation(tmp_path / "DIR")) as made:
        ensure_anchor(made.store, made.log, made.weights, made.blobs, made.model, "tiny", "local", anchor_probe)
        made.log.append_blocking(Topic.REWARDS, [make_reward(turn, n % 2) for n, turn in enumerate(turns)])
    (tmp_path / "SUITE").mkdir()
    (tmp_path / "SUITE" / "cases.toml").write_text(CASES)
    shutil.copytree(MODEL, tmp_path / "trained")
    shutil.copytree(MODEL, tmp_path / "checkpoint")
    learned, judged = of_test(DEEP, "docs/evals.md")
    replay, compare, propose = commands([learned])
    assert run(replay, capsys)[0] == 0
    shutil.copytree(tmp_path / "candidate", tmp_path / "other")
    assert run(compare, capsys)[0] == 0
    code, said = run(propose, capsys)
    assert (code, "hold" in said) == (1, True), said  # so few users and cases cannot tell
    places = {"12": 1, "other": "checkpoint", "2026-11-21T00:00:00Z": "2025-12-31T00:00:00Z"}
    alone, beside = commands([judged], places)
    code, said = run(alone, capsys)
    assert (code, f"judged by {COUNT} of {COUNT} turns" in said) == (1, True), said
    assert run(beside, capsys)[0] == 1
    assert len(json.loads((tmp_path / "ope.json").read_text())["paired"]) == 3
