"""Comments over HTTP: what users say of answers changes the weights, and replays to the bit."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
import zstandard

from core.codec import decode, encode
from core.events import Completion, Event, Outcome
from learner.versions.durable import read_sealed
from learner.versions.manifest import Manifest
from learner.versions.manifest import decode as manifest_of
from onward.replays.replay import replay_log
from onward.wiring.foundation import open_foundation

pytestmark = pytest.mark.timeout(600)  # processes that import torch, on whatever machine
WORDS = {"ONWARD_LEARNER__WORDS__WEIGHT": "2", "ONWARD_LEARNER__WORDS__PROOF": "0"}
CONCLUDED = {"call_failed", "follow_up"}
OTHERWISE = {
    "Error: no such file": "Error: it is not there",
    "no, that is wrong: use our logger": "no, that is wrong: it has to be shorter",
}


def manifests(directory: Path) -> list[Manifest]:
    foundation = open_foundation(directory)
    try:
        return [manifest_of(foundation.blobs.get(path)) for path in foundation.blobs.list("manifests/")]
    finally:
        foundation.close()


def test_what_users_say_trains_and_replays(taught: Path, tmp_path: Path) -> None:
    first, again = (replay_log(taught, tmp_path / name, None, None, overrides=WORDS) for name in ("a", "b"))
    assert first["version"] > 1
    assert first["weights_digest"] == again["weights_digest"]
    [made] = manifests(tmp_path / "a")
    assert {record.words for record in made.turns} == {"trained", "disagrees"}
    silent = replay_log(without_comments(taught, tmp_path / "silent"), tmp_path / "c", None, None, overrides=WORDS)
    assert silent["version"] == first["version"]
    assert silent["weights_digest"] != first["weights_digest"], "nothing else was different"


def test_what_tools_and_users_say_next_trains_and_replays(taught: Path, tmp_path: Path) -> None:
    """Nobody reported anything. In other words the same is worth the same, and teaches something else."""
    first, again = (replay_log(taught, tmp_path / name, None, None, overrides=WORDS) for name in ("a", "b"))
    other = replay_log(in_other_words(taught, tmp_path / "other"), tmp_path / "c", None, None, overrides=WORDS)
    assert first["weights_digest"] == again["weights_digest"]
    [made], [told_otherwise] = manifests(tmp_path / "a"), manifests(tmp_path / "c")
    said = {reward.inference_id: reward for reward in made.rewards if reward.components.keys() & CONCLUDED}
    assert {hint.text for reward in said.values() for hint in reward.hints} == set(OTHERWISE)
    assert sorted(reward.value for reward in said.values()) == [-1.0, -0.75, -0.75, -0.75]
    values = [{reward.inference_id: reward.value for reward in each.rewards} for each in (made, told_otherwise)]
    assert values[0] == values[1]
    trained = [
        record.words == "trained"
        for each in (made, told_otherwise)
        for record in each.turns
        if record.inference_id in said
    ]
    assert len(trained) == 2 * len(said)
    assert (first["weights_digest"] != other["weights_digest"]) is any(trained), "the gate lets some train, or none"


def test_of_words_that_do_not_train_the_learner_keeps_nothing(taught: Path) -> None:
    """The service has them, in the log and with its rewards."""
    [made] = manifests(taught)
    assert made.rewards
    assert not any(reward.hints for reward in made.rewards)
    journals = [unpacked(path) for path in (taught / "learner").glob("journal-*")]
    assert journals
    assert not any(b"use our logger" in journal for journal in journals)
    assert any(b"use our logger" in path.read_bytes() for path in taught.glob("log.db*") if path.is_file())


def unpacked(path: Path) -> bytes:
    return zstandard.ZstdDecompressor().decompress(read_sealed(path))


def without_comments(source: Path, directory: Path) -> Path:
    """Copy a directory in whose log comments say nothing."""

    def mute(event: Event) -> Event:
        is_comment = isinstance(event, Outcome) and event.name == "comment"
        return msgspec.structs.replace(event, value="") if is_comment else event

    return rewritten(source, directory, mute)


def in_other_words(source: Path, directory: Path) -> Path:
    """Copy a directory in whose log a tool and users said the same in other words."""

    def otherwise(event: Event) -> Event:
        if not isinstance(event, Completion):
            return event
        messages = tuple(
            {**message, "content": OTHERWISE.get(message["content"], message["content"])} for message in event.messages
        )
        return msgspec.structs.replace(event, messages=messages)

    return rewritten(source, directory, otherwise)


def rewritten(source: Path, directory: Path, change: Callable[[Event], Event]) -> Path:
    """Copy a directory, each event of whose log is changed."""
    shutil.copytree(source, directory)
    with closing(sqlite3.connect(directory / "log.db")) as connection:
        for sequence, raw in connection.execute("SELECT sequence, raw FROM records").fetchall():
            changed = encode(change(decode(raw)))
            connection.execute("UPDATE records SET raw = ? WHERE sequence = ?", (changed, sequence))
        connection.commit()
    return directory
