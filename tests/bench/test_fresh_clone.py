"""What a fresh clone takes is measured where it passes, and an error names what it printed where it does not."""

import subprocess
from pathlib import Path

import pytest

from bench.tree.fresh_clone import Failed, minutes_of, rows_of

PASSES = "install:\n\t@echo into $(CURDIR) > installed\ntest: installed\n\t@cat installed\n"
FAILS = "install:\n\t@true\ntest:\n\t@echo one test failed; false\n"


def _repository(directory: Path, makefile: str) -> Path:
    directory.mkdir()
    (directory / "Makefile").write_text(makefile)
    as_somebody = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
    for command in (("init", "-q"), ("add", "Makefile"), (*as_somebody, "commit", "-qm", "all: begin")):
        subprocess.run(["git", *command], cwd=directory, check=True)
    return directory


def test_both_steps_run_in_the_clone_and_are_counted_together(tmp_path: Path) -> None:
    repository = _repository(tmp_path / "ours", PASSES)

    minutes = minutes_of(repository, tmp_path / "clone", tmp_path / "log")
    whole, *steps = rows_of(minutes)

    assert (tmp_path / "log").read_text() == f"into {tmp_path / 'clone'}\n"
    assert whole.value == pytest.approx(sum(step.value or 0 for step in steps), rel=1e-9)
    assert not (repository / "installed").exists()


def test_a_run_that_fails_has_no_minutes(tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"make test failed.*log says why"):
        minutes_of(_repository(tmp_path / "ours", FAILS), tmp_path / "clone", tmp_path / "log")

    assert "one test failed" in (tmp_path / "log").read_text()
