"""Simulated users outside the stack, like a plugin's, teach it, and all that was acknowledged is kept.

With FULL=1 they stay until the rise of what they get is beyond chance, too: five minutes."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from compose_stack import ROOT, Stack, ask, wait_for

from core.ids import ANCHOR

pytestmark = [pytest.mark.compose, pytest.mark.timeout(2400)]
IS_FULL = os.environ.get("FULL") == "1"
SECONDS = 300 if IS_FULL else 75
UNTAUGHT = 150 if IS_FULL else 30  # sessions before the learner begins: of few, the quality at the start is anything
RATE = 3  # sessions a second, on average: what two cores carry besides two engines and the learner
RISE = 0.15
LIMIT_S = 8 * 60


def test_users_teach_the_stack(untaught_stack: Stack, tmp_path: Path) -> None:
    output = tmp_path / "demo"
    options = {"--url": untaught_stack.url, "--output": str(output)}
    options |= {"--seconds": str(SECONDS), "--rate": str(RATE), "--seed": "0"}
    command = [sys.executable, "-m", "simulator", *(part for option in options.items() for part in option)]
    untaught_stack.compose("stop", "learn")
    began_s = time.monotonic()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    environment = {**os.environ, "SIMULATOR_KEY": untaught_stack.key("simulator_key")}
    with subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **pipes) as users:
        assert users.stdout is not None
        try:
            wait_for_sessions(users.stdout, UNTAUGHT)
        finally:
            untaught_stack.compose("start", "learn")
        sys.stdout.writelines(users.stdout)
    assert time.monotonic() - began_s <= LIMIT_S
    report = json.loads((output / "report.json").read_text())
    assert (report["lost_turns"], report["lost_outcomes"], report["failed_requests"]) == (0, 0, 0), report["failures"]
    if IS_FULL:
        assert report["quality_end"] - report["quality_start"] >= RISE
        assert report["quality_rise"][0] > 0, "the rise may be chance"
    wait_for(lambda: min(serving(untaught_stack)) > ANCHOR.version, 120, "both engines on what was learned")


def serving(stack: Stack) -> list[int]:
    replicas = ask(stack.url + "/v1/fleet", stack.key("admin_key"))["data"]
    assert len(replicas) == 2
    return [replica["serving"] or 0 for replica in replicas]


def wait_for_sessions(progress: Iterable[str], count: int) -> None:
    """Read the progress until this many sessions have ended."""
    for line in progress:
        sys.stdout.write(line)
        found = re.search(r"sessions (\d+)", line)
        if found and int(found[1]) >= count:
            return
    pytest.fail(f"the users left before {count} sessions had ended")


def test_users_come_from_inside_too(stack: Stack) -> None:
    """The profile `simulator` writes its report to a volume. So short a run need not teach."""
    users = ("run", "--rm", "--no-deps", "-T", "--entrypoint")
    options = ("--url", "http://gateway:8700", "--seconds", "5", "--rate", "3", "--output", "/data/demo")
    said = stack.compose(*users, "with-secrets", "simulator", "python", "-m", "simulator", *options, check=False)
    assert "true quality" in said
    report = json.loads(stack.compose(*users, "cat", "simulator", "/data/demo/report.json"))
    assert report["turns"] > 0
    assert (report["lost_turns"], report["lost_outcomes"], report["failed_requests"]) == (0, 0, 0), report["failures"]
