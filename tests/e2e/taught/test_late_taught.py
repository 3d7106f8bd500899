"""Outcomes that come too late for importance weights, over HTTP: they change the weights, and replay to the bit."""

from pathlib import Path

import pytest

from onward.replays.replay import replay_log
from onward.wiring.foundation import open_foundation

pytestmark = pytest.mark.timeout(600)  # processes that import torch, on whatever machine
TURNS = 12
TOO_LATE = {"ONWARD_LEARNER__ADMISSION__DEFAULT_MAX_AGE_S": "0.001", "ONWARD_LEARNER__DEMONSTRATIONS__WEIGHT": "0"}
HEARD = {**TOO_LATE, "ONWARD_LEARNER__ADMISSION__LATE": "asymmetric"}


def test_what_comes_late_changes_the_weights_and_replays(taught: Path, tmp_path: Path) -> None:
    """Whatever a user says comes later than it may."""
    first, again = (replay_log(taught, tmp_path / name, None, None, overrides=HEARD) for name in ("a", "b"))
    unheard = replay_log(taught, tmp_path / "c", None, None, overrides=TOO_LATE)
    assert first["version"] > 1
    assert [late_turns(tmp_path / name) for name in ("a", "c")] == [TURNS, 0]
    assert first["weights_digest"] == again["weights_digest"]
    assert unheard["weights_digest"] != first["weights_digest"]


def late_turns(directory: Path) -> float:
    foundation = open_foundation(directory)
    try:
        with foundation.store.look() as view:
            [(newest, _)] = view.policies.newest(1)
            return newest.metrics.get("late_turns", 0)
    finally:
        foundation.close()
