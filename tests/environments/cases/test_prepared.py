"""Tasks are prepared in a process that imports nothing of a suite's, and that clears away what it began."""

import asyncio
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from environments.cases.prepared import prepared
from environments.tasks.commands import said

PATIENCE_S = 120.0


def test_modules_where_it_is_called_are_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither do many folders, which are more than a command may be long, fail all of them."""
    ran = tmp_path / "ran"
    for name in ("asyncio.py", "base64.py", "pickle.py", "environments/__init__.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"open({str(ran)!r}, 'w')\nraise SystemExit('it is ours now')\n")
    monkeypatch.chdir(tmp_path)
    folders = [tmp_path / f"{'task' * 40}{number}" for number in range(1000)]
    found = asyncio.run(prepared(folders, tmp_path / "kept", {}))
    assert not ran.exists()
    assert found == [f"{folder}: task.toml is missing" for folder in folders]


CLEARS_AWAY = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
open(sys.argv[1], 'w').close()
try:
    time.sleep(600)
except KeyboardInterrupt:
    open(sys.argv[2], 'w').close()
"""


def test_a_program_with_grace_clears_away_what_it_began(tmp_path: Path) -> None:
    began, cleared = tmp_path / "began", tmp_path / "cleared"
    command = (sys.executable, "-c", CLEARS_AWAY, str(began), str(cleared))

    async def given_up() -> None:
        running = asyncio.create_task(said(command, 600.0, "image", grace_seconds=PATIENCE_S))
        assert await asyncio.to_thread(in_time, began.exists)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as of a program in the background
    try:
        asyncio.run(given_up())
    finally:
        signal.signal(signal.SIGINT, before)
    assert cleared.exists()


def in_time(holds: Callable[[], bool]) -> bool:
    until_s = time.monotonic() + PATIENCE_S
    while not holds() and time.monotonic() < until_s:
        time.sleep(0.01)
    return holds()
