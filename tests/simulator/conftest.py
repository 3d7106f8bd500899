"""Fixtures; the modules beside this file are importable by name."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from scripted_service import ScriptedService, serving

from simulator.tasks import sandbox

SHIPPED = sandbox._WORKER


def worker_with(directory: Path, **limits: float) -> Path:
    """Return the sandboxes' worker with other limits for the code that it runs."""
    program = SHIPPED.read_text()
    for name, limit in limits.items():
        program, count = re.subn(rf"^{name} = [0-9.]+", f"{name} = {limit}", program, flags=re.MULTILINE)
        assert count == 1, name
    worker = directory / "sandbox_worker.py"
    worker.write_text(program)
    return worker


@pytest.fixture(scope="session")
def patient_worker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return worker_with(tmp_path_factory.mktemp("patient"), WALL_S=120.0)


@pytest.fixture(autouse=True)
def _patient_sandboxes(patient_worker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let right code pass its tests however slow the machine is; what loops is ended by its processor time."""
    monkeypatch.setattr(sandbox, "_WORKER", patient_worker)


@pytest.fixture
def limit_sandboxes(_patient_sandboxes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that gives code in sandboxes other limits."""
    return lambda **limits: monkeypatch.setattr(sandbox, "_WORKER", worker_with(tmp_path, **limits))


@pytest.fixture
def service() -> Iterator[ScriptedService]:
    with serving() as service:
        yield service
