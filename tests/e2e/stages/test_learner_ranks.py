"""A model that is too large for one device: `torchrun … -m onward learn` shards it, and it learns like any other."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from service_tree import Service, wait_for

pytestmark = pytest.mark.timeout(900)
SETTINGS = {
    "learner.enabled": "false",
    "learner.batch.min_turns": 4,
    "learner.batch.turns": 4,
    "learner.checkpoints.max_lead": 100,
    "release.canary.enabled": "off",
}


@contextmanager
def learner(directory: Path, log: Path, processes: int) -> Iterator[psutil.Process]:
    """Run torchrun, and end it as a service manager would."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command += ["-m", "onward", "learn", str(directory)]
    for name, value in SETTINGS.items():
        command += ["--set", f"{name}={value}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with log.open("wb") as output:
        torchrun = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        yield psutil.Process(torchrun.pid)
    finally:
        torchrun.terminate()
        torchrun.wait(180)


def newest(service: Service) -> int:
    return max(int(policy["version"]) for policy in service.get("/v1/policies")["data"])


def teach(service: Service) -> None:
    for number in range(4):
        answer: dict[str, Any] = service.chat(f"[web] write total_{number}(xs): sum of xs", max_tokens=8)
        inference_id = answer["onward"]["inference_id"]
        value = number % 2 == 0
        service.post("/v1/feedback", {"inference_id": inference_id, "metric_name": "accepted", "value": value})


def learns(service: Service, log: Path) -> None:
    before = newest(service)
    teach(service)
    wait_for(lambda: newest(service) > before, 240, f"a version after {before}; {log.read_text()[-2000:]}")


def test_two_processes_learn_one_dies_and_another_number_goes_on(tmp_path: Path) -> None:
    directory, log = tmp_path / "service", tmp_path / "learner.log"
    service = Service(directory, SETTINGS).start()
    try:
        with learner(directory, log, 2) as torchrun:
            learns(service, log)
            follower = max(torchrun.children(), key=lambda child: int(child.environ().get("RANK", -1)))
            follower.kill()
            assert torchrun.wait(120) != 0, "it ends as a whole, for its service manager to start it again"
        with learner(directory, log, 1):
            learns(service, log)
        with learner(directory, log, 2):
            learns(service, log)
        assert "/learner/" not in log.read_text(), "told to stop, none of them breaks"
    finally:
        service.stop()
