"""Skipped updates: the whole batch is written to a file for whoever looks for the cause, and an alarm is raised."""

import secrets
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec
from blake3 import blake3

from core import codec, telemetry
from core.ids import BASE, Namespace, PolicyName
from core.operations.alarms import LEARNER_FAILED, NOT_FINITE, Opening
from core.ports import Store
from learner.sequences.scored import ScoredTurn

_NOBODYS: Final = Namespace("")  # of the base policy, which speaks for many
MEANING = "an update was skipped, its loss or gradient being no number: its turns lie in the learner's directory"


def keep(directory: Path, batch: Sequence[ScoredTurn], error: Exception) -> Path:
    """Write the batch as JSON, turns beside their rewards. The same batch gives the same file."""
    pairs = [{"turn": scored.turn, "reward": scored.reward, "applied": scored.applied} for scored in batch]
    content = msgspec.json.encode({"why": str(error), "batch": pairs}, enc_hook=codec.plain)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{blake3(content).hexdigest()[:16]}.json"
    partial = path.with_suffix(".partial")
    partial.write_bytes(content)
    partial.replace(path)
    return path


def raise_alarm(store: Store, policy: PolicyName, batch: Sequence[ScoredTurn], now: datetime) -> None:
    """Raise an alarm unless one of this workload is open. The watching stage writes it to the log."""
    _raise(store, policy, NOT_FINITE, MEANING, batch, (), now)


def raise_failure(
    store: Store,
    policy: PolicyName,
    namespaces: Sequence[Namespace],
    batch: Sequence[ScoredTurn],
    meaning: str,
    now: datetime,
) -> None:
    """Raise an alarm that a policy's learner failed, perhaps in the update of a batch, unless one is open."""
    _raise(store, policy, LEARNER_FAILED, meaning, batch, namespaces, now)


def _raise(
    store: Store,
    policy: PolicyName,
    monitor: str,
    meaning: str,
    batch: Sequence[ScoredTurn],
    namespaces: Sequence[Namespace],
    now: datetime,
) -> None:
    turns = [scored.turn for scored in batch]
    opening = Opening(
        alarm_id=f"{_ids_begin_with(policy, monitor)}{turns[0].inference_id if turns else secrets.token_hex(4)}",
        monitor=monitor,
        meaning=meaning,
        severity="critical",
        namespace=turns[0].namespace if turns else next(iter(namespaces), _NOBODYS),
        workload=turns[0].workload if turns else policy,
        figures={"turns": float(len(turns))},
        holds=(),
        opened_at=now,
        window_start=min((turn.received_at for turn in turns), default=now),
        window_end=max((turn.received_at for turn in turns), default=now),
    )
    with store.work() as work:
        if work.alarms.open(opening):
            telemetry.ALARMS.labels(monitor=monitor, severity="critical").inc()


def close_acknowledged(store: Store, policy: PolicyName, now: datetime) -> bool:
    """Close a policy's acknowledged alarms after a successful update; return whether any is left open."""
    begins = tuple(_ids_begin_with(policy, monitor) for monitor in (NOT_FINITE, LEARNER_FAILED))
    with store.work() as work:
        ours = [
            alarm
            for alarm in work.alarms.that_are_open()
            if alarm.alarm_id.startswith(begins) and (policy != BASE or "@" not in alarm.alarm_id)
        ]
        for alarm in ours:
            if alarm.state == "acknowledged":
                work.alarms.close(alarm.alarm_id, now)
    return any(alarm.state == "opened" for alarm in ours)


def _ids_begin_with(policy: PolicyName, monitor: str) -> str:
    return f"{monitor}-" if policy == BASE else f"{monitor}-{policy}@"
