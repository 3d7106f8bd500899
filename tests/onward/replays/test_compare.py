"""Two replays side by side: what users held out can say of each is said in words, beside the figures."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.errors import ConfigError
from core.ids import InferenceId
from learner.off_policy.estimators import paired
from learner.off_policy.overlap import LoggedTurns
from onward.replays.compare import compare_replays
from onward.replays.estimates.turns_kept import FILE as TURNS
from onward.replays.estimates.turns_kept import interval, keep
from onward.replays.report import FILE

CANNOT = "These turns cannot say what the candidate would have earned: no turns."
GAINS = {name: {"low": 0.1, "value": 0.2, "high": 0.3} for name in ("stated", "line", "snips")}


def replayed(directory: Path, held_out: dict[str, Any] | None) -> Path:
    same = dict.fromkeys(("from", "to", "missing", "spec", "holdout", "rewards_digest", "weights_digest"), 0)
    directory.mkdir()
    report = same | {
        "learner": {"seed": len(directory.name)},
        "rewards": 9,
        "updates": [],
        "strata": {},
        "held_out": held_out,
        "where": {},
        "provenance": None,
    }
    (directory / FILE).write_text(json.dumps(report))
    return directory


def test_what_users_held_out_can_say_stands_beside_the_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = replayed(tmp_path / "one", {"refused": None, "says": "It would have been [bold] +0.200.", "gains": GAINS})
    other = replayed(tmp_path / "other", {"refused": "no turns", "says": CANNOT, "gains": {}})
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
    compared = compare_replays(replayed(tmp_path / "one", None), replayed(tmp_path / "other", None))
    assert compared["paired"] is None
    assert compared["says"] == (None, None)
    assert "users held out" not in capsys.readouterr().out


def test_a_former_builds_replay_is_refused(tmp_path: Path) -> None:
    one, other = replayed(tmp_path / "one", None), replayed(tmp_path / "other", None)
    report = json.loads((other / FILE).read_text())
    del report["where"]
    (other / FILE).write_text(json.dumps(report))
    with pytest.raises(ConfigError, match=r"other/report\.json: of a former build, .*; replay it again"):
        compare_replays(one, other)


USERS, PER_USER = 60, 3
JUDGED = {"refused": None, "says": "It would have been +0.200.", "gains": GAINS}


def judged_by(seed: int) -> LoggedTurns:
    """Return turns of the same users as a candidate sees them that this seed draws, with a mean weight of 1."""
    count = USERS * PER_USER
    log_ratios = np.random.default_rng(seed).normal(0, 0.3, count) - 0.3**2 / 2
    rewards = np.random.default_rng(0).choice([-1.0, 1.0], count)
    return LoggedTurns.of(log_ratios, rewards, np.arange(count) % USERS, np.full(count, 0.1))


def ids(turns: LoggedTurns) -> list[InferenceId]:
    return [InferenceId(f"turn {number:03}") for number in range(len(turns.reward_N))]


def in_another_order(turns: LoggedTurns) -> LoggedTurns:
    columns = (turns.log_ratio_N, turns.reward_N, turns.cluster_N, turns.value_N)
    return LoggedTurns(*(column[::-1] for column in columns if column is not None))


def without_ten(turns: LoggedTurns) -> LoggedTurns:
    return LoggedTurns.of(turns.log_ratio_N[:-10], turns.reward_N[:-10], turns.cluster_N[:-10])


def test_two_candidates_are_compared_on_the_turns_that_judged_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = replayed(tmp_path / "one", JUDGED), replayed(tmp_path / "other", JUDGED)
    one, other = judged_by(1), judged_by(2)
    keep(ids(one), one, first)
    keep(ids(other)[::-1], in_another_order(other), second)
    compared = compare_replays(first, second)
    expected = paired(other, one)
    assert expected.refused is None
    assert compared["paired"] == {
        "refused": None,
        "bends": expected.bends,
        "differences": {name: interval(each) for name, each in expected.differences.items()},
    }
    assert compared["seeds"] == (3, 5)
    shown = capsys.readouterr().out
    assert f"other less {first}: {expected.differences['stated'].value:+.3f} a turn, 95 %" in shown
    assert re.search(r"learner\.seed +│ 3 +│ 5", shown)

    impossible = replace(other, log_ratio_N=np.where(np.arange(len(other.reward_N)) == 7, -np.inf, other.log_ratio_N))
    keep(ids(other), impossible, second)
    assert compare_replays(first, second, as_json=True)["paired"]["refused"] == paired(impossible, one).refused


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda turns: replace(turns, reward_N=-turns.reward_N), "other rewards: 180 of the 180 turns"),
        (lambda turns: replace(turns, cluster_N=turns.cluster_N[::-1]), "other users: the same 180 turns"),
        (without_ten, "other turns: 10 judge the first alone, 0 the second alone, 170 both"),
        (lambda _: None, f"{TURNS}: no such file; replay it again"),
    ],
)
def test_where_they_were_judged_otherwise_it_says_how(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[LoggedTurns], LoggedTurns | None], why: str
) -> None:
    first, second = replayed(tmp_path / "one", JUDGED), replayed(tmp_path / "other", JUDGED)
    one, other = judged_by(1), change(judged_by(1))
    keep(ids(one), one, first)
    if other is not None:
        keep(ids(other), other, second)
    found = compare_replays(first, second)["paired"]
    assert why in found["refused"]
    assert found["differences"] == {}
    assert f"cannot be told: {found['refused']}" in capsys.readouterr().out
    assert "held no users out" in compare_replays(first, replayed(tmp_path / "none", None))["paired"]["refused"]
