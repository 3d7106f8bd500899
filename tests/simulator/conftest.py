"""Fixtures; the modules beside this file are importable by name."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted_service import ScriptedService, serving

from simulator.tasks import sandbox

HASTY = sandbox._WORKER


@pytest.fixture(scope="session")
def patient_worker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the worker of sandboxes with a minute for code, not a second: a busy machine stops it for longer."""
    worker = tmp_path_factory.mktemp("patient") / "sandbox_worker.py"
    hasty = HASTY.read_text()
    assert "WALL_S = 1.0\n" in hasty
    worker.write_text(hasty.replace("WALL_S = 1.0\n", "WALL_S = 60.0\n"))
    return worker


@pytest.fixture(autouse=True)
def _patient_sandboxes(patient_worker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let right code pass its tests however slow the machine is; what loops is ended by its processor time."""
    monkeypatch.setattr(sandbox, "_WORKER", patient_worker)


@pytest.fixture
def hasty_sandboxes(_patient_sandboxes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give code no more than the second that it has by default."""
    monkeypatch.setattr(sandbox, "_WORKER", HASTY)


@pytest.fixture
def service() -> Iterator[ScriptedService]:
    with serving() as service:
        yield service
