"""What a process of verifiers says besides its answers, and what it leaves behind, hold nobody up."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sandboxed import PATIENCE_S

from environments.errors import InfrastructureFailure
from environments.tasks.adapters import verifiers_process, verifiers_worker
from environments.tasks.adapters.verifiers_process import RolledOut, VerifiersEnvironment, Wanted

NOISE = ["warning: no JSON", "3", "null", "[]", '{"other": 1}', '{"id": 0}', '{"id": []}', "[" * 100_000, "x" * 9_000]

STUB = """#!{python}
import json, os, subprocess, sys

def say(*lines):
    for line in lines:
        print(line, flush=True)

sys.stdin.readline()
beside = subprocess.Popen(["sleep", "1000"])  # it keeps the pipe open
with open({left!r}, "w") as left:
    left.write(str(beside.pid))
say(*{noise!r}, json.dumps({{"tasks": [{{"name": "one", "prompt": "Do it."}}]}}))
rolled = dict(reward=1.0, rewards={{}}, turns=1, prompt_tokens=1, output_tokens=1, late=False)
for line in sys.stdin:
    if {silent!r}:
        beside.kill()
        os.close(1)
    else:
        say(*{noise!r}, json.dumps({{"id": json.loads(line)["id"], **rolled}}))
"""

WORKER = """
import asyncio, os, subprocess, sys
sys.path.insert(0, {folder!r})
import verifiers_worker

async def serve(asked, lines, write):
    os.write(1, b"straight\\n")
    subprocess.run(["echo", "child"])
    subprocess.run(["sh", "-c", "echo found >&" + sys.argv[1]])
    print("printed")
    write({{"tasks": []}})

verifiers_worker.serve = serve
asyncio.run(verifiers_worker.main())
"""


def stub(folder: Path, *, silent: bool = False) -> Path:
    """Write what stands in for an interpreter with the library, of which it tells one task."""
    path = folder / "python"
    path.write_text(STUB.format(python=sys.executable, noise=NOISE, left=str(folder / "left"), silent=silent))
    path.chmod(0o755)
    return path


async def rolled(environment: VerifiersEnvironment) -> RolledOut:
    rolling = environment.roll_out(environment.tasks[0], base_url="http://127.0.0.1:9/v1", model="ours")
    return await asyncio.wait_for(rolling, PATIENCE_S)


def test_lines_that_are_no_answers_are_passed_over_and_what_is_left_running_holds_up_no_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifiers_process, "_LINE_BYTES", 4_000)

    async def run() -> None:
        environment = await VerifiersEnvironment.start(Wanted("words", {}), tmp_path, python=stub(tmp_path))
        left = int((tmp_path / "left").read_text())
        try:
            assert [(await rolled(environment)).reward for _ in range(2)] == [1.0, 1.0]
            assert not environment.has_ended
            await asyncio.wait_for(environment.close(), PATIENCE_S)
            await environment.close()
            assert environment.has_ended
        finally:
            os.kill(left, signal.SIGKILL)

    asyncio.run(run())


def test_a_process_that_says_no_more_fails_who_waits_and_who_comes_after(tmp_path: Path) -> None:
    async def run() -> None:
        given = stub(tmp_path, silent=True)
        environment = await VerifiersEnvironment.start(Wanted("words", {}), tmp_path, python=given)
        for _ in range(2):
            with pytest.raises(InfrastructureFailure, match="says no more") as caught:
                await rolled(environment)
            assert caught.value.part == "service"
        assert environment.has_ended
        await asyncio.wait_for(environment.close(), PATIENCE_S)

    asyncio.run(run())


def test_what_the_programs_of_an_environment_print_is_no_answer() -> None:
    folder = str(Path(verifiers_worker.__file__).parent)
    command = [sys.executable, "-c", WORKER.format(folder=folder), "3"]
    done = subprocess.run(command, input=b"{}\n", capture_output=True, timeout=PATIENCE_S, check=True)
    assert done.stdout == b'{"tasks": []}\n'
    for said in (b"straight", b"child", b"printed"):
        assert said in done.stderr
