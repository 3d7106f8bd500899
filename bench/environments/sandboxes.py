"""What a sandbox costs: 200 idle at once, some at work, one opened cold, one taken warm, a command in one that is open.

    python -m bench sandboxes [--rounds N] [--idle N] [--working N]

The floor is the same command as a bare process; the peers are bubblewrap and crun, where that is installed, each
started for the one command over the same programs, without copies, limits or a filter of calls. All take turns."""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil

from bench.table import Row, interleave, report
from environments.sandboxes.bubblewrap import program
from environments.sandboxes.bubblewrap.adapter import Bubblewrap
from environments.sandboxes.pool import Pool
from environments.sandboxes.sandbox import Limits, Sandbox, Sandboxes, SandboxSpec

COMMAND = ["/bin/true"]
AT_WORK = ["sha256sum", "/dev/zero"]  # never ends
MEASURED_WORK = ["sh", "-c", "head -c 67108864 /dev/zero | sha256sum"]
ROUNDS_AT_WORK = 5
LIMITS = Limits(memory_bytes=256 << 20, disk_bytes=64 << 20)
GOAL_MB, GOAL_WARM_MS, GOAL_COLD_MS = 15.0, 30.0, 250.0
PEER = ["--unshare-all", "--die-with-parent", "--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev"]
PEER += [word for name in ("bin", "lib", "lib64") for word in ("--symlink", f"usr/{name}", f"/{name}")]


class MadeAhead:
    """Opens sandboxes, and says when the last one is there: who expects one is told nothing."""

    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes
        self.last = asyncio.Event()

    async def open(self, spec: SandboxSpec) -> Sandbox:
        sandbox = await self._sandboxes.open(spec)
        self.last.set()
        return sandbox

    async def close(self) -> None:
        await self._sandboxes.close()


class Contenders:
    """Each method takes the milliseconds of one opening, one command and its end being known."""

    def __init__(self, runner: asyncio.Runner, directory: Path, spec: SandboxSpec) -> None:
        self._run = runner.run
        self._spec = spec
        self._bubblewrap = Bubblewrap(directory / "state")
        self._made_ahead = MadeAhead(Bubblewrap(directory / "state"))
        self._pool = Pool(self._made_ahead, most_open=4)
        self._bundle = _bundle(directory / "bundle") if shutil.which("crun") else None
        self._open = self._run(self._bubblewrap.open(spec))

    def cold(self) -> float:
        return self._run(self._one(self._bubblewrap.open))

    def warm(self) -> float:
        """Take one that was expected, and was made before the clock starts."""

        async def take() -> float:
            self._made_ahead.last.clear()
            self._pool.expect(self._spec)
            await self._made_ahead.last.wait()
            return await self._one(self._pool.open)

        return self._run(take())

    def command(self) -> float:
        async def act() -> float:
            begun = time.perf_counter()
            await self._open.run(COMMAND, timeout_seconds=60)
            return 1000 * (time.perf_counter() - begun)

        return self._run(act())

    def bare(self) -> float:
        return _milliseconds(COMMAND)

    def peer_bubblewrap(self) -> float:
        return _milliseconds([program.find(), *PEER, *COMMAND])

    def peer_crun(self) -> float:
        return _milliseconds(self._crun())

    def crun_runs(self) -> bool:
        """Tell whether crun is here and works: it refuses cgroups of both versions side by side."""
        if self._bundle is None:
            return False
        return subprocess.run(self._crun(), stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0

    def _crun(self) -> list[str]:
        name = f"bench-{time.monotonic_ns()}"
        return ["crun", "--cgroup-manager=disabled", "run", "--bundle", str(self._bundle), name]

    def close(self) -> None:
        self._run(self._bubblewrap.close())
        self._run(self._pool.close())

    async def _one(self, open_one: Callable[[SandboxSpec], Awaitable[Sandbox]]) -> float:
        begun = time.perf_counter()
        sandbox = await open_one(self._spec)
        result = await sandbox.run(COMMAND, timeout_seconds=60)
        taken = 1000 * (time.perf_counter() - begun)
        assert result.exit_code == 0, result
        await sandbox.close()
        return taken


async def idle(directory: Path, spec: SandboxSpec, count: int) -> tuple[float, float, float]:
    """Open so many. Return the MB of each, by its processes and by what the machine has less, and the seconds."""
    bubblewrap = Bubblewrap(directory / "state")
    first = await bubblewrap.open(spec)  # which makes what all share
    available, begun = psutil.virtual_memory().available, time.perf_counter()
    for _ in range(count // 4):
        await asyncio.gather(*(bubblewrap.open(spec) for _ in range(4)))
    seconds = time.perf_counter() - begun
    less = (available - psutil.virtual_memory().available) / 1e6 / count
    own = sum(_proportional_bytes(each) for each in psutil.Process().children(recursive=True)) / 1e6 / (count + 1)
    assert (await first.run(COMMAND, timeout_seconds=60)).exit_code == 0
    await bubblewrap.close()
    return own, less, seconds


async def working(directory: Path, spec: SandboxSpec, count: int) -> tuple[float, float, float]:
    """Open so many, in all of which something computes at once.

    Return the MB of each beside what runs in it, and the seconds that all take together for a piece of work, in
    sandboxes and as bare processes."""
    bubblewrap = Bubblewrap(directory / "state")
    all_of_them = [await bubblewrap.open(spec) for _ in range(count)]
    at_work = [asyncio.create_task(each.run(AT_WORK, timeout_seconds=600)) for each in all_of_them]
    while sum(map(_computes, found := psutil.Process().children(recursive=True))) < count:  # noqa: ASYNC110 - it runs
        await asyncio.sleep(0.1)
    own = sum(_proportional_bytes(each) for each in found if not _computes(each)) / 1e6 / count
    for task in at_work:
        task.cancel()
    await asyncio.gather(*at_work, return_exceptions=True)

    async def inside() -> None:
        for done in await asyncio.gather(*(each.run(MEASURED_WORK, timeout_seconds=600) for each in all_of_them)):
            assert done.exit_code == 0, done

    async def bare() -> None:
        quiet = asyncio.subprocess.DEVNULL
        started = [await asyncio.create_subprocess_exec(*MEASURED_WORK, stdout=quiet) for _ in range(count)]
        assert not any(await asyncio.gather(*(each.wait() for each in started)))

    taken: dict[str, list[float]] = {"inside": [], "bare": []}
    for _ in range(ROUNDS_AT_WORK):
        for name, work in (("inside", inside), ("bare", bare)):
            begun = time.perf_counter()
            await work()
            taken[name].append(time.perf_counter() - begun)
    await bubblewrap.close()
    return own, statistics.median(taken["inside"]), statistics.median(taken["bare"])


def _computes(process: psutil.Process) -> bool:
    """Tell whether a process is the work itself, and none of the sandbox's own."""
    try:
        return process.cmdline() == AT_WORK
    except psutil.NoSuchProcess:
        return False


def _proportional_bytes(process: psutil.Process) -> int:
    """Return a process's memory, with its share of what it shares."""
    text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    return 1024 * sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))


