"""Limits by control groups of both versions, what stands in for them, and what is left of an owner that was killed."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sandboxed import PATIENCE_S, require_bubblewrap, shared_directory

from environments.errors import InfrastructureFailure
from environments.sandboxes import owners
from environments.sandboxes.bubblewrap import adapter
from environments.sandboxes.bubblewrap.adapter import Bubblewrap
from environments.sandboxes.limits import cgroups
from environments.sandboxes.limits.cgroups import ControlGroup, Groups
from environments.sandboxes.sandbox import Limits, SandboxSpec

LIMITS = Limits(memory_bytes=100, disk_bytes=50, processes=7, cpus=1.5)


def test_the_files_of_version_2_are_written(tmp_path: Path) -> None:
    """On files alone: the machine that this was written on has version 1."""
    group = Groups(tmp_path).make(LIMITS)
    (folder,) = group.folders
    written = {path.name: path.read_text() for path in folder.iterdir()}
    assert written == {"memory.max": "150", "pids.max": "7", "cpu.max": "150000 100000"}
    (folder / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    assert group.killed_for_memory() == 2


def test_entrances_are_closed_where_one_of_them_cannot_be_opened(tmp_path: Path) -> None:
    folders = (tmp_path / "memory", tmp_path / "gone")
    folders[0].mkdir()
    (folders[0] / "cgroup.procs").touch()
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileNotFoundError), ControlGroup(folders).entrances():
        pytest.fail("there is no second folder")
    assert os.listdir("/proc/self/fd") == before


def test_a_sandbox_that_cannot_be_planned_leaves_no_descriptor_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_bubblewrap()

    def refuse(*_: object) -> None:
        raise InfrastructureFailure("sandbox", "no such thing")

    async def act() -> None:
        bubblewrap = Bubblewrap(shared_directory())
        await (await bubblewrap.open(SandboxSpec())).close()
        for module, name in ((adapter.program, "find"), (adapter.plans, "fill"), (adapter.program, "libraries")):
            with monkeypatch.context() as patched:
                patched.setattr(module, name, refuse)
                before = sorted(os.listdir("/proc/self/fd"))
                with pytest.raises(InfrastructureFailure, match="no such thing"):
                    await bubblewrap.open(SandboxSpec())
                assert sorted(os.listdir("/proc/self/fd")) == before
        await bubblewrap.close()

    asyncio.run(act())


def test_a_group_that_hands_nothing_on_is_named(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu pids")
    with pytest.raises(InfrastructureFailure, match="no controller memory"):
        cgroups._delegated(tmp_path)


def test_where_there_is_no_group_nothing_is_opened_unless_limits_of_processes_may_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_bubblewrap(rlimits_may_do=True)

    def refuse() -> Groups:
        raise InfrastructureFailure("sandbox", "no cgroup is mounted here")

    monkeypatch.setattr(adapter, "Groups", refuse)
    spec = SandboxSpec(limits=Limits(memory_bytes=64 << 20, disk_bytes=16 << 20, processes=20))

    async def act() -> None:
        with pytest.raises(InfrastructureFailure, match="no cgroup"):
            await Bubblewrap(shared_directory()).open(spec)
        bubblewrap = Bubblewrap(shared_directory(), rlimits_may_do=True)
        sandbox = await bubblewrap.open(spec)
        greedy = await sandbox.run(
            ["dd", "if=/dev/zero", "of=/dev/null", "bs=200M", "count=1"], timeout_seconds=PATIENCE_S
        )
        assert b"memory exhausted" in greedy.stderr
        many = "for i in $(seq 1 60); do sleep 5 & done; wait"
        forks = await sandbox.run(["sh", "-c", many], timeout_seconds=PATIENCE_S)
        assert b"fork" in forks.stderr
        await bubblewrap.close()

    asyncio.run(act())


OWNER = """
import asyncio, sys
from pathlib import Path
from environments.sandboxes.bubblewrap.adapter import Bubblewrap
from environments.sandboxes.sandbox import Limits, SandboxSpec

