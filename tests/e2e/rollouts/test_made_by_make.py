"""`make rollouts` to its end, by its command: the tasks' own solutions stand in for what a model would do."""

import os
import pty
import re
import shlex
import subprocess
import sys
import termios
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from kept_images import KEPT
from sandboxed import require

pytestmark = pytest.mark.timeout(1200)  # images are made where none were kept
ROOT = Path(__file__).resolve().parents[3]
TASKS = 10


def test_ten_tasks_are_worked_on_with_a_bar_and_a_page_at_the_end(tmp_path: Path) -> None:
    words = command_of_make()
    assert words[2] == "build/rollouts"
    own = [str(tmp_path), *words[3:], "--prepared", str(KEPT), "--set", "rollouts.harness=oracle"]
    shown = in_terminal([sys.executable, "-m", "onward", words[1], *own])
    check_bar(shown)
    report = tmp_path / "service" / "rollouts" / "report.html"
    assert f"report: {report}" in shown
    has_public = "the public tasks are left out" not in shown
    check_page(report.read_text(), has_public=has_public)
    if not has_public:
        require("the public tasks cannot be had here")


def command_of_make() -> list[str]:
    """Return the command that `make rollouts` ends with, by words."""
    planned = subprocess.run(["make", "--dry-run", "rollouts"], cwd=ROOT, capture_output=True, text=True, check=True)
    return shlex.split(planned.stdout.splitlines()[-1])


def in_terminal(command: Sequence[str]) -> str:
    """Run a command in a terminal of its own, and return all that it showed there: each state of each line."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (50, 200))
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "NO_COLOR", "COLUMNS")}
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**environment, "TERM": "xterm", "PYTHONPATH": str(ROOT)},
    ) as process:
        os.close(theirs)
        shown = bytearray()
        with suppress(OSError):  # nobody has it open any more
            while part := os.read(ours, 1 << 16):
                shown += part
    os.close(ours)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert process.returncode == 0, text
    return text


def check_bar(shown: str) -> None:
    """See that it counted up to all of them, and said meanwhile what was under way."""
    states = [line for line in re.split(r"[\r\n]+", shown) if re.search(rf"\b\d+/{TASKS}\b", line)]
    counts = [int(found.group(1)) for line in states if (found := re.search(rf"\b(\d+)/{TASKS}\b", line))]
    assert counts == sorted(counts)
    assert counts[-1] == TASKS
    assert len(set(counts)) > 2, "it was shown at its end alone"
    assert any(re.search(r"[1-9]\d* under way", line) for line in states)
    assert re.search(rf"0 under way, {TASKS} passed, {TASKS} judged", states[-1]), states[-1]


def check_page(text: str, *, has_public: bool) -> None:
    """See that the page has each task as passed at its first attempt, and no failure."""
    figures = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", text))
    assert (figures["tasks"], figures["attempts"], figures["judged"], figures["passed"]) == ("10", "10", "10", "100%")
    assert (figures["out of time"], figures["infrastructure failures"]) == ("0", "0")
    assert figures["waiting to be tried again"] == "0"
    table = text[text.index("<th>task set</th>") : text.index("</table>")]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in table.split("<tr>")]
    tasks = [row for row in rows if row]
    sets = Counter(row[0] for row in tasks)
    assert sets == ({"own": 6, "textcraft": 4} if has_public else {"own": 10})
    assert len({row[1] for row in tasks}) == TASKS
    assert all(row[2].endswith("100%") and row[3:8] == ["1.00", "1", "0", "-", "1 done"] for row in tasks), tasks
    assert "without a judgement" not in text
