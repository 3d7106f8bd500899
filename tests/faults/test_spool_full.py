"""A full spool while Kafka is down: users are answered, and told what was not logged."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fault_counts import settle
from fault_table import IS_FULL, FaultTable
from fault_users import Users
from fault_world import World, settings_of
from service_tree import Refused, wait_for
from sglang_service import SETTINGS as SGLANG
from stage_processes import ApiProcess

from bench.table import Row
from core.ids import InferenceId

pytestmark = pytest.mark.timeout(1800)
_BOUND = 1 << 16  # bytes
_UNLOGGED = 5  # turns beyond it


@contextmanager
def bounded(_directory: Path) -> Iterator[dict[str, Any]]:
    yield {"ingest.spool_bytes": _BOUND}


@contextmanager
def small_disk(directory: Path) -> Iterator[dict[str, Any]]:
    """Mount a small file system at `spools`."""
    if os.geteuid() != 0:
        pytest.skip("only root mounts file systems")
    spools = directory / "spools"
    spools.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={_BOUND}", "onward-faults", str(spools)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield {}
    finally:
        subprocess.run(["umount", "-l", str(spools)], check=True)


@pytest.mark.parametrize("room", [bounded, small_disk] if IS_FULL else [bounded])
def test_beyond_the_spool(world: World, users: Users, table: FaultTable, tmp_path: Path, room: Any) -> None:
    """One extra replica has hardly any room for its spool; the others have enough."""
    directory = tmp_path / "replica"
    with (
        room(directory) as settings,
        ApiProcess(directory, "api-9", SGLANG | settings_of(world.stack) | settings) as api,
    ):
        api.wait_ready()
        wait_for(lambda: api.readiness["engine"] == "ok", 180, "the replica's engines")
        users.wait_for_more(1)
        world.stack.kafka.kill()
        logged, unlogged = _speak_until_unlogged(api)
        assert "bytes" in api.readiness["log"] or "No space" in api.readiness["log"]
        outcomes = _judge_until_refused(api, logged[0])
        assert _counted(api) == len(unlogged)
        world.stack.kafka.up()
        wait_for(lambda: api.readiness["log"] == "ok", what="the spool's end")
        assert api.chat("[web] write a(xs): sum of xs", max_tokens=4)["onward"]["logged"]
        wait_for(lambda: _stored(world, logged) == set(logged), what="what was logged, in the store")
        wait_for(lambda: outcomes <= _stored_outcomes(world, logged[0]), what="what was said, in the store")
    assert not _stored(world, unlogged)
    fault = "Kafka away, spool " + ("at its bound" if room is bounded else "on a full disk")
    left = len(set(logged) - _stored(world, logged))
    table.add(
        fault,
        settle(world, users),
        Row(f"{fault}: turns stamped logged, lost", left, f"of {len(logged)}", goal=0, holds=left == 0),
        Row(f"{fault}: turns served beyond it", len(unlogged), "stamped unlogged, and counted"),
    )


def _speak_until_unlogged(api: ApiProcess) -> tuple[list[InferenceId], list[InferenceId]]:
    """Chat until some turns could not be logged; return (logged, not logged). Every turn is answered."""
    turns: dict[bool, list[InferenceId]] = {True: [], False: []}
    text = "[web] write total(xs): sum of xs. " + "It is for the shop. " * 20  # most of the context
    while len(turns[False]) < _UNLOGGED:
        answer = api.chat(text, max_tokens=4)["onward"]
        turns[answer["logged"]].append(InferenceId(answer["inference_id"]))
        assert sum(map(len, turns.values())) < 500
    return turns[True], turns[False]


def _judge_until_refused(api: ApiProcess, inference_id: InferenceId) -> set[str]:
    """Send feedback until it is refused; small records may still fit where a turn does not."""
    taken: set[str] = set()
    while len(taken) < 500:
        try:
            said = api.post("/v1/feedback", {"inference_id": inference_id, "metric_name": "accepted", "value": True})
        except Refused as refused:
            if refused.status != 503:
                raise
            return taken
        taken.add(said["feedback_id"])
    pytest.fail("there is room without end")


def _counted(api: ApiProcess) -> float:
    lines = api.text("/metrics").splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("onward_unlogged_turns_total "))


def _stored(world: World, ids: list[InferenceId]) -> set[InferenceId]:
    with world.foundation.store.look() as view:
        return set(view.turns.get_many(ids))


def _stored_outcomes(world: World, inference_id: InferenceId) -> set[str]:
    with world.foundation.store.look() as view:
        return {str(outcome.outcome_id) for outcome in view.outcomes.of_turns([inference_id])}
