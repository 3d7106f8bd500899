"""What was prepared in one sandbox is there in the next, and nowhere else."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import sandbox_kinds
from sandboxed import PATIENCE_S, require_bubblewrap, shared_directory

from environments.sandboxes.bubblewrap.adapter import Bubblewrap
from environments.sandboxes.bubblewrap.opened import BubblewrapSandbox
from environments.sandboxes.sandbox import Limits, SandboxSpec
from environments.sandboxes.snapshots import freeze

LIMITS = Limits(memory_bytes=64 << 20, disk_bytes=32 << 20)


@pytest.fixture(scope="module")
def state() -> Path:
    require_bubblewrap()
    return shared_directory()


@pytest.fixture(params=["machine", "image"])
def spec(request: pytest.FixtureRequest, state: Path, tmp_path: Path) -> SandboxSpec:
    workspace = tmp_path / "workspace"
    (workspace / "old").mkdir(parents=True)
    (workspace / "old" / "file").write_text("first")
    (workspace / "gone").write_text("")
    root = sandbox_kinds.image(tmp_path).root if request.param == "image" else None
    return SandboxSpec(workspace, root=root, limits=LIMITS)


async def shell(sandbox: BubblewrapSandbox, command: str) -> bytes:
    result = await sandbox.run(["/bin/sh", "-c", command], timeout_seconds=PATIENCE_S)
    return result.stdout + result.stderr


def within(state: Path, act: Callable[[Bubblewrap], Awaitable[None]]) -> None:
    async def work() -> None:
        bubblewrap = Bubblewrap(state)
        try:
            await act(bubblewrap)
        finally:
            await bubblewrap.close()

    asyncio.run(work())


def test_a_frozen_sandbox_is_where_the_next_ones_begin(state: Path, spec: SandboxSpec, tmp_path: Path) -> None:
    async def act(bubblewrap: Bubblewrap) -> None:
        prepared = await bubblewrap.open(spec)
        changes = "rm gone; echo second > new; rm -r old; mkdir old run; echo third > old/other; chmod 700 run"
        assert await shell(prepared, f"{changes}; echo kept > $HOME/kept; touch /tmp/left") == b""
        frozen = await freeze(prepared, tmp_path / "layers")
        for _ in range(2):
            async with await bubblewrap.open(frozen) as sandbox:
                seen = await shell(
                    sandbox, "ls; ls old; cat new $HOME/kept; echo more > run/more; echo x >> new; ls /tmp"
                )
                assert seen == b"new\nold\nrun\nother\nsecond\nkept\n" + (b"left\n" if spec.root else b"")
        async with await bubblewrap.open(spec) as sandbox:
            assert await shell(sandbox, "ls; cat old/file") == b"gone\nold\nfirst"

    within(state, act)


def test_layers_lie_on_one_another(state: Path, spec: SandboxSpec, tmp_path: Path) -> None:
    async def act(bubblewrap: Bubblewrap) -> None:
        frozen = spec
        for number in range(3):
            sandbox = await bubblewrap.open(frozen)
            await shell(
                sandbox, f"echo {number} >> log; rm -f gone; echo {number} > only{number}; rm -f only{number - 1}"
            )
            frozen = await freeze(sandbox, tmp_path / "layers")
        assert len(frozen.layers) == 3
        async with await bubblewrap.open(frozen) as sandbox:
            assert await shell(sandbox, "cat log; ls") == b"0\n1\n2\nlog\nold\nonly2\n"

    within(state, act)
