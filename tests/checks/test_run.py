"""A whole check, as whoever runs it sees it: `.ci/run` in a small checkout of its own, whose parts are quick."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).parents[2]
_BAD = "def test_bad():\n    assert 1 + 1 == 3\n"
_UNLUCKY = """
from pathlib import Path

def test_unlucky():
    seen = Path(__file__).with_suffix(".seen")
    was_seen = seen.exists()
    seen.touch()
    assert was_seen, {words!r}
"""
_TARGETS = ("services", "browser", "sandbox", "install", "reasoning", "sglang-cpu")
_TARGETS += ("check", "docs", "bench-check", "clients", "hostile")
_TESTS = ("quick", "timed", "verify-parts", "compose-test")


class Checkout:
    """A checkout with the real `.ci`, and targets that take no time."""

    def __init__(self, directory: Path) -> None:
        self.root, self.cache = directory / "checkout", directory / "cache"
        shutil.copytree(ROOT / ".ci", self.root / ".ci", ignore=shutil.ignore_patterns("__pycache__"))
        (self.root / ".venv" / "bin").mkdir(parents=True)
        _write_program(self.root / ".venv" / "bin" / "python", f'exec {sys.executable} "$@"')
        self.targets = dict.fromkeys((*_TARGETS, *_TESTS), "@true")
        self.targets["services-down"] = "@touch services-are-down"
        _write_program(self.root / ".ci" / "engine.sh", "test $1 = up && echo 'export A=b' || touch engine-is-gone")
        _write_program(directory / "docker", "exit 0")
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "CHECK_"))},
            "PATH": f"{directory}:{os.environ['PATH']}",
            "ONWARD_CI_CACHE": str(self.cache),
            "PYTHON": sys.executable,
            # Of the plugins that are installed, some take half a second to load.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_PLUGINS": "xdist.plugin",
        }
        self._git("init", "-q")
        self.commit()

    def write(self, target: str, text: str, name: str = "test_part.py") -> None:
        """Let a target run one file of tests."""
        (self.root / name).write_text(text)
        self.targets[target] = f"@{sys.executable} -m pytest -q {name}"

    def commit(self) -> None:
        self.write_makefile()
        made = ("build", ".sglang", ".venv", "__pycache__", ".pytest_cache", "*.seen", "*-down", "*-gone")
        (self.root / ".gitignore").write_text("\n".join(made) + "\n")
        self._git("add", "-A")
        self._git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "change")

    def write_makefile(self) -> None:
        rules = "".join(f"{name}:\n\t{command}\n" for name, command in self.targets.items())
        (self.root / "Makefile").write_text(f".PHONY: {' '.join(self.targets)}\n{rules}")

    def begin(self) -> "subprocess.Popen[str]":
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        # As in a background job of a shell, which ignores ^C, and so do its children unless somebody sees to it.
        command = ["env", "--ignore-signal=INT", "bash", ".ci/run"]
        return subprocess.Popen(command, cwd=self.root, env=self._environment, **pipes)

    def run(self) -> tuple[int, str]:
        with self.begin() as running:
            said = running.communicate(timeout=240)[0]
        return running.returncode, said

    @property
    def outcome(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.root / "build" / "ci.json").read_text())
        return found

    @property
    def results(self) -> dict[str, str]:
        return {part["name"]: part["result"] for part in self.outcome["parts"]}

    def passed_before(self) -> None:
        """Let its commit count as one that passed."""
        self._environment["ONWARD_CI_BASE"] = self._git("rev-parse", "HEAD").strip()

    def _git(self, *words: str) -> str:
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True}
        return subprocess.run(["git", *words], cwd=self.root, env=self._environment, check=True, **pipes).stdout


def _write_program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def _runs(pid: int) -> bool:
    """Return whether a process goes on; one that has ended may not have been buried yet."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_a_good_commit_passes_and_the_next_check_has_what_it_made(checkout: Checkout) -> None:
    _write_program(checkout.root / "program", "exit 0")
    (checkout.root / "deploy" / "sglang-cpu").mkdir(parents=True)
    (checkout.root / "deploy" / "sglang-cpu" / "a.lock").touch()
    made = checkout.root / ".sglang" / "bin" / "python"
    checkout.targets["sglang-cpu"] = f"@test -e {made} || (install -D program {made} && echo made >>made.seen)"
    checkout.commit()
    status, said = checkout.run()
    assert status == 0, said
    assert checkout.outcome["passed"]
    assert len(checkout.outcome["commit"]) == 40
    assert set(checkout.results.values()) == {"passed"}
    assert {"name", "seconds", "budget", "result"} == set(checkout.outcome["parts"][0])
    assert (checkout.root / "services-are-down").exists()
    assert (checkout.root / "engine-is-gone").exists()

    shutil.rmtree(checkout.root / ".sglang")
    (checkout.root / "tests" / "hostile").mkdir(parents=True)
    (checkout.root / "tests" / "hostile" / "more.py").touch()
    checkout.commit()
    status, said = checkout.run()
    assert status == 0, said
    assert (checkout.results["clients"], checkout.results["hostile"]) == ("not called for", "passed")
    assert "sglang: .sglang is as it was kept" in said
    assert (checkout.root / "made.seen").read_text() == "made\n"


