"""What users and operators wrote is shown as it is, also where it looks like markup; and to whoever still reads."""

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from core.errors import ConfigError
from onward import cli
from onward.commands import client, doctor, rewards
from onward.commands.eval_commands import review_suite
from onward.commands.operators import alarms
from serving.evals.cases import Draft, Message, Origin, Reuse
from serving.evals.drafts import put_draft

WORDS = "[/b]x[red]"
ORIGIN = Origin(
    session="s", turn="t", versions=(), received_at=datetime.now(UTC), reward=1.0, reward_spec="r", edited=False
)


def draft_of(asked: str) -> Draft:
    said = (Message(role="user", content=asked),)
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


def test_who_has_read_enough_is_told_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)  # as `head` does once it has its lines
    prints = "import onward.cli as cli; cli.app.command(lambda: print('x'), name='x'); cli.main()"
    ended = subprocess.run([sys.executable, "-c", prints, "x"], stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (1, b"")
