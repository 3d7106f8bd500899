"""Anybody can open a sandbox, not only root: with the same walls, and fewer limits, which he has to accept."""

import importlib.util
import os
import subprocess
from pathlib import Path

import pytest
from sandboxed import require_bubblewrap

PYTHON = "/usr/bin/python3"
SOMEBODY = 54321
PROGRAM = """
import asyncio, os, sys
from pathlib import Path
from environments.errors import InfrastructureFailure
from environments.sandboxes.bubblewrap.adapter import Bubblewrap
from environments.sandboxes.sandbox import Limits, SandboxSpec
from environments.sandboxes.snapshots import freeze

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
    print(await sandbox.run(["sh", "-c", command], timeout_seconds=10))
    async with await bubblewrap.open(await freeze(sandbox, folder / "layers")) as sandbox:
        print((await sandbox.run(["sh", "-c", "cat file; ls"], timeout_seconds=10)).stdout)
    print(sorted(os.listdir(workspace)), (workspace / "file").read_text())
    await bubblewrap.close()

asyncio.run(main())
"""


def test_somebody_else_than_root_opens_one(tmp_path: Path) -> None:
    require_bubblewrap()
    found = importlib.util.find_spec("pyseccomp")
    assert found is not None
    assert found.origin is not None
    folder = tmp_path / "somebody"
    folder.mkdir()
    (folder / "pyseccomp.py").write_bytes(Path(found.origin).read_bytes())
    root = Path(__file__).resolve().parents[3]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": f"{root}:{folder}"}
    command = [PYTHON, "-c", PROGRAM, str(folder)]
    if os.geteuid() == 0:
        os.chown(folder, SOMEBODY, SOMEBODY)
        for parent in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
            parent.chmod(0o755)
        command = ["setpriv", f"--reuid={SOMEBODY}", f"--regid={SOMEBODY}", "--clear-groups", *command]
    check = [*command[:-2], "import sys, environments.errors, pyseccomp; assert sys.version_info >= (3, 11)"]
    if subprocess.run(check, env=environment, capture_output=True, check=False).returncode:
        pytest.skip("another user has no Python 3.11 here, or may not read this checkout")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "CapEff:\\t0000000000000000" in done.stdout
    assert "stdout=b'1000\\n" in done.stdout
    assert "Read-only file system" in done.stdout
    assert r"b'first\nmore\nfile\nnew\n'" in done.stdout
    assert "['file', 'gone'] first" in done.stdout