def _milliseconds(command: list[str]) -> float:
    begun = time.perf_counter()
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return 1000 * (time.perf_counter() - begun)


def _bundle(folder: Path) -> Path:
    """Return a bundle in which crun runs the command over this machine's programs."""
    root = folder / "rootfs"
    for name in ("usr", "proc", "dev", "sys"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    subprocess.run(["crun", "spec"], cwd=folder, check=True)
    config = json.loads((folder / "config.json").read_text())
    config["process"] |= {"args": COMMAND, "terminal": False}
    usr = {"destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro"]}
    config["mounts"].append(usr)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _workspace(folder: Path) -> Path:
    """Make a workspace of a small repository's size: a thousand files of 4 kB."""
    for number in range(1000):
        place = folder / f"folder{number % 20}" / f"file{number}.py"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"x = 1\n" * 700)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--idle", type=int, default=200)
    parser.add_argument("--working", type=int, default=8 * (os.cpu_count() or 1))
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp())
    try:
        with asyncio.Runner() as runner:
            spec = SandboxSpec(_workspace(directory / "workspace"), limits=LIMITS)
            own, less, seconds = runner.run(idle(directory, spec, options.idle))
            at_work = runner.run(working(directory, spec, options.working))
            contenders = Contenders(runner, directory, spec)
            names = ["cold", "warm", "command", "bare", "peer_bubblewrap"]
            names += ["peer_crun"] if contenders.crun_runs() else []
            found = interleave({name: getattr(contenders, name) for name in names}, options.rounds)
            contenders.close()
    finally:
        shutil.rmtree(directory)
    report("sandboxes", _rows(options.idle, own, less, seconds, found) + _rows_at_work(options.working, *at_work))


def _rows_at_work(count: int, own: float, inside: float, bare: float) -> list[Row]:
    metric = f"working sandbox, of {count} at once: own memory beside what runs in it (PSS)"
    return [
        Row.at_most(metric, own, "MB", f"{GOAL_MB:g} MB", own / GOAL_MB, 1.0),
        Row(f"{count} at work at once, 67 MB hashed in each", inside, "s", f"{bare:.2f} s bare", inside / bare),
    ]


def _rows(count: int, own: float, less: float, seconds: float, found: dict[str, float]) -> list[Row]:
    bare, bubblewrap, crun = found["bare"], found["peer_bubblewrap"], found.get("peer_crun")

    def time_row(metric: str, value: float, goal_ms: float) -> Row:
        return Row.at_most(metric, value, "ms", f"{goal_ms:g} ms", value / goal_ms, 1.0)

    return [
        Row.at_most(f"idle sandbox, of {count}: own memory (PSS)", own, "MB", f"{GOAL_MB:g} MB", own / GOAL_MB, 1.0),
        Row(f"idle sandbox, of {count}: what the machine has less", less, "MB"),
        Row(f"{count} opened, four at a time", seconds, "s"),
        time_row("warm: taken from the pool, and one command, p50", found["warm"], GOAL_WARM_MS),
        time_row("cold: opened, and one command, p50", found["cold"], GOAL_COLD_MS),
        Row(
            "cold against bubblewrap alone for one command",
            found["cold"],
            "ms",
            f"{bubblewrap:.1f} ms",
            found["cold"] / bubblewrap,
        ),
        Row("cold against crun for one command", None, "ms", "crun is not installed, or refuses this machine's cgroups")
        if crun is None
        else Row("cold against crun for one command", found["cold"], "ms", f"{crun:.1f} ms", found["cold"] / crun),
        Row(
            "one command in an open sandbox, p50, against a bare process",
            found["command"],
            "ms",
            f"{bare:.1f} ms",
            found["command"] / bare,
        ),
    ]


if __name__ == "__main__":
    main()
