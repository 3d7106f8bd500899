"""Served turns are read from the log without a stop, whatever records it holds."""

from collections.abc import Callable
from pathlib import Path

from planted import turn
from release_world import ReleaseWorld

from core import telemetry
from core.events import Topic
from ingest.sqlite.log import SqliteEventLog
from serving.releases.canaries.observations import Observations, ServedTurn


def test_a_turn_that_cannot_be_judged_is_no_evidence(start_world: Callable[..., ReleaseWorld], tmp_path: Path) -> None:
    world, log = start_world(), SqliteEventLog(tmp_path / "of-its-own.db", 2, 0.01)
    seen: list[str] = []

    def on_turn(served: ServedTurn) -> None:
        if served.unit == "live-user-2":
            raise OverflowError("too much")
        seen.append(served.unit)

    observations = Observations(log, world.clock, on_turn, lambda *_: None)
    failed = telemetry.STAGE_FAILED_RECORDS.labels(part="releases")
    before = failed._value.get()
    observations.read()  # it begins at the log's end
    log.append_blocking(Topic.TURNS, [turn(world, f"user-{number}", version=1) for number in range(5)])
    observations.read()
    observations.close()
    log.close()
    assert sorted(seen) == [f"live-user-{number}" for number in (0, 1, 3, 4)]
    assert failed._value.get() - before == 1
