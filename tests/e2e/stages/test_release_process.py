"""Release controllers as processes of their own: they may be killed, and two never decide at once."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil
from safetensors.torch import load_file, save_file
from service_tree import Service, wait_for

from core.events import PolicyVersion, Topic
from core.ids import base_ref
from onward.wiring.foundation import open_foundation

MakeService = Callable[..., Service]
LEASE_S = 1.0


@contextmanager
def controller(directory: Path) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", "onward", "release", str(directory), "--set", f"release.lease_s={LEASE_S}"]
    with directory.with_suffix(".release.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        process.wait(120)


def publish(directory: Path) -> int:
    """Publish a version that differs a little from the anchor, as a learner would."""
    foundation = open_foundation(directory)
    try:
        with foundation.store.work() as work:
            version = work.policies.allocate(foundation.clock.now())
        tensors = load_file(foundation.model / "model.safetensors")
        changed = {name: value.float() + 1e-4 * version.version for name, value in tensors.items()}
        shard = directory / "made" / "model.safetensors"
        shard.parent.mkdir(exist_ok=True)
        save_file(changed, shard)
        ref = foundation.weights.publish(version, [shard], base_ref(1))
        policy = PolicyVersion(
            version=version,
            policy="onward-tiny",
            digest=ref.digest,
            parent=base_ref(1),
            manifest=None,
            weights=ref.path,
            created_at=foundation.clock.now(),
        )
        with foundation.store.work() as work:
            work.policies.put(policy)
        foundation.log.append_blocking(Topic.POLICIES, [policy])
    finally:
        foundation.close()
    return version.version


def falls_asleep(pid: int, directory: Path) -> bool:
    """Suspend a process; return whether the write locks of store and log are left free. If not, resume it."""
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, what="the process to stop")
    if all(is_unlocked(directory / name) for name in ("store.db", "log.db")):
        return True
    os.kill(pid, signal.SIGCONT)
    return False


def is_unlocked(database: Path) -> bool:
    with closing(sqlite3.connect(database, timeout=1.0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
    return True


def serves(service: Service, version: int) -> bool:
    return bool(service.get("/v1/policies")["live"] == version)


def states(service: Service) -> dict[int, str]:
    return {entry["version"]: entry["state"] for entry in service.get("/v1/policies")["data"]}


def test_a_controller_of_its_own_releases_and_another_takes_over(make_service: MakeService) -> None:
    service = make_service(**{"release.controller": "false", "learner.enabled": "false"}).start()
    assert serves(service, 1)
    with controller(service.directory) as first:
        two = publish(service.directory)
        wait_for(lambda: serves(service, two), what="the first controller's release")
        with controller(service.directory) as second:
            first.kill()
            first.wait()
            three = publish(service.directory)
            wait_for(lambda: serves(service, three), what="the second controller's release")
            assert second.poll() is None
    assert service.chat("[web] write total(xs): sum of xs")["onward"]["policy_version"] == three


def test_a_controller_that_slept_through_its_lease_writes_nothing_more(make_service: MakeService) -> None:
    service = make_service(**{"release.controller": "false", "learner.enabled": "false"}).start()
    with controller(service.directory) as first:
        two = publish(service.directory)
        wait_for(lambda: serves(service, two), what="the first controller's release")
        wait_for(lambda: falls_asleep(first.pid, service.directory), what="sleep between transactions")
        with controller(service.directory):
            three = publish(service.directory)
            wait_for(lambda: serves(service, three), what="the second controller's release")
            os.kill(first.pid, signal.SIGCONT)
            four = publish(service.directory)
            wait_for(lambda: serves(service, four), what="a release after the sleeper woke")
            wait_for(lambda: states(service)[four] == "live", what="its being told")  # once the engine serves it
    assert states(service) == {1: "retired", two: "retired", three: "retired", four: "live"}