async def main():
    bubblewrap = Bubblewrap(Path(sys.argv[1]))
    sandboxes = [await bubblewrap.open(SandboxSpec(limits=Limits(disk_bytes=1 << 24))) for _ in range(2)]
    command = ["sh", "-c", f"(setsid sleep {sys.argv[2]} &) & trap '' TERM; sleep {sys.argv[2]}"]
    print("running", flush=True)
    await asyncio.gather(*(sandbox.run(command, timeout_seconds=250) for sandbox in sandboxes))

asyncio.run(main())
"""


def test_nothing_is_left_when_the_owner_is_killed(tmp_path: Path) -> None:
    require_bubblewrap()
    mounted, seconds = mounts(), f"91{os.getpid():08}"  # no other process sleeps so long
    command = [sys.executable, "-c", OWNER, str(tmp_path), seconds]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    with owner.stdout:
        assert owner.stdout.readline() == "running\n"
        groups = [path for root in Groups().roots for path in root.glob(f"onward-sandbox-{owner.pid}-*")]
        wait_until(lambda: len(sleepers(seconds)) >= 4, "the commands do not begin")
        assert groups
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    wait_until(lambda: not sleepers(seconds), "processes outlive their owner")
    Groups()  # as the next owner does
    assert not [group for group in groups if group.exists()]
    assert [line for line in mounts() - mounted if str(tmp_path) in line or "sandbox" in line] == []
    assert [path.name.partition("-")[0] for path in tmp_path.iterdir()] == ["runtime"]


def mounts() -> set[str]:
    """Return the lines of what is mounted; other tests mount things, too."""
    return set(Path("/proc/self/mounts").read_text().splitlines())


def wait_until(holds: Callable[[], bool], otherwise: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until, otherwise
        time.sleep(0.01)


def sleepers(seconds: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if words.endswith(f"sleep\0{seconds}\0".encode()):
            found.append(int(path.parent.name))
    return found


def test_a_group_of_a_living_owner_is_left_alone(tmp_path: Path) -> None:
    group = Groups(tmp_path).make(LIMITS)
    dead = tmp_path / f"onward-sandbox-{os.getpid()}-12345-0-1"
    dead.mkdir()
    assert cgroups.sweep([tmp_path]) == [dead]
    assert group.folders[0].exists()


def test_processes_of_another_namespace_are_not_killed_by_the_number_of_our_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "_EMPTIES_WITHIN_SECONDS", 0.02)
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, _: killed.append(pid))
    dead = tmp_path / f"onward-sandbox-{os.getpid()}-12345-0-1"
    dead.mkdir()
    (dead / "cgroup.procs").write_text("0\n12\n")
    with pytest.raises(InfrastructureFailure, match="does not end"):
        cgroups.sweep([tmp_path])
    assert set(killed) == {12}


def test_a_folder_that_a_killed_owner_left_unfinished_is_removed(tmp_path: Path) -> None:
    left = tmp_path / f"making-image.{os.getpid()}-12345.x"
    left.mkdir()
    (left / "file").touch()
    mine, other = owners.folder_in_the_making(tmp_path, "image"), owners.folder_in_the_making(tmp_path, "image")
    assert not left.exists()
    assert mine.exists()
    assert mine != other


def test_an_owner_who_lets_nobody_read_his_files_opens_one_all_the_same(tmp_path: Path) -> None:
    require_bubblewrap()
    (tmp_path / "workspace").mkdir()

    async def act() -> None:
        bubblewrap = Bubblewrap(tmp_path / "state")
        async with await bubblewrap.open(SandboxSpec(tmp_path / "workspace")) as sandbox:
            result = await sandbox.run(["sh", "-c", "touch new && ls /tmp /dev/shm"], timeout_seconds=PATIENCE_S)
            assert result.exit_code == 0, result

    before = os.umask(0o077)
    try:
        asyncio.run(act())
    finally:
        os.umask(before)
