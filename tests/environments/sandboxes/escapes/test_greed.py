"""Attempts to use up the machine, or to stay on it: each in a sandbox of its own, and judged from outside."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from sandboxed import PATIENCE_S, require_bubblewrap
from world import LIBRARY, World, attempt, escapes, world

from environments.sandboxes.bubblewrap.adapter import Bubblewrap
from environments.sandboxes.bubblewrap.opened import BubblewrapSandbox
from environments.sandboxes.limits import cgroups
from environments.sandboxes.sandbox import Limits, SandboxSpec

MB = 1 << 20
LIMITS = Limits(memory_bytes=64 * MB, disk_bytes=32 * MB, processes=24, output_bytes=100_000, cpus=0.5)


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[World]:
    require_bubblewrap()
    (tmp_path / "world").mkdir()
    with world(tmp_path / "world") as made:
        yield made


@asynccontextmanager
async def opened(outside: World, limits: Limits = LIMITS) -> AsyncIterator[BubblewrapSandbox]:
    bubblewrap = Bubblewrap(outside.folder.parent / "state")
    try:
        yield await bubblewrap.open(SandboxSpec(outside.workspace, folders=LIBRARY, limits=limits))
    finally:
        await bubblewrap.close()


def groups() -> list[Path]:
    """Return the control groups of sandboxes that there are now."""
    roots = cgroups.Groups().roots
    return [path for root in roots for path in root.glob(f"onward-sandbox-{os.getpid()}-*")]


def read(*names: str) -> int:
    """Return the largest number in files of these names, by version, among this process's sandboxes."""
    files = [group / name for group in groups() for name in names]
    return max(int(file.read_text()) for file in files if file.exists())


def inside_processes() -> list[psutil.Process]:
    """Return this process's descendants that see other processes than it does, which services of other tests do not."""
    own = namespace(os.getpid())
    return [each for each in psutil.Process().children(recursive=True) if namespace(each.pid) not in (None, own)]


def namespace(pid: int) -> str | None:
    """Return the namespace of a process's ids; None where it has ended."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None


HUNGER = {
    "memory": "kept = [bytearray(1 << 20) for _ in range(4000)]; escaped()",
    "memory of files": """
fd = os.memfd_create('x')
each(lambda: [os.write(fd, bytes(1 << 20)) for _ in range(4000)] and escaped())""",
    "shared memory": "each(lambda: [put(f'/dev/shm/{n}', 'x' * (1 << 20)) for n in range(4000)] and escaped())",
    "disk": "each(lambda: [put(f'f{n}', 'x' * (1 << 20)) for n in range(4000)] and escaped())",
    "disk by holes": """
fd = os.open('f', os.O_RDWR | os.O_CREAT)
each(lambda: os.posix_fallocate(fd, 0, 1 << 32) or escaped())""",
    "files": "each(lambda: [put(f'/tmp/f{n}', '') for n in range(100_000)] and escaped())",
    "devices' folder": "each(lambda: [put(f'/dev/f{n}', 'x') for n in range(10)] and escaped())",
    "pipes": """
def fill():
    reader, writer = os.pipe2(os.O_NONBLOCK)
    libc.fcntl(writer, 1031, 1 << 20)
    os.write(writer, bytes(1 << 20))
each(lambda: [fill() for _ in range(2000)])""",
}


@pytest.mark.parametrize("code", HUNGER.values(), ids=HUNGER)
def test_nobody_takes_more_than_the_limits(outside: World, code: str) -> None:
    async def act() -> None:
        async with opened(outside) as sandbox:
            result = await attempt(sandbox, code, outside)
            assert escapes(result, outside) == []
            assert read("memory.max_usage_in_bytes", "memory.peak") <= LIMITS.memory_bytes + LIMITS.disk_bytes
            assert (
                await sandbox.run(["/bin/true"], timeout_seconds=PATIENCE_S)
            ).exit_code == 0  # and it is still of use

    asyncio.run(act())


def test_a_fork_bomb_is_small_and_ends_with_its_time(outside: World) -> None:
    async def act() -> None:
        async with opened(outside) as sandbox:
            most = 0
            for seconds in (2, 10, 60):  # a busy machine takes its time to begin
                code = "while True:\n  each(os.fork)"
                bomb = asyncio.create_task(attempt(sandbox, code, outside, timeout_seconds=seconds))
                while not bomb.done():
                    most = max(most, read("pids.current"))
                    await asyncio.sleep(0.02)
                assert (await bomb).timed_out
                if most > 10:
                    break
            assert 10 < most <= LIMITS.processes
            await until(lambda: read("pids.current") == 0)
            assert (await sandbox.run(["/bin/true"], timeout_seconds=PATIENCE_S)).exit_code == 0

    asyncio.run(act())


def test_zombies_are_counted_and_go_with_their_parent(outside: World) -> None:
    code = "while True:\n  try:\n    os.fork() or os._exit(0)\n  except OSError:\n    break\ntime.sleep(100)"

    async def act() -> None:
        async with opened(outside) as sandbox:
            assert (await attempt(sandbox, code, outside, timeout_seconds=1.5)).timed_out
            await until(lambda: read("pids.current") == 0)

    asyncio.run(act())


WAYS_TO_STAY = {
    "daemon": "os.fork() and os._exit(0)\nos.setsid()\nos.fork() and os._exit(0)",
    "deaf daemon": """
