"""Packages of the system, beside whoever installs others at the same time."""

from pathlib import Path

import pytest

from deploy import debian
from deploy.services.server import ServiceError

LOCKED = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 1 (apt-get)"


@pytest.mark.parametrize(("says", "is_waited_for"), [(LOCKED, True), ("E: no network", False)])
def test_who_updates_the_list_of_packages_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, is_waited_for: bool
) -> None:
    program, tries = tmp_path / "apt-get", tmp_path / "tries"
    program.write_text(
        f'#!/bin/sh\necho again >> {tries}\ntest "$(wc -l < {tries})" -ge 3 && exit 0\necho "{says}" >&2\nexit 100\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(debian.time, "sleep", lambda _: None)
    if is_waited_for:
        debian.update()
    else:
        with pytest.raises(ServiceError, match="no network"):
            debian.update()
    assert len(tries.read_text().split()) == (3 if is_waited_for else 1)


def test_who_never_lets_go_is_not_waited_for_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "apt-get"
    program.write_text(f'#!/bin/sh\necho "{LOCKED}" >&2\nexit 100\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    passed_s = [0.0]
    monkeypatch.setattr(debian.time, "monotonic", lambda: passed_s[0])
    monkeypatch.setattr(debian.time, "sleep", lambda _: passed_s.append(passed_s.pop() + 100.0))
    with pytest.raises(ServiceError, match="Could not get lock"):
        debian.update()
