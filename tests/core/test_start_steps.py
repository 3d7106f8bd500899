"""A process says how its start goes."""

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from core.stages import start_steps
from core.stages.start_steps import EVERY_STEP, StepProgress, clear_line, say_step, tell_steps


def test_a_long_step_says_now_and_then_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now_s = 100.0
    monkeypatch.setattr(start_steps.time, "monotonic", lambda: now_s)
    progress = StepProgress("service", "loads the model", 400_000_000)
    for now_s, share in ((110.0, 0.0), (111.0, 0.1), (112.5, 0.5), (113.0, 0.6), (116.0, 1.0)):  # noqa: B007
        progress(share)
    said = capsys.readouterr().err.splitlines()
    assert [line.rpartition(", ")[0] for line in said] == [
        "service: loads the model, 50% at 80 MB/s",
        "service: loads the model, 100% at 67 MB/s",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., str]:
    """Return what a start shows, and afterwards a warning, on a terminal or elsewhere."""

    def begin(*, terminal: bool = False, is_child: bool = False, every: bool = False) -> str:
        shown = Terminal() if terminal else io.StringIO()
        monkeypatch.setattr(start_steps, "_telling", start_steps._Telling())
        monkeypatch.setattr(start_steps.sys, "stderr", shown)
        monkeypatch.setenv(EVERY_STEP, "1" if every else "")
        tell_steps(tmp_path / "starts", "learn", is_child=is_child)
        say_step("learn", "opened the log")
        say_step("learn", "is ready", is_last=True)
        clear_line()
        return shown.getvalue()

    return begin


def test_elsewhere_than_on_a_terminal_a_start_is_one_line_and_its_file_has_the_steps(
    begun: Callable[..., str], tmp_path: Path
) -> None:
    for _ in range(2):  # the file is that of the last start
        (shown,) = begun().splitlines()
        kept = (tmp_path / "starts" / "learn.log").read_text().splitlines()
        assert [line.rsplit(" ", 2)[0] for line in kept] == ["learn: opened the log", "learn: is ready"]
        assert shown == kept[-1]
    assert begun(is_child=True) == "", "the process that started it says when all is there"
    assert begun(is_child=True, every=True).splitlines() == (tmp_path / "starts" / "learn.log").read_text().splitlines()


def test_on_a_terminal_one_line_is_rewritten(begun: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    latest, last = begun(terminal=True).split("\r")
    assert latest == "\x1b[2Klearn: opened the l", "a line that is folded could not be rewritten"
    assert re.fullmatch(r"\x1b\[2Klearn: is ready \d+\.\d s\n", last)
    assert "\r" not in begun(terminal=True, every=True)


def test_a_start_goes_on_where_there_is_no_place_for_its_steps(
    begun: Callable[..., str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "starts").write_text("somebody's")
    assert "is ready" in begun()
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}/starts/learn.log: File exists: the steps of this start are not kept"
    ]
