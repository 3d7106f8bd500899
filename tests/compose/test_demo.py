"""Simulated users outside the stack, as a plugin's are: they teach it, and what they were told is kept."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from compose_stack import ROOT, Stack

pytestmark = [pytest.mark.compose, pytest.mark.timeout(2400)]
SECONDS = 240
RATE = 3  # sessions a second, on average: what two cores carry besides two engines and the learner
RISE = 0.15
LIMIT_S = 8 * 60


def test_users_teach_the_stack(untaught_stack: Stack, tmp_path: Path) -> None:
    output = tmp_path / "demo"
    options = {"--url": untaught_stack.url, "--key": untaught_stack.key("admin_key"), "--output": str(output)}
    options |= {"--seconds": str(SECONDS), "--rate": str(RATE), "--seed": "0"}
    command = [sys.executable, "-m", "simulator", *(part for option in options.items() for part in option)]
    done = subprocess.run(command, cwd=ROOT, timeout=LIMIT_S, capture_output=True, text=True, check=False)
    sys.stdout.write(done.stdout)
    assert (output / "report.json").exists(), done.stderr[-4000:]
    report = json.loads((output / "report.json").read_text())
    assert (report["lost_turns"], report["lost_outcomes"], report["failed_requests"]) == (0, 0, 0), report["failures"]
    assert report["quality_end"] - report["quality_start"] >= RISE
    assert report["quality_rise"][0] > 0, "the rise may be chance"


def test_users_come_from_inside_too(stack: Stack) -> None:
    """The profile `simulator`: its report is in a volume. So short a run needs not teach."""
    users = ("run", "--rm", "--no-deps", "-T", "--entrypoint")
    options = ("--url", "http://gateway:8700", "--seconds", "5", "--rate", "3", "--output", "/data/demo")
    said = stack.compose(*users, "with-secrets", "simulator", "python", "-m", "simulator", *options, check=False)
    assert "true quality" in said
    report = json.loads(stack.compose(*users, "cat", "simulator", "/data/demo/report.json"))
    assert report["turns"] > 0
    assert (report["lost_turns"], report["lost_outcomes"], report["failed_requests"]) == (0, 0, 0), report["failures"]
