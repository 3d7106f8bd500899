"""Feedback on parts of answers, over HTTP: credited to their tokens, it changes the weights, and replays to the bit."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from core.codec import decode, encode
from core.events import Outcome, Reward
from learner.versions.manifest import Manifest
from onward.replays.as_lived import prove
from onward.replays.proof import lineage_of
from onward.replays.replay import replay_log
from onward.wiring.foundation import open_foundation

pytestmark = pytest.mark.timeout(600)  # processes that import torch, on whatever machine
TURNS = 12
TEACHES = {"ONWARD_LEARNER__OBJECTIVE__DEMONSTRATION_WEIGHT": "0.5"}


def rewards_of(directory: Path) -> list[Reward]:
    foundation = open_foundation(directory)
    try:
        with foundation.store.look() as view:
            return list(view.rewards.in_order())
    finally:
        foundation.close()


def test_what_was_said_of_parts_trains_and_replays(taught: Path, tmp_path: Path) -> None:
    rewards = rewards_of(taught)
    assert len({reward.inference_id for reward in rewards}) == TURNS
    assert sum(hint.text.startswith("no, use our logger") for reward in rewards for hint in reward.hints) == 8
    rejected = [reward for reward in rewards if "rejected" in reward.components]
    assert sum([credit.value for credit in reward.credits] == [-0.5, 0.0] for reward in rejected) > 1
    edited = [reward for reward in rewards if reward.edits]
    assert edited
    assert all({0.0, 0.5} <= {credit.value for credit in reward.credits} for reward in edited if reward.credits)

    first, again = (replay_log(taught, tmp_path / name, None, None) for name in ("a", "b"))
    assert first["version"] > 1
    assert first["weights_digest"] == again["weights_digest"]
    assert first["rewards_digest"] == again["rewards_digest"]
    assert learned(tmp_path / "a") == learned(tmp_path / "b")

    whole = replay_log(without_targets(taught, tmp_path / "whole"), tmp_path / "c", None, None)
    assert whole["weights_digest"] != first["weights_digest"]
    assert not any(reward.credits for reward in rewards_of(tmp_path / "c") if "rejected" in reward.components)

    texts, repeated = (replay_log(taught, tmp_path / name, None, None, overrides=TEACHES) for name in ("d", "e"))
    assert texts["weights_digest"] == repeated["weights_digest"]
    assert texts["weights_digest"] != first["weights_digest"], "what users wrote is learned, too"
    assert texts["rewards_digest"] == first["rewards_digest"]
    lineage = lineage_of_newest(tmp_path / "d")
    written = {reward.inference_id: reward.edits for each in lineage for reward in each.rewards if reward.edits}
    assert written == {reward.inference_id: reward.edits for reward in edited}
    assert {record.inference_id for each in lineage for record in each.turns if record.taught} == written.keys()
    assert not any(reward.edits for each in lineage_of_newest(tmp_path / "a") for reward in each.rewards)
    assert prove(tmp_path / "d", lineage[-1].version.version, {}), "its manifests make the same weights"


def lineage_of_newest(directory: Path) -> list[Manifest]:
    with closing(open_foundation(directory)) as made, made.store.look() as view:
        newest, _ = view.policies.newest(1)[0]
        return lineage_of(made, newest.version)


def learned(directory: Path) -> list[Any]:
    """Return what the store says of each version, without when it was made."""
    foundation = open_foundation(directory)
    try:
        with foundation.store.look() as view:
            made = [view.policies.get(version) for version in view.policies.versions()]
            return [(version.version, version.digest, version.turns) for version in made if version is not None]
    finally:
        foundation.close()


def without_targets(source: Path, directory: Path) -> Path:
    """Copy a directory, in whose log no outcome says which tokens it speaks of."""
    shutil.copytree(source, directory)
    with closing(sqlite3.connect(directory / "log.db")) as connection:
        rows = connection.execute("SELECT sequence, raw FROM records").fetchall()
        for sequence, raw in rows:
            event = decode(raw)
            if isinstance(event, Outcome):
                whole = msgspec.structs.replace(event, target_range=None, edits=())
                connection.execute("UPDATE records SET raw = ? WHERE sequence = ?", (encode(whole), sequence))
        connection.commit()
    return directory
