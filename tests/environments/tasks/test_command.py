"""The command that checks tasks says by its exit code and in words what is amiss."""

import subprocess
import sys
from pathlib import Path

import pytest
from task_folders import base_of, write_task

from environments.tasks.__main__ import check_folders

FAIR = "#!/bin/sh\ntest -e /app/done; echo $((1 - $?)) >/logs/verifier/reward.txt\n"


def checked(images: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "environments.tasks", "check", *arguments, "--images", str(images)]
    return subprocess.run([*command, "--base", f"base:*={base_of(images)}"], capture_output=True, text=True)


def test_fair_tasks_pass(tmp_path: Path, images: Path) -> None:
    write_task(tmp_path / "fair", tests=FAIR, files={"solution/solve.sh": "#!/bin/sh\ntouch /app/done\n"})
    result = checked(images, str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert "yes" in result.stdout


@pytest.mark.parametrize(
    ("solution", "settings", "told"),
    [
        ("#!/bin/sh\ntrue\n", "", "t: its own solution is rewarded 0, not 1"),
        ("#!/bin/sh\ntrue\n", "[agent]\nhurry = true\n", "agent.hurry is unknown"),
        ("#!/bin/sh\ntrue\n", '[environment]\nnetwork_mode = "public"\n', "it wants a network"),
        ("#!/bin/sh\ntrue\n", '[environment.env]\nA = "${HOME}"\n', "the variable HOME is not lent"),
    ],
)
def test_what_is_amiss_is_told_and_fails(
    tmp_path: Path, images: Path, capsys: pytest.CaptureFixture[str], solution: str, settings: str, told: str
) -> None:
    write_task(tmp_path / "t", settings, tests=FAIR, files={"solution/solve.sh": solution})
    assert check_folders([tmp_path], images=images, base=(f"base:*={base_of(images)}",)) == 1
    assert told in capsys.readouterr().out