def test_bad_tests_fail_it_by_name_and_get_no_second_try_where_nobody_was_unlucky(checkout: Checkout) -> None:
    checkout.write("quick", _UNLUCKY.format(words="it depends on nothing that may come late"))
    checkout.write("verify-parts", _BAD + _UNLUCKY.format(words="one turn was lost"), "test_other.py")
    checkout.commit()
    status, said = checkout.run()
    assert status == 1
    failed = ["test_part.py::test_unlucky", "test_other.py::test_bad", "test_other.py::test_unlucky"]
    assert all(f"FAILED {each}" in said for each in failed)
    assert not checkout.outcome["passed"]
    assert (checkout.outcome["failed"], checkout.outcome["flaky"]) == (failed, [])
    assert [name for name, result in checkout.results.items() if result != "passed"] == ["test", "verify"]


def test_a_part_that_says_nothing_of_tests_fails_too(checkout: Checkout) -> None:
    checkout.targets["check"] = "@false"
    checkout.commit()
    status, _ = checkout.run()
    assert (status, checkout.results["check"]) == (1, "failed")


def test_a_test_that_passes_alone_is_flaky_and_the_next_run_shows_it(checkout: Checkout) -> None:
    checkout.passed_before()
    checkout.write("verify-parts", _UNLUCKY.format(words="it came late"))
    checkout.commit()
    status, said = checkout.run()
    assert status == 1, "the change itself touches that test"
    (checkout.root / "test_part.seen").unlink()
    checkout.passed_before()
    status, said = checkout.run()
    assert status == 0, said
    assert "FLAKY test_part.py::test_unlucky" in said
    assert "it came late" in checkout.outcome["flaky"][0]["words"]
    assert checkout.results["verify"] == "passed, FLAKY"

    (checkout.root / "test_part.seen").unlink()
    (checkout.root / "broken.py").write_text("def pytest_runtest_logfinish(): raise RuntimeError\n")
    checkout.targets["verify-parts"] = f"@PYTHONPATH=.ci:. {sys.executable} -m pytest -q -p broken test_part.py"
    checkout.commit()
    checkout.passed_before()
    status, said = checkout.run()
    assert (status, checkout.results["verify"]) == (1, "failed"), "that pytest itself broke is not the test's bad luck"
    checkout.targets["install"] = "@false"
    checkout.write_makefile()
    status, said = checkout.run()
    assert "was flaky before" in said
    assert (status, checkout.results) == (1, {"services": "passed", "browser": "passed", "install": "failed"}), (
        "at once"
    )


def test_who_ends_it_ends_all_that_it_started_and_can_read_what_is_known(checkout: Checkout) -> None:
    checkout.targets["quick"] = "@echo $$$$ > quick.pid; sleep 600"
    checkout.commit()
    with checkout.begin() as running:
        begun = checkout.root / "quick.pid"
        while not begun.exists() and running.poll() is None:
            time.sleep(0.05)
        running.send_signal(signal.SIGTERM)
        running.communicate(timeout=240)
    assert running.returncode != 0
    assert not _runs(int(begun.read_text()))
    assert checkout.results["check"] == "passed"
    assert not checkout.outcome["passed"]
    assert (checkout.root / "services-are-down").exists()
