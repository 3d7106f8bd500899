"""Layers appear whole or not at all, also where who makes them is killed, and with the rights of no machine's root."""

import asyncio
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sandboxed import PATIENCE_S
from task_folders import base_of

from environments.errors import InfrastructureFailure
from environments.sandboxes.bubblewrap import program
from environments.tasks.images.layers import Layers, Step

ROOT = Path(__file__).resolve().parents[4]
ENVIRONMENT = {"PATH": "/usr/bin:/bin"}
MAKE = """
import asyncio, sys
from pathlib import Path
from environments.tasks.images.layers import Layers, Step
step = Step(("sleep", sys.argv[3]), {"PATH": "/usr/bin:/bin"}, "/")
asyncio.run(Layers(Path(sys.argv[1])).made("key", Path(sys.argv[2]), (), step, 600))
"""


def running(duration: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if words[:2] == [b"sleep", duration.encode()]:
            found.append(path.parent.name)
    return found


def wait_until(wanted: bool, duration: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while bool(running(duration)) is not wanted:
        assert time.monotonic() < until, f"sleep {duration}: {'not' if wanted else 'still'} there"
        time.sleep(0.02)


def test_a_killed_maker_leaves_no_process_and_no_layer(tmp_path: Path, images: Path) -> None:
    root = base_of(images)
    duration = f"86{os.getpid()}"  # no other process sleeps so long
    command = [sys.executable, "-c", MAKE, str(tmp_path / "layers"), str(root), duration]
    maker = subprocess.Popen(command, cwd=ROOT)
    wait_until(True, duration)
    maker.send_signal(signal.SIGKILL)
    maker.wait()
    wait_until(False, duration)
    assert not (tmp_path / "layers" / "key").exists()

    step = Step(("sh", "-c", "echo made >/made.txt; rm /usr/bin/env"), ENVIRONMENT, "/")
    layer = asyncio.run(Layers(tmp_path / "layers").made("key", root, (), step, PATIENCE_S))
    assert (layer / "root" / "made.txt").read_text() == "made\n"
    assert (root / "usr" / "bin" / "env").exists()
    assert {path.name for path in layer.parent.iterdir()} == {"key", ".key.lock"}


def test_who_waits_for_a_layer_takes_no_thread_from_who_makes_it(tmp_path: Path, images: Path) -> None:
    root, layers = base_of(images), Layers(tmp_path / "layers")
    step = Step(("sh", "-c", "echo made >>/made.txt"), ENVIRONMENT, "/")

    async def run() -> list[Path]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        asked = (layers.made("key", root, (), step, PATIENCE_S) for _ in range(3))
        return await asyncio.wait_for(asyncio.gather(*asked), 120)

    first, *others = asyncio.run(run())
    assert others == [first, first]
    assert stat.S_IMODE(first.parent.stat().st_mode) == 0o700
    assert (first / "root" / "made.txt").read_text() == "made\n"


def test_a_step_can_neither_mount_nor_make_devices_nor_read_our_keys(
    tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY_OF_OURS", "secret")
    script = "mkdir /m; mount -t tmpfs none /m && touch /mounted; mknod /disk b 8 0 && touch /made; chown 1:1 /m"
    script += "; grep A_KEY /proc/*/environ && touch /read; cat /proc/self/status /proc/self/cgroup >/itself"
    step = Step(("sh", "-c", script), ENVIRONMENT, "/")
    layer = asyncio.run(Layers(tmp_path / "layers").made("key", base_of(images), (), step, PATIENCE_S))
    assert {path.name for path in (layer / "root").iterdir()} & {"m", "mounted", "disk", "made", "read"} == {"m"}
    itself = (layer / "root" / "itself").read_text()
    assert "Seccomp_filters:\t2" in itself
    assert f"onward-sandbox-{os.getpid()}-" in itself


def test_a_step_is_ended_before_the_disk_is_full(tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("environments.tasks.images.layers._LEAST_FREE_BYTES", 1 << 60)
    step = Step(("sh", "-c", "while :; do echo filling; done"), ENVIRONMENT, "/", says="line 2")
    with pytest.raises(InfrastructureFailure, match=r"line 2: left less than .* free on the disk: .*filling"):
        asyncio.run(Layers(tmp_path / "layers").made("key", base_of(images), (), step, PATIENCE_S))
    assert {path.name for path in (tmp_path / "layers").iterdir()} == {".key.lock"}


def test_an_unpacked_bubblewrap_does(tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked, tools = tmp_path / "unpacked", tmp_path / "tools"
    for folder in (unpacked / "bin", unpacked / "lib" / "x86_64-linux-gnu", tools):
        folder.mkdir(parents=True)
    (unpacked / "bin" / "bwrap").symlink_to(program.find())
    for name in ("sh", "mount", "unshare", "env"):
        found = shutil.which(name)
        assert found is not None
        (tools / name).symlink_to(found)
    root = base_of(images)
    monkeypatch.setattr(program, "_UNPACKED", unpacked)
    monkeypatch.setenv("PATH", str(tools))
    step = Step(("sh", "-c", 'echo "[$LD_LIBRARY_PATH]" >/made.txt'), ENVIRONMENT, "/")
    layer = asyncio.run(Layers(tmp_path / "layers").made("key", root, (), step, PATIENCE_S))
    assert (layer / "root" / "made.txt").read_text() == "[]\n"
