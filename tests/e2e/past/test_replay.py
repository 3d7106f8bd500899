"""Replay is deterministic: the same log, spec, settings and seed give the same rewards and the same weights."""

import json
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from service_tree import Service, simulate

pytestmark = pytest.mark.timeout(900)  # five processes that import torch, on whatever machine
MakeService = Callable[..., Service]
ENOUGH = 60  # rewards, for three updates


def replay(directory: Path, out: Path, *options: str) -> Any:
    command = [sys.executable, "-m", "onward", "replay", str(directory), "--out", str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_twice_the_same_and_otherwise_not(make_service: MakeService, tmp_path: Path) -> None:
    service = make_service(learner__batch__turns=16, learner__batch__min_turns=8).start()
    for seed in count():  # on a busy machine users say less in their time
        simulate(service, tmp_path / f"demo{seed}", seconds=10, rate=8, seed=seed).communicate(timeout=600)
        if len(service.get("/v1/rewards?limit=200")["data"]) > ENOUGH:
            break
    service.stop()

    first = replay(service.directory, tmp_path / "a")
    second = replay(service.directory, tmp_path / "b")
    assert first["rewards"] >= ENOUGH
    assert first["version"] > 3
    assert {k: v for k, v in first.items() if k != "weights"} == {k: v for k, v in second.items() if k != "weights"}

    harsh = tmp_path / "harsh.toml"
    harsh.write_text('[outcomes.accepted]\ntype = "boolean"\nweight = 0.5\ndecides = true\n')
    other = replay(service.directory, tmp_path / "c", "--spec", str(harsh))
    assert other["rewards_digest"] != first["rewards_digest"]
    assert other["weights_digest"] != first["weights_digest"]
    assert replay(service.directory, tmp_path / "d", "--seed", "7")["weights_digest"] != first["weights_digest"]
