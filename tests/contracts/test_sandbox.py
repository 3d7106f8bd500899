"""The contract of every sandbox, run over each kind: this machine's programs, an unpacked image, and a pool of both."""

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import sandbox_kinds
from sandboxed import PATIENCE_S, require_bubblewrap, shared_directory

from environments.errors import InfrastructureFailure
from environments.sandboxes.bubblewrap.adapter import Bubblewrap
from environments.sandboxes.pool import Pool
from environments.sandboxes.sandbox import CommandResult, Limits, Sandbox, Sandboxes, SandboxSpec

SMALL = Limits(memory_bytes=64 << 20, disk_bytes=32 << 20, processes=32, output_bytes=10_000)


@pytest.fixture(scope="module")
def shared() -> Path:
    require_bubblewrap()
    return shared_directory()


@pytest.fixture(scope="module")
def image_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sandbox_kinds.image(tmp_path_factory.mktemp("image")).root


@pytest.fixture(params=["bubblewrap", "image", pytest.param("pool", marks=pytest.mark.deep)])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def spec(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> SandboxSpec:
    workspace = tmp_path / "workspace"
    (workspace / "folder").mkdir(parents=True)
    (workspace / "file").write_text("of the machine\n")
    made = SandboxSpec(workspace, limits=SMALL, environment={"GIVEN": "told"})
    return replace(made, root=request.getfixturevalue("image_root")) if kind == "image" else made


@pytest.fixture
def within(kind: str, spec: SandboxSpec, shared: Path) -> Callable[[Callable[[Sandbox], Awaitable[None]]], None]:
    """Return a function that opens a sandbox, does something in it, and closes all."""

    def use(act: Callable[[Sandbox], Awaitable[None]]) -> None:
        async def work() -> None:
            sandboxes: Sandboxes = Bubblewrap(shared)
            if kind == "pool":
                pool = Pool(sandboxes, most_open=1)
                pool.expect(spec)
                sandboxes = pool
            try:
                async with await sandboxes.open(spec) as sandbox:
                    await act(sandbox)
            finally:
                await sandboxes.close()

        asyncio.run(work())

    return use


Within = Callable[[Callable[[Sandbox], Awaitable[None]]], None]


async def shell(sandbox: Sandbox, command: str, timeout_seconds: float = PATIENCE_S) -> CommandResult:
    return await sandbox.run(["sh", "-c", command], timeout_seconds=timeout_seconds)


def test_a_command_runs_in_the_workspace_and_tells_how_it_ended(within: Within) -> None:
    async def act(sandbox: Sandbox) -> None:
        before = time.time()
        result = await shell(sandbox, "cat file; echo wrong >&2; exit 3")
        assert (result.exit_code, result.stdout, result.stderr) == (3, b"of the machine\n", b"wrong\n")
        assert before <= result.started_at <= result.ended_at <= time.time()
        assert not result.timed_out
        assert not result.out_of_memory
        assert result.cut_bytes == 0
        assert (await shell(sandbox, "kill -TERM $$")).exit_code == 128 + 15
        assert (await sandbox.run(["no-such-program"], timeout_seconds=PATIENCE_S)).exit_code == 127
        assert (await sandbox.run(["/workspace/file"], timeout_seconds=PATIENCE_S)).exit_code == 126

    within(act)


def test_stdin_place_and_environment_are_as_asked_for(within: Within) -> None:
    async def act(sandbox: Sandbox) -> None:
        text = os.urandom(300_000)
        result = await sandbox.run(["cat"], timeout_seconds=PATIENCE_S, stdin=text)
        assert result.stdout == text[:10_000]
        assert result.cut_bytes == 290_000
        told = await sandbox.run(
            ["sh", "-c", "echo $GIVEN $MORE $PWD; cat"],
            timeout_seconds=PATIENCE_S,
            workdir="folder",
            environment={"MORE": "x"},
        )
        assert told.stdout == b"told x /workspace/folder\n"
        assert (await sandbox.run(["sh", "-c", "pwd"], timeout_seconds=PATIENCE_S, workdir="/dev")).stdout == b"/dev\n"

    within(act)


def test_the_environment_of_this_process_is_not_told(within: Within, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "of-the-machine")

    async def act(sandbox: Sandbox) -> None:
        seen = (await shell(sandbox, "env; cat /proc/*/environ")).stdout
        assert b"GIVEN=told" in seen
        assert b"of-the-machine" not in seen

    within(act)


def test_the_workspace_is_copied_on_write(within: Within, spec: SandboxSpec) -> None:
    async def act(sandbox: Sandbox) -> None:
        assert (await shell(sandbox, "echo more >> file; rm -r folder; touch new")).exit_code == 0
        assert await sandbox.read("file") == b"of the machine\nmore\n"
        assert (await shell(sandbox, "ls")).stdout == b"file\nnew\n"

    within(act)
    within(act)  # a second one finds it as the first did
    assert spec.workspace is not None
    assert sorted(path.name for path in spec.workspace.iterdir()) == ["file", "folder"]
    assert (spec.workspace / "file").read_text() == "of the machine\n"


def test_files_are_written_and_read_as_a_program_sees_them(within: Within) -> None:
    async def act(sandbox: Sandbox) -> None:
        await sandbox.write("a/b/run", b"#!/bin/sh\necho ran\n", executable=True)
        assert (await sandbox.run(["/workspace/a/b/run"], timeout_seconds=PATIENCE_S)).stdout == b"ran\n"
        await sandbox.write("a/b/run", b"short")
        assert await sandbox.read("/workspace/a/b/run") == b"short"
        large = os.urandom(3_000_000)
        await sandbox.write("large", large)
        assert await sandbox.read("large") == large
        with pytest.raises(FileNotFoundError):
            await sandbox.read("nothing")
        with pytest.raises(IsADirectoryError):
            await sandbox.read("folder")
        await shell(sandbox, "touch closed; chmod 0 closed")
        with pytest.raises(PermissionError):
            await sandbox.read("closed")
        with pytest.raises(OSError, match=r"Read-only|denied"):
            await sandbox.write("/proc/version", b"other")

    within(act)


def test_a_folder_is_copied_in(within: Within, tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    (tests / "deep").mkdir(parents=True)
    (tests / "deep" / "test.sh").write_text("#!/bin/sh\necho tested\n")
    (tests / "deep" / "test.sh").chmod(0o755)
    (tests / "link").symlink_to("deep/test.sh")

    async def act(sandbox: Sandbox) -> None:
        await shell(sandbox, "mkdir -p t/deep other; ln -s ../../other/gone t/deep/test.sh; ln -s other t/extra")
        await sandbox.copy_in(tests, "t")
        assert (await sandbox.run(["/workspace/t/link"], timeout_seconds=PATIENCE_S)).stdout == b"tested\n"
        assert (await shell(sandbox, "ls other; ls t")).stdout == b"deep\nextra\nlink\n"

    within(act)


def test_what_is_removed_is_no_folder_that_holds_more_and_no_link_that_leads_where_it_should(within: Within) -> None:
    async def act(sandbox: Sandbox) -> None:
        await shell(sandbox, "mkdir -p goes/in stays; touch goes/in/file stays/more here; ln -s here to; ln -s here on")
        gone = ["goes", "goes/in", "goes/in/file", "stays", "to", "/workspace/on", "nothing", "here/nothing"]
        await sandbox.remove(gone, {"to": "here", "/workspace/on": "elsewhere"})
        assert (await shell(sandbox, "ls . stays")).stdout == b".:\nfile\nfolder\nhere\nstays\nto\n\nstays:\nmore\n"
        with pytest.raises(OSError, match=r"Read-only|denied|permitted"):
            await sandbox.remove(["/proc/version"], {})

    within(act)


def test_folders_of_this_machine_are_shown_read_only(within: Within, spec: SandboxSpec, tmp_path: Path) -> None:
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "module").write_text("shared\n")
    for path in (tmp_path / "library", tmp_path / "library" / "module"):
        path.chmod(0o777)
    spec.folders["/opt/library"] = tmp_path / "library"  # type: ignore[index]

    async def act(sandbox: Sandbox) -> None:
        result = await shell(
            sandbox, "cat /opt/library/module; echo more >> /opt/library/module; rm /opt/library/module"
        )
        assert result.stdout == b"shared\n"
        assert result.stderr.count(b"Read-only file system") == 2

    within(act)
    assert (tmp_path / "library" / "module").read_text() == "shared\n"


@pytest.mark.parametrize("asked", [False, True])
def test_the_network_is_there_where_it_is_asked_for_alone(
    kind: str, spec: SandboxSpec, shared: Path, asked: bool
) -> None:
    async def work() -> None:
        bubblewrap = Bubblewrap(shared)
        async with await bubblewrap.open(replace(spec, network=asked)) as sandbox:
            interfaces = (await shell(sandbox, "cat /proc/net/dev")).stdout.decode()
        await bubblewrap.close()
        names = {line.partition(":")[0].strip() for line in interfaces.splitlines()[2:]}
        assert names == ({name for _, name in socket.if_nameindex()} if asked else {"lo"})

    asyncio.run(work())


def test_commands_run_side_by_side(within: Within) -> None:
    """Each waits for what the other one does: one after the other, neither would come to its end."""

    async def act(sandbox: Sandbox) -> None:
        first = shell(sandbox, "touch one; while ! test -e two; do sleep 0.01; done; echo first")
        second = shell(sandbox, "touch two; while ! test -e one; do sleep 0.01; done; echo second")
        results = await asyncio.gather(first, second)
        assert [result.stdout for result in results] == [b"first\n", b"second\n"]

    within(act)


def test_a_timeout_ends_all_that_the_command_started_and_nothing_else(within: Within) -> None:
    tree = "(trap '' TERM HUP; sleep 1001) & sleep 1002 & sh -c 'sleep 1003 & sleep 1004' & echo begun; wait"

    async def act(sandbox: Sandbox) -> None:
        beside = asyncio.create_task(shell(sandbox, "while ! test -e over; do sleep 0.01; done; echo whole"))
        for seconds in (0.3, 10, 60):  # a busy machine takes its time to begin
            result = await shell(sandbox, tree, timeout_seconds=seconds)
            assert (result.exit_code, result.timed_out) == (137, True)
            if result.stdout:
                break
        assert result.stdout == b"begun\n"
        await sandbox.write("over", b"")
        assert (await beside).stdout == b"whole\n"
        assert b"100" not in (await shell(sandbox, "cat /proc/[0-9]*/cmdline")).stdout

    within(act)


def test_what_a_command_leaves_running_runs_on_and_holds_nobody_up(within: Within) -> None:
    async def act(sandbox: Sandbox) -> None:
        result = await shell(sandbox, "(sleep 0.2; touch later; sleep 1000) & echo left")
        assert (result.stdout, result.timed_out) == (b"left\n", False)
        assert (await shell(sandbox, "while ! test -e later; do sleep 0.01; done")).exit_code == 0

    within(act)


def test_all_commands_can_be_ended_and_files_stay(within: Within) -> None:
    async def act(sandbox: Sandbox) -> None:
        waiting = asyncio.create_task(shell(sandbox, "touch kept; while true; do sleep 1006 & wait; done"))
        await shell(sandbox, "while ! test -e kept; do sleep 0.01; done; (trap '' TERM; sleep 1007) &")
        await sandbox.end_commands()
        assert (await waiting).exit_code == 137
        seen = await shell(sandbox, "ls; cat /proc/[0-9]*/cmdline")
        assert b"kept\n" in seen.stdout
        assert b"100" not in seen.stdout

    within(act)


def test_a_caller_who_is_cancelled_ends_the_command(within: Within) -> None:
    async def act(sandbox: Sandbox) -> None:
        running = asyncio.create_task(shell(sandbox, "touch begun; sleep 1005"))
        await shell(sandbox, "while ! test -e begun; do sleep 0.01; done")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        async with asyncio.timeout(PATIENCE_S):
            while b"1005" in (await shell(sandbox, "cat /proc/[0-9]*/cmdline")).stdout:
                pass

    within(act)


def test_output_is_cut(within: Within) -> None:
    async def act(sandbox: Sandbox) -> None:
        result = await shell(sandbox, "seq 1 5000; seq 1 5000 >&2")
        assert len(result.stdout) == len(result.stderr) == 10_000
        assert result.cut_bytes == 2 * (23_893 - 10_000)
        assert result.exit_code == 0

    within(act)


def test_memory_processes_and_disk_are_limited(within: Within) -> None:
    async def act(sandbox: Sandbox) -> None:
        greedy = await shell(sandbox, "dd if=/dev/zero of=/dev/null bs=500M count=1")
        assert greedy.out_of_memory
        assert greedy.exit_code == 137
        assert not (await shell(sandbox, "echo fine")).out_of_memory
        full = await shell(sandbox, "dd if=/dev/zero of=full bs=1M count=100; rm full")
        assert b"No space left" in full.stderr
        many = await shell(sandbox, "for i in $(seq 1 100); do sleep 30 & done; wait")
        assert b"fork" in many.stderr
        assert (await shell(sandbox, "ulimit -n 4096; ulimit -Hn")).stdout == b"1024\n"  # the machine has one table
        assert (await shell(sandbox, "echo alive")).stdout == b"alive\n"

    within(act)


def test_closing_ends_everything_and_is_harmless_twice(within: Within, spec: SandboxSpec) -> None:
    async def act(sandbox: Sandbox) -> None:
        running = asyncio.create_task(shell(sandbox, "touch begun; sleep 987654"))
        await shell(sandbox, "while ! test -e begun; do sleep 0.01; done; (sleep 987654 &) &")
        await sandbox.close()
        await sandbox.close()
        with pytest.raises(InfrastructureFailure):
            await running
        with pytest.raises(InfrastructureFailure):
            await shell(sandbox, "true")

    within(act)
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if b"987654" in _read(path)]


def test_what_cannot_be_opened_says_so(kind: str, spec: SandboxSpec, shared: Path, tmp_path: Path) -> None:
    async def act() -> None:
        sandboxes = Bubblewrap(shared)
        with pytest.raises(InfrastructureFailure, match="nowhere"):
            await sandboxes.open(replace(spec, workspace=tmp_path / "nowhere"))
        await sandboxes.close()

    asyncio.run(act())


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
