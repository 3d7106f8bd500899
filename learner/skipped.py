"""Skipped updates: the whole batch is written to a file for whoever looks for the cause, and an alarm is raised."""

import logging
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import msgspec
from blake3 import blake3

from core import codec, telemetry
from core.operations.alarms import NOT_FINITE, Opening
from core.ports import Store
from learner.sequences.scored import ScoredTurn
from learner.updates.update import NonFiniteLoss

MEANING = "an update was skipped, its loss or gradient being no number: its turns lie in the learner's directory"
logger = logging.getLogger(__name__)


def skip(directory: Path, store: Store, batch: Sequence[ScoredTurn], error: NonFiniteLoss, now: datetime) -> None:
    """Keep the batch in a file of `directory`, say where, and raise an alarm."""
    logger.error("%s; its %d turns are in %s", error, len(batch), keep(directory, batch, error))
    raise_alarm(store, batch, error, now)


def keep(directory: Path, batch: Sequence[ScoredTurn], error: NonFiniteLoss) -> Path:
    """Write the batch as JSON, turns beside their rewards. The same batch gives the same file."""
    pairs = [{"turn": scored.turn, "reward": scored.reward, "applied": scored.applied} for scored in batch]
    content = msgspec.json.encode({"why": str(error), "batch": pairs}, enc_hook=codec.plain)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{blake3(content).hexdigest()[:16]}.json"
    partial = path.with_suffix(".partial")
    partial.write_bytes(content)
    partial.replace(path)
    return path


def raise_alarm(store: Store, batch: Sequence[ScoredTurn], error: NonFiniteLoss, now: datetime) -> None:
    """Raise an alarm unless one of this workload is open. The watching stage writes it to the log."""
    turns = [scored.turn for scored in batch]
    opening = Opening(
        alarm_id=f"{NOT_FINITE}-{turns[0].inference_id}",
        monitor=NOT_FINITE,
        meaning=MEANING,
        severity="critical",
        namespace=turns[0].namespace,
        workload=turns[0].workload,
        figures={"turns": float(len(turns))},
        holds=(),
        opened_at=now,
        window_start=min(turn.received_at for turn in turns),
        window_end=max(turn.received_at for turn in turns),
    )
    with store.work() as work:
        if work.alarms.open(opening):
            telemetry.ALARMS.labels(monitor=NOT_FINITE, severity="critical").inc()


def close_acknowledged(store: Store, now: datetime) -> bool:
    """Close acknowledged alarms after a successful update; return whether any is left open."""
    with store.work() as work:
        ours = [alarm for alarm in work.alarms.that_are_open() if alarm.opening.monitor == NOT_FINITE]
        for alarm in ours:
            if alarm.state == "acknowledged":
                work.alarms.close(alarm.alarm_id, now)
    return any(alarm.state == "opened" for alarm in ours)
