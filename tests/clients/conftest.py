"""Fixtures: services for our own clients; and the table of others', which is also `build/clients/table.json`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_harness import Service, serve
from mortal_service import MortalService
from tried_clients import BUILD, CLIENTS


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with serve(tmp_path / "service") as service:
        yield service


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[MortalService]:
    service = MortalService(tmp_path / "mortal").start()
    yield service
    service.kill()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what each client came to, from whichever process tried it."""
    told = [
        each for reports in terminalreporter.stats.values() for each in reports if isinstance(each, pytest.TestReport)
    ]
    found: dict[str, dict[str, Any]] = {
        row["client"]: row for report in told for name, row in report.user_properties if name == "row"
    }
    rows = [found[client.name] for client in CLIENTS if client.name in found]
    if not rows:
        return
    (BUILD / "table.json").write_text(json.dumps(rows, indent=1) + "\n")
    terminalreporter.write_line(f"\n{'client':28} finished  turns  trainable  sessions  outcomes")
    for row in rows:
        finished, right = "yes" if row["finished"] else "NO", "right" if row["sessions_right"] else "WRONG"
        figures = f"{row['turns']:6} {row['trainable']:10.0%} {right:>9} {row['outcomes_joined']:9}"
        terminalreporter.write_line(f"{row['client']:28} {finished:8} {figures}")
