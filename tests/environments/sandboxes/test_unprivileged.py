"""Anybody can open a sandbox, not only root: with the same walls, and fewer limits, which he has to accept."""

import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandboxed import require, require_bubblewrap

ROOT = Path(__file__).resolve().parents[3]
PYTHON = "/usr/bin/python3"
SOMEBODY = 54321
PROGRAM = """
import asyncio, os, sys
from pathlib import Path
from environments.errors import InfrastructureFailure
from environments.sandboxes.bubblewrap.adapter import Bubblewrap
from environments.sandboxes.sandbox import Limits, SandboxSpec

async def main():
    folder = Path(sys.argv[1])
    workspace = folder / "workspace"
    workspace.mkdir()
    (workspace / "file").write_text("first\\n")
    (workspace / "gone").write_text("")
    spec = SandboxSpec(workspace, limits=Limits(disk_bytes=1 << 24))
    try:
        await (await Bubblewrap(folder / "state").open(spec)).close()
    except InfrastructureFailure as error:
        print("refused:", error.part)
    bubblewrap = Bubblewrap(folder / "state", rlimits_may_do=True)
    sandbox = await bubblewrap.open(spec)
    command = "echo more >> file; rm gone; mkdir new; id -u; grep CapEff /proc/self/status; echo x > /x"
    print(await sandbox.run(["sh", "-c", command], timeout_seconds=120))
    print((await sandbox.run(["sh", "-c", "cat file; ls"], timeout_seconds=120)).stdout)
    print(sorted(os.listdir(workspace)), (workspace / "file").read_text())
    await bubblewrap.close()

asyncio.run(main())
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder that anybody may enter, with what the program imports; `tmp_path` lies where nobody else may."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        folder.chmod(0o755)
        shutil.copytree(ROOT / "environments", folder / "environments", ignore=shutil.ignore_patterns("__pycache__"))
        found = importlib.util.find_spec("pyseccomp")
        assert found is not None
        assert found.origin is not None
        shutil.copy(found.origin, folder / "pyseccomp.py")
        if shutil.which("bwrap") is None and (ROOT / "build" / "sandbox").exists():
            shutil.copytree(ROOT / "build" / "sandbox", folder / "build" / "sandbox", symlinks=True)
        (folder / "own").mkdir()
        yield folder


def test_somebody_else_than_root_opens_one(folder: Path) -> None:
    require_bubblewrap(rlimits_may_do=True)
    environment = {"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(folder)}
    become: list[str] = []
    if os.geteuid() == 0:
        os.chown(folder / "own", SOMEBODY, SOMEBODY)
        become = ["setpriv", f"--reuid={SOMEBODY}", f"--regid={SOMEBODY}", "--clear-groups"]

    def run(*command: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*become, *command], env=environment, capture_output=True, text=True, check=False, timeout=240
        )

    if run("unshare", "--user", "--map-root-user", "true").returncode:
        require("another user than root can make no namespaces here")
    if run(PYTHON, "-c", "import sys, environments.errors, pyseccomp; assert sys.version_info >= (3, 11)").returncode:
        require("another user than root has no Python 3.11 here")
    done = run(PYTHON, "-c", PROGRAM, str(folder / "own"))
    assert done.returncode == 0, done.stderr
    assert "CapEff:\\t0000000000000000" in done.stdout
    assert "stdout=b'1000\\n" in done.stdout
    assert "Read-only file system" in done.stdout
    assert r"b'first\nmore\nfile\nnew\n'" in done.stdout
    assert "['file', 'gone'] first" in done.stdout