for n in range(1, 32):
    n in (9, 19) or signal.signal(n, signal.SIG_IGN)
os.fork() and os._exit(0)""",
    "killer of its watcher": "os.fork() or (time.sleep(0.2), os.kill(os.getppid(), 9))\n",
}


@pytest.mark.parametrize("way", WAYS_TO_STAY.values(), ids=WAYS_TO_STAY)
def test_nobody_outlives_the_sandbox(outside: World, way: str) -> None:
    async def act() -> None:
        async with opened(outside) as sandbox:
            code = f"watcher = os.getppid()\n{way}\nfor n in range(3): os.close(n)\ntime.sleep(1000)"
            await attempt(sandbox, code, outside, timeout_seconds=1.0)
            assert inside_processes()
        assert not inside_processes()
        assert not groups()

    asyncio.run(act())


def test_who_kills_the_process_that_watches_over_him_dies_with_all_his(outside: World) -> None:
    code = """
if os.fork() == 0:
    os.setsid()
    os.fork()
    time.sleep(1000)
os.kill(os.getppid(), 9)
time.sleep(1000)"""

    async def act() -> None:
        async with opened(outside) as sandbox:
            result = await attempt(sandbox, code, outside)
            assert result.exit_code == 137
            assert not result.timed_out
            await until(lambda: read("pids.current") == 0)

    asyncio.run(act())


STOPPERS = {
    "his watcher": "os.kill(os.getppid(), 19)",
    "everybody, again and again": "while True:\n  os.kill(-1, 19)",
    "and is woken by another": "while os.fork() or True:\n  os.kill(-1, 18); os.kill(os.getppid(), 19)",
}


@pytest.mark.parametrize("code", STOPPERS.values(), ids=STOPPERS)
def test_who_stops_others_is_ended_with_his_time(outside: World, code: str) -> None:
    async def act() -> None:
        async with opened(outside) as sandbox:
            result = await attempt(
                sandbox, f"each(lambda: exec({code!r}))\ntime.sleep(1000)", outside, timeout_seconds=1
            )
            assert result.timed_out or result.exit_code == 137
            await sandbox.end_commands()
            await until(lambda: read("pids.current") == 0)
            assert (await sandbox.run(["/bin/true"], timeout_seconds=PATIENCE_S)).exit_code == 0

    asyncio.run(act())


def test_all_are_ended_where_there_is_no_room_for_one_more(outside: World) -> None:
    async def act() -> None:
        async with opened(outside) as sandbox:
            bomb = asyncio.create_task(attempt(sandbox, "while True:\n  each(os.fork)", outside))
            await until(lambda: read("pids.current") == LIMITS.processes)
            await sandbox.end_commands()
            assert (await bomb).exit_code == 137
            await until(lambda: read("pids.current") == 0)
            assert (await sandbox.run(["/bin/true"], timeout_seconds=PATIENCE_S)).exit_code == 0

    asyncio.run(act())


def test_a_command_cannot_tell_its_own_end(outside: World) -> None:
    code = """
for number in range(3, 200):
    each(lambda: os.write(number, b'{"exit_code": 0, "started_at": 0, "ended_at": 0}'))
sys.exit(3)"""

    async def act() -> None:
        async with opened(outside) as sandbox:
            result = await attempt(sandbox, code, outside)
            assert result.exit_code == 3
            assert result.started_at > 0

    asyncio.run(act())


LINKS = {
    "a link to a file": "os.symlink(world['secret'], 'place')",
    "a link to a folder": "os.symlink(world['home'], 'place')",
    "a link to this machine's root by a process": "os.symlink('/proc/1/root' + world['secret'], 'place')",
    "a pipe": "os.mkfifo('place')",
    "a device that never ends": "os.symlink('/dev/zero', 'place')",
    "a file that never ends": "os.truncate(os.open('place', os.O_CREAT | os.O_RDWR), 1 << 40)",
}


@pytest.mark.parametrize("trap", LINKS.values(), ids=LINKS)
def test_what_lies_in_wait_for_the_owner_leads_nowhere(outside: World, trap: str) -> None:
    async def act() -> None:
        async with opened(outside) as sandbox:
            await attempt(sandbox, trap, outside)
            for use in (sandbox.read("place"), sandbox.read("place/secret"), sandbox.write("place/canary", b"changed")):
                found = await quietly(use)
                assert outside.token.encode() not in (found or b"")
            await quietly(sandbox.write("place", b"changed"))
            await quietly(sandbox.copy_in(outside.workspace, "place"))
            assert outside.touched() == []

    asyncio.run(act())


async def quietly(use: Awaitable[bytes | None]) -> bytes | None:
    try:
        return await use
    except OSError:
        return None


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - the kernel tells nobody
            await asyncio.sleep(0.01)
