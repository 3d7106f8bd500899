"""A service's past: turns that were really sampled and their outcomes, kept in the log or the archive."""

import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path

from logged_world import START, make_turn
from safetensors.torch import load_file, save_file

from core.clock import to_micros
from core.events import Completion, Event, Outcome, Topic
from core.ids import OutcomeId
from core.ports import TopicPartition
from onward.directory.layout import SHIPPED_MODEL
from onward.replays.history import keep_once
from onward.wiring.foundation import open_foundation

COUNT = 24  # turns
MIDDLE = (START + timedelta(seconds=COUNT / 2)).isoformat()
LATE = (START + timedelta(days=1)).isoformat()
SETTINGS = """
[ingest]
partitions = 2
[learner]
enabled = false

[learner.batch]
turns = 8
min_turns = 4
"""
ALL = {"ONWARD_ARCHIVE__ENABLED": "true", "ONWARD_ARCHIVE__RETENTION_DAYS": "0"}


def past(count: int) -> list[Event]:
    events: list[Event] = []
    for number in range(count):
        turn = make_turn(number)
        events += [turn, said(turn, number)]
    return events


def said(turn: Completion, number: int) -> Outcome:
    return Outcome(
        outcome_id=OutcomeId(f"o{number}"),
        inference_id=turn.inference_id,
        session_id=None,
        namespace=turn.namespace,
        name="accepted" if number % 3 else "rejected",
        value=True,
        observed_at=turn.received_at,
        received_at=turn.received_at + timedelta(seconds=0.5),
    )


def append(directory: Path, events: Sequence[Event]) -> None:
    """Append the events as if each had been logged when it was received, and writer and scorer had read it."""
    directory.mkdir(exist_ok=True)
    (directory / "onward.toml").write_text(SETTINGS)
    foundation = open_foundation(directory)
    positions = foundation.log.append_blocking(Topic.TURNS, events)
    with closing(sqlite3.connect(directory / "log.db")) as connection:
        connection.executemany(
            "UPDATE records SET appended_at = ? WHERE topic = ? AND partition = ? AND record_offset = ?",
            [
                (to_micros(event.received_at), position.topic, position.partition, position.offset)  # type: ignore[union-attr]
                for event, position in zip(events, positions, strict=True)
            ],
        )
        connection.commit()
    with foundation.store.work() as work:
        for source in (TopicPartition(Topic.TURNS, 0), TopicPartition(Topic.TURNS, 1)):
            for group in ("writer", "scorer"):
                work.offsets.put(group, source, foundation.log.end(source))
    foundation.close()


def archive(directory: Path) -> dict[str, int]:
    """Archive everything; the log keeps the latest record of each partition."""
    return keep_once(directory, ALL)


__all__ = ["ALL", "START", "append", "archive", "past"]


def another_model(directory: Path) -> Path:
    model = directory / "model"
    shutil.copytree(SHIPPED_MODEL, model)
    tensors = {name: tensor + 0.01 for name, tensor in load_file(model / "model.safetensors").items()}
    save_file(tensors, model / "model.safetensors", {"format": "pt"})
    return model
