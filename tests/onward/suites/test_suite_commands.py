"""`onward suite`: drafts from a directory's store, once for each session, and what versions were compared with."""

import json
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import made_events
import pytest

from core.errors import ConfigError
from core.events import Completion, Outcome
from core.ids import SessionId
from onward.cli import app
from onward.suites.mine import mine
from onward.wiring.foundation import open_offline


def turn(session: str, **fields: Any) -> Completion:
    return made_events.completion(SessionId(session), text="def total(xs): ...", **fields)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a directory of four sessions: kept, kept without consent, of another workload, and taken back."""
    place = tmp_path / "service"
    kept, private, other, bad = (
        turn("kept"),
        turn("private", learn=False),
        turn("other", workload="chat", received_at=made_events.NOW + timedelta(days=2)),
        turn("bad"),
    )
    outcomes: list[Outcome] = [made_events.outcome(each) for each in (kept, private, other, bad)]
    outcomes.append(made_events.outcome(bad, name="reverted"))
    outcomes.append(made_events.outcome(other, value=False))
    outcomes.append(made_events.outcome(other, supersedes=outcomes[-1].outcome_id))
    with closing(open_offline(place)) as foundation, foundation.store.work() as work:
        work.turns.put([kept, private, other, bad])
        work.outcomes.put(outcomes)
    return place


def names(suite: Path) -> list[str]:
    return sorted(json.loads(path.read_text())["session_id"] for path in (suite / "drafts").glob("*.json"))


def test_sessions_become_drafts_once(directory: Path, tmp_path: Path) -> None:
    suite = tmp_path / "suite"
    assert mine(directory, suite, None, None, None, {}) == {"sessions": 4, "drafts": 2, "new": 2}
    assert names(suite) == ["kept", "other"]
    assert mine(directory, suite, None, None, None, {}) == {"sessions": 4, "drafts": 2, "new": 0}


def test_sessions_are_chosen_by_workload_and_time(directory: Path, tmp_path: Path) -> None:
    assert mine(directory, tmp_path / "one", None, None, "chat", {})["new"] == 1
    assert names(tmp_path / "one") == ["other"]
    assert mine(directory, tmp_path / "two", None, "2026-03-02T00:00:00Z", None, {})["new"] == 1
    assert names(tmp_path / "two") == ["kept"]


def test_the_command_prints_counts(directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        app(["suite", "mine", str(directory), "--into", str(tmp_path / "suite")])
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out)["new"] == 2
    with pytest.raises(ConfigError, match="no version"):
        app(["suite", "checks", str(directory)])
