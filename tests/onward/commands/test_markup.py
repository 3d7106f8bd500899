"""What users and operators wrote is shown as it is, also where it looks like markup; and to whoever still reads."""

import ast
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cyclopts import App

from core.errors import ConfigError
from onward import cli, output
from onward.commands import client, doctor, rewards
from onward.commands.eval_commands import review_suite
from onward.commands.operators import alarms
from serving.evals.cases import CaseMessage, Draft, Origin, Reuse
from serving.evals.drafts.written import put_draft

WORDS = "[/b]x[red]"
ORIGIN = Origin(
    session="s", turn="t", versions=(), received_at=datetime.now(UTC), reward=1.0, reward_spec="r", edited=False
)


def draft_of(asked: str) -> Draft:
    said = (CaseMessage(role="user", content=asked),)
    return Draft(name="mined-1", messages=said, solution="x", source=ORIGIN, reuse=Reuse(namespace="acme"))


def answers(monkeypatch: pytest.MonkeyPatch, module: Any, answer: dict[str, Any]) -> None:
    monkeypatch.setattr(module, "call", lambda *_: answer)


def test_an_alarms_workload_and_namespace(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    alarm = dict.fromkeys(("severity", "namespace", "workload", "opened_at", "meaning", "advice"), WORDS) | {
        "alarm_id": "a1",
        "state": "closed",
        "holds": [],
        "figures": {},
        "acknowledged_by": None,
    }
    answers(monkeypatch, alarms, {"alarms": [alarm], "next": None})
    alarms.show_alarms(Path("data"), None, everything=True, as_json=False)
    assert capsys.readouterr().out.count(WORDS) == 6


def test_a_verdicts_reason(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    policy = {
        "version": 2,
        "state": "candidate",
        "parent": 1,
        "turns": 8,
        "digest": WORDS,
        "created_at": "today",
        "verdict": {"action": "refuse", "why": WORDS},
        "servable": "now",
    }
    answer = {"data": [policy], "experiment": None, "orders": [], "held_by": [], "pinned": None, "held": []}
    answers(monkeypatch, client, answer)
    client.show_policies(Path("data"), None, as_json=False)
    assert capsys.readouterr().out.count(WORDS) == 2


def test_why_an_engine_refuses(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    replica = dict.fromkeys(("name", "state", "lane", "url"), WORDS) | {
        "serving": None,
        "target": None,
        "held": [],
        "heartbeat_age_s": 1.0,
        "refused": {"3": WORDS},
    }
    answers(monkeypatch, client, {"live": 1, "data": [replica]})
    client.show_fleet(Path("data"), None, as_json=False)
    assert capsys.readouterr().out.count(WORDS) == 6


def test_what_doctor_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    check = doctor.Check("model", lambda: WORDS, "mend [kafka]")

    def fails() -> str:
        raise ConfigError(WORDS)

    monkeypatch.setattr(doctor, "_checks", lambda *_: [check, doctor.Check("keys", fails, "mend [kafka]")])
    assert doctor.examine(tmp_path, {}) == 1
    out = capsys.readouterr().out
    assert (out.count(WORDS), out.count("mend [kafka]")) == (2, 1)
    (tmp_path / "onward.toml").write_text(f'["{WORDS}"]')
    assert doctor.examine(tmp_path, {}) == 1
    assert WORDS in capsys.readouterr().out


def test_words_that_would_command_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A user's question, the name that a model gave a file, the answer of whatever stands before the service."""
    clipboard, erased, turned = "\x1b]52;c;aGk=\x1b\\", "\x9b2J", "\u202etxt"
    said = draft_of(f"{clipboard}{erased} {turned} na\u00efve \U0001f469\u200d\U0001f52c")
    put_draft(tmp_path, said)
    review_suite(tmp_path)
    out = capsys.readouterr().out
    assert "\\x1b]52;c;aGk=\\x1b\\\\x9b2J \\u202etxt na\u00efve \U0001f469\u200d\U0001f52c" in out
    story = {
        "outcomes": [], "rewards": [], "policy_versions": [], "inference_id": "t", "turn_index": 0, "workload": erased,
        "session_id": clipboard, "completion_tokens": 1, "finish_reason": turned, "received_at": "now",
    }  # fmt: skip
    monkeypatch.setattr(rewards, "call", lambda *_: story)
    rewards.explain(tmp_path, "t", None)
    out = capsys.readouterr().out
    assert [out.count(each) for each in ("\x1b", "\x9b", "\u202e", "\\x1b]52", "\\x9b2J", "\\u202etxt")] == [
        0,
        0,
        0,
        1,
        1,
        1,
    ]

    def fails(*_: object, **__: object) -> None:
        raise ConfigError(clipboard)

    monkeypatch.setattr(cli, "app", fails)
    with pytest.raises(SystemExit):
        cli.main()
    assert capsys.readouterr().err == "onward: \\x1b]52;c;aGk=\\x1b\\\n"


def test_json_commands_no_terminal_and_is_read_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever of it is a control of ASCII, one of those beyond it, or turns the direction of what follows."""
    acting = {"said": "\x1b[2J \x7f \x9b2J \x85 \u202etxt \U000e0041 na\u00efve \U0001f469\u200d\U0001f52c\n"}
    for show in (output.show_json, output.show_line):
        show(acting)
        out = capsys.readouterr().out
        assert json.loads(out) == acting
        assert [each for each in out.rstrip("\n") if not each.isprintable() and each not in "\n\u200d"] == []
        assert "na\u00efve \U0001f469\u200d\U0001f52c" in out, "words and pictures stay as they are"


def calls(path: Path) -> list[tuple[str, ast.Call]]:
    """Return the calls in a module, each with the last name of what is called."""
    found = [each for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, ast.Call)]
    return [(ast.unparse(each.func).rpartition(".")[2], each) for each in found]


def test_there_is_one_way_of_printing() -> None:
    """A console of rich's own wraps where it is piped, and takes users' words for markup; a print shows what acts."""
    astray = []
    for path in [each for folder in ("core", "onward", "environments") for each in Path(folder).rglob("*.py")]:
        for name, call in calls(path):
            on_stdout = not any(each.arg == "stderr" for each in call.keywords)
            prints_json = name == "print" and "json.dumps" in ast.unparse(call) and "b64encode" not in ast.unparse(call)
            if (name == "Console" and on_stdout) or name == "print_json" or prints_json:
                astray.append(f"{path}:{call.lineno}: {ast.unparse(call)}")
    allowed = ("core/terminal.py", "onward/output.py", "environments/sandboxes/bubblewrap/runtime.py")
    assert [each for each in astray if not each.startswith((*allowed, "environments/tasks/adapters/scoring.py"))] == []
    assert any(each.startswith("core/terminal.py") for each in astray), "nothing is looked at"


def lists(words: str, of: App) -> list[tuple[str, bool]]:
    """Return the commands that list or stream something, and whether each has `--json`."""
    found = []
    if ((of.default_command and of.default_command.__doc__) or "").startswith(("List ", "Show rewards of")):
        found.append((words, any("--json" in each.names for each in of.assemble_argument_collection())))
    below = [name for name in of if not name.startswith("-")]
    return found + [each for name in below for each in lists(f"{words} {name}", of[name])]


def test_every_list_has_json() -> None:
    found = dict(lists("onward", cli.app))
    assert {
        "onward policies",
        "onward fleet",
        "onward alarms",
        "onward rewards tail",
        "onward suite review",
    } <= found.keys()
    assert [words for words, has_json in found.items() if not has_json] == []


def test_who_has_read_enough_is_told_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)  # as `head` does once it has its lines
    prints = "import onward.cli as cli; cli.app.command(lambda: print('x'), name='x'); cli.main()"
    ended = subprocess.run([sys.executable, "-c", prints, "x"], stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (1, b"")
