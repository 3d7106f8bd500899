"""Makes sandboxes by bubblewrap: over this machine's programs, or over an unpacked image."""

import asyncio
import contextlib
import marshal
import os
import random
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from environments.errors import InfrastructureFailure
from environments.sandboxes.bubblewrap import plan as plans
from environments.sandboxes.bubblewrap import program, runtime
from environments.sandboxes.bubblewrap.opened import BubblewrapSandbox
from environments.sandboxes.bubblewrap.waiting import readable
from environments.sandboxes.limits.cgroups import ControlGroup, Groups
from environments.sandboxes.sandbox import SandboxSpec

_ROOT = Path(__file__).resolve().parents[3]
_LAUNCH = (
    "import sys; sys.path.append(sys.argv.pop(1)); from environments.sandboxes.bubblewrap.launcher import main; main()"
)
_OPENS_WITHIN_SECONDS = 30.0
_FIRST_USER, _USERS = 0x70000000, 0x0FF00000  # ids that no file and no process of a machine has


class Bubblewrap:
    """Opens sandboxes from the event loop's own thread: they die with the thread that opened them, by the kernel.

    `directory` keeps what is made once for all of them. Where no cgroup can be written, opening fails, unless
    `rlimits_may_do`: then memory is limited for each process alone, and the share of the processors is not."""

    def __init__(self, directory: Path, *, rlimits_may_do: bool = False) -> None:
        self._directory = directory
        self._rlimits_may_do = rlimits_may_do
        self._open: set[BubblewrapSandbox] = set()
        self._closed = 0  # how often
        self._preparing = asyncio.Lock()
        self._made: Path | None = None
        self._groups: Groups | None = None
        self._next_user = random.randrange(_USERS)

    async def open(self, spec: SandboxSpec) -> BubblewrapSandbox:
        closed_before = self._closed
        async with self._preparing:
            if self._made is None:
                await asyncio.to_thread(self._prepare)
        async with contextlib.AsyncExitStack() as undo:
            group = self._groups.make(spec.limits) if self._groups is not None else None
            if group is not None:
                undo.push_async_callback(asyncio.to_thread, group.remove)
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            undo.callback(ours.close)
            ours.setblocking(False)
            with theirs, tempfile.TemporaryFile() as said:
                process = self._start(spec, theirs.fileno(), group, said.fileno())
                undo.push_async_callback(_kill, process)
                theirs.close()
                await _introduced(ours, said.fileno())
            undo.pop_all()
        sandbox = BubblewrapSandbox(spec, process, ours, group, self._open.discard)
        self._open.add(sandbox)
        if self._closed > closed_before:  # and nobody would close this one
            await sandbox.close()
            raise InfrastructureFailure("sandbox", "all were closed while it was made")
        return sandbox

    async def close(self) -> None:
        self._closed += 1
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._open)))

    def _prepare(self) -> None:
        """Make what all of them share. The limits are found first: without them nothing is opened."""
        try:
            self._groups = Groups()
        except InfrastructureFailure:
            if not self._rlimits_may_do:
                raise
        self._made = runtime.build(self._directory)

    def _start(self, spec: SandboxSpec, control: int, group: ControlGroup | None, said: int) -> subprocess.Popen[bytes]:
        assert self._made is not None
        plan = plans.Plan(
            program.find(),
            program.libraries(),
            filters=(str(self._made / "filter.0"), str(self._made / "filter.1")),
            user=self._user(),
            disk_bytes=spec.limits.disk_bytes,
            processes=spec.limits.processes,
            most_bytes=None if group is not None else spec.limits.memory_bytes,
        )
        with contextlib.ExitStack() as given:
            entrances = given.enter_context(group.entrances()) if group is not None else []
            plans.fill(plan, spec, self._made, control, entrances)
            return _launched(plan, [control, *entrances], said)

    def _user(self) -> int | None:
        """Return an id for the sandbox's processes that no other has; root alone can run as somebody else."""
        if os.geteuid() != 0:
            return None
        self._next_user = (self._next_user + 1) % _USERS
        return _FIRST_USER + self._next_user


def _launched(plan: plans.Plan, handed_on: list[int], said: int) -> subprocess.Popen[bytes]:
    """Start the launcher with a plan; the first of what is handed on is its control socket."""
    told = os.memfd_create("plan")
    try:
        os.write(told, marshal.dumps(plan.written()))
        os.lseek(told, 0, os.SEEK_SET)
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-c", _LAUNCH, str(_ROOT), str(told), str(handed_on[0])],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            pass_fds=[told, *handed_on],
            env={},
        )
    except OSError as error:
        raise InfrastructureFailure("sandbox", f"it cannot be started: {error}") from error
    finally:
        os.close(told)


async def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    await asyncio.to_thread(process.wait)


async def _introduced(control: socket.socket, said: int) -> None:
    """Wait until the supervisor serves. Raises InfrastructureFailure."""
    try:
        async with asyncio.timeout(_OPENS_WITHIN_SECONDS):
            await readable(control.fileno())
    except TimeoutError:
        raise InfrastructureFailure("sandbox", f"it was not ready within {_OPENS_WITHIN_SECONDS:.0f} s") from None
    if control.recv(16) != b"ready":
        why = os.pread(said, 1000, 0).decode(errors="replace").strip()
        raise InfrastructureFailure("sandbox", f"it cannot be made: {why or 'its first process ended'}")
