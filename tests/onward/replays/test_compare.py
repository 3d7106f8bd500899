"""Two replays side by side: what users held out can say of each is said in words, beside the figures."""

import json
from pathlib import Path
from typing import Any

import pytest

from onward.replays.compare import compare_replays
from onward.replays.report import FILE

CANNOT = "These turns cannot say what the candidate would have earned: no turns."
GAINS = {name: {"low": 0.1, "value": 0.2, "high": 0.3} for name in ("stated", "line", "snips")}


def kept(directory: Path, held_out: dict[str, Any] | None) -> Path:
    same = dict.fromkeys(("from", "to", "missing", "spec", "holdout", "rewards_digest", "weights_digest"), 0)
    directory.mkdir()
    report = same | {"learner": {}, "rewards": 9, "updates": [], "strata": {}, "held_out": held_out}
    (directory / FILE).write_text(json.dumps(report))
    return directory


def test_what_users_held_out_can_say_stands_beside_the_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = kept(tmp_path / "one", {"refused": None, "says": "It would have been [bold] +0.200.", "gains": GAINS})
    other = kept(tmp_path / "other", {"refused": "no turns", "says": CANNOT, "gains": {}})
    compared = compare_replays(one, other)
    assert compared["says"] == ("It would have been [bold] +0.200.", CANNOT)
    assert compared["provenance"]["replays"] == (None, None), "nobody said where these come from"
    assert compared["provenance"]["command"].startswith("onward")
    gains = {name: pair for name, pair in compared["figures"].items() if name.startswith("gain")}
    assert gains["gain on users held out, stated, low"] == (0.1, None)
    assert len(gains) == 9
    shown = capsys.readouterr().out
    assert "one, users held out: It would have been [bold] +0.200." in shown
    assert CANNOT in shown


def test_nothing_is_said_of_users_where_none_was_held_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compared = compare_replays(kept(tmp_path / "one", None), kept(tmp_path / "other", None))
    assert compared["says"] == (None, None)
    assert "users held out" not in capsys.readouterr().out


def test_a_former_builds_report_says_why_it_cannot_say(tmp_path: Path) -> None:
    one = kept(tmp_path / "one", {"refused": "12 users, not 30", "gains": {}})
    other = kept(tmp_path / "other", {"refused": None, "gains": {"snips": GAINS["snips"], "dr": GAINS["snips"]}})
    compared = compare_replays(one, other)
    assert compared["says"] == ("12 users, not 30", None)
    assert compared["figures"]["gain on users held out, snips, value"] == (None, 0.2)
