"""Bubblewrap's sandboxes at the edges of their lives, and what is whose failure."""

import ast
import asyncio
import errno
import inspect
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from sandboxed import require_bubblewrap, shared_directory
from shown_examples import SANDBOX, of_test

from environments.errors import InfrastructureFailure
from environments.sandboxes.bubblewrap import opened
from environments.sandboxes.bubblewrap.adapter import Bubblewrap
from environments.sandboxes.bubblewrap.opened import BubblewrapSandbox
from environments.sandboxes.sandbox import Limits, SandboxSpec


@pytest.fixture
def sandboxes() -> Bubblewrap:
    require_bubblewrap()
    return Bubblewrap(shared_directory())


def test_the_lines_of_the_page_open_one(sandboxes: Bubblewrap, tmp_path: Path) -> None:
    """Those of docs/environments/sandboxes.md, for a repository with one test."""
    (tmp_path / "test_one.py").write_text(
        "import unittest\n\nclass One(unittest.TestCase):\n    def test_it(self): pass\n"
    )
    (example,) = of_test(SANDBOX, "docs/environments/sandboxes.md")
    names = {"directory": shared_directory(), "repository": tmp_path}

    async def work() -> None:
        running = eval(compile(example.text, example.page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
        assert inspect.iscoroutine(running)
        try:
            await running
        finally:
            await names["pool"].close()

    asyncio.run(work())
    result = names["result"]
    assert (result.exit_code, b"OK" in result.stderr) == (0, True), result


def test_what_opens_while_all_are_closed_is_closed_too(sandboxes: Bubblewrap, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[BubblewrapSandbox] = []
    close = BubblewrapSandbox.close

    async def noted(self: BubblewrapSandbox) -> None:
        await close(self)
        closed.append(self)

    monkeypatch.setattr(BubblewrapSandbox, "close", noted)

    async def work() -> None:
        opening = asyncio.create_task(sandboxes.open(SandboxSpec()))
        await asyncio.sleep(0)
        await sandboxes.close()
        with pytest.raises(InfrastructureFailure, match="closed while it was made"):
            await opening
        assert [sandbox._process.returncode for sandbox in closed] == [0]
        await (await sandboxes.open(SandboxSpec())).close()

    asyncio.run(work())


def test_layers_want_a_root_that_they_lie_over(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no root that they lie over"):
        SandboxSpec(layers=(tmp_path,))


def test_a_folder_of_this_machine_that_cannot_be_packed_is_the_disks_failure(
    sandboxes: Bubblewrap, tmp_path: Path
) -> None:
    async def work() -> None:
        async with await sandboxes.open(SandboxSpec()) as sandbox:
            with pytest.raises(InfrastructureFailure) as failure:
                await sandbox.copy_in(tmp_path / "absent", "/tests")
            assert failure.value.part == "disk"

    asyncio.run(work())


def test_a_full_disk_of_this_machine_is_its_own_failure(
    sandboxes: Bubblewrap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test.sh").write_text("exit 0\n")
    full = partial(Path("/dev/full").open, "w+b")
    monkeypatch.setattr(opened, "tempfile", SimpleNamespace(TemporaryFile=full))

    async def work() -> None:
        async with await sandboxes.open(SandboxSpec()) as sandbox:
            with pytest.raises(InfrastructureFailure, match="No space left") as failure:
                await sandbox.copy_in(tmp_path, "copied")
            assert failure.value.part == "disk"

    asyncio.run(work())


def test_a_disk_that_the_model_filled_is_what_a_program_inside_meets(sandboxes: Bubblewrap, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    small = SandboxSpec(limits=Limits(disk_bytes=1 << 19))

    async def work() -> None:
        async with await sandboxes.open(small) as sandbox:
            with pytest.raises(OSError, match="No space left") as met:
                await sandbox.copy_in(tmp_path, "copied")
            assert met.value.errno == errno.ENOSPC

    asyncio.run(work())
