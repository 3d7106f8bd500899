"""What each tool returns, in a real sandbox; and what it says where it cannot do what was asked."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from worked import in_sandbox, task_of

from environments.harness.execution import Executed, execute
from environments.harness.model import Call
from environments.harness.tools.offered import ALL
from environments.harness.tools.tool import Bench, Commands
from environments.sandboxes.sandbox import Limits, Sandbox

TOOLS = {tool.name: tool for tool in ALL}
UNITTEST = Commands(test=("python3", "-m", "unittest", "-q"), lint=("python3", "-m", "py_compile"))


def call_all(repository: Path, *calls: tuple[str, dict[str, Any]]) -> list[Executed]:
    """Execute calls one after another in one sandbox."""

    async def use(sandbox: Sandbox) -> list[Executed]:
        bench = Bench(sandbox, "/workspace", UNITTEST)
        done = []
        for name, arguments in calls:
            group = await execute([Call("call_0", name, json.dumps(arguments))], TOOLS, bench)
            done += group.calls
        return done

    found: list[Executed] = in_sandbox(task_of(repository).spec, use)
    return found


def texts(repository: Path, *calls: tuple[str, dict[str, Any]]) -> list[str]:
    return [executed.text for executed in call_all(repository, *calls)]


def test_read_shows_lines_with_their_numbers(repository: Path) -> None:
    whole, part, far = texts(
        repository,
        ("read", {"path": "calc/sums.py"}),
        ("read", {"path": "/workspace/notes.txt", "start": 499}),
        ("read", {"path": "notes.txt"}),
    )
    assert whole.splitlines()[4:] == ['5\t    """Add two numbers."""', "6\t    return one - other"]
    assert part == "/workspace/notes.txt, lines 499 to 500 of 500\n499\tline 499\n500\tline 500"
    assert far.startswith("notes.txt, lines 1 to 400 of 500\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"path": "nothing.py"}, "nothing.py: there is no such file"),
        ({"path": "calc"}, "calc is a folder"),
        ({"path": "calc/sums.py/x"}, "a part of the path is a file"),
        ({"path": "notes.txt", "start": 501}, "notes.txt has 500 lines"),
        ({"path": "bytes"}, "is not text"),
        ({"path": "notes.txt", "start": 0}, "`$.start`"),
        ({}, "missing required field `path`"),
    ],
)
def test_what_cannot_be_read_is_said(repository: Path, arguments: dict[str, Any], said: str) -> None:
    (repository / "bytes").write_bytes(b"\xff\xfe\x00")
    (executed,) = call_all(repository, ("read", arguments))
    assert said in executed.text
    assert not executed.succeeded


def test_edit_replaces_in_several_places_or_in_none(repository: Path) -> None:
    edits = [{"old": "def add(", "new": "def plus("}, {"old": "one - other", "new": "one + other"}]
    broken = [*edits, {"old": "nowhere", "new": ""}]
    failed, untouched, done, after = call_all(
        repository,
        ("edit", {"path": "calc/sums.py", "edits": broken}),
        ("grep", {"pattern": "def add", "path": "calc"}),
        ("edit", {"path": "calc/sums.py", "edits": edits}),
        ("read", {"path": "calc/sums.py", "start": 4}),
    )
    assert "edit 3: `old` is not in the file" in failed.text
    assert not failed.succeeded
    assert untouched.text == "calc/sums.py:4:def add(one, other):"
    assert "-    return one - other" in done.text
    assert "+    return one + other" in done.text
    assert "4\tdef plus(one, other):" in after.text


def test_edit_says_what_was_meant_and_where_it_stands_more_than_once(repository: Path) -> None:
    (repository / "twice.txt").write_text("same\nother\nsame\n")
    near, twice, everywhere, nothing, after = call_all(
        repository,
        ("edit", {"path": "calc/sums.py", "edits": [{"old": "return one-other", "new": "x"}]}),
        ("edit", {"path": "twice.txt", "edits": [{"old": "same", "new": "x"}]}),
        ("edit", {"path": "twice.txt", "edits": [{"old": "same", "new": "x", "everywhere": True}]}),
        ("edit", {"path": "twice.txt", "edits": [{"old": "x", "new": "x", "everywhere": True}]}),
        ("terminal", {"command": "cat twice.txt"}),
    )
    assert "most like its first line is line 6: return one - other" in near.text
    assert "2 times, at lines 1, 3" in twice.text
    assert everywhere.succeeded
    assert "change nothing" in nothing.text
    assert after.text == "exit code 0\nstdout:\nx\nother\nx"


def test_an_edit_of_a_very_long_file_says_how_long_it_is(repository: Path) -> None:
    (repository / "long.txt").write_text("first\n" + "x\n" * 10_000)
    (said,) = texts(repository, ("edit", {"path": "long.txt", "edits": [{"old": "first", "new": "one\ntwo"}]}))
    assert said == "long.txt was changed: it has 10002 lines"


def test_write_makes_folders_and_leaves_the_original_alone(repository: Path) -> None:
    written, read, folder = texts(
        repository,
        ("write", {"path": "new/place/a.txt", "content": "one\ntwo\n"}),
        ("read", {"path": "new/place/a.txt"}),
        ("write", {"path": "calc", "content": ""}),
    )
    assert written == "new/place/a.txt: 2 lines were written"
    assert read == "1\tone\n2\ttwo"
    assert folder == "calc is a folder; `find` lists what is in it"
    assert not (repository / "new").exists()


def test_a_path_that_cannot_be_reached_is_the_models_fault_and_not_the_machines(repository: Path) -> None:
    paths = ("x" * 300, "loop", "pipe", "nul\0", "/sys/x", "/proc/nope/x", "/dev/null/x")
    reading = [("read", {"path": path}) for path in paths]
    writing = [("write", {"path": path, "content": "x"}) for path in paths]
    make = ("terminal", {"command": "ln -s loop loop; mkfifo pipe"})
    _, *done = call_all(repository, make, *reading, *writing)
    assert [each.succeeded for each in done] == [False] * len(done)
    assert "Too many levels of symbolic links" in done[1].text


def test_a_disk_that_the_model_filled_is_its_own(repository: Path) -> None:
    full = ("write", {"path": "more", "content": "x" * 100_000})
    spec = replace(task_of(repository).spec, limits=Limits(disk_bytes=1 << 20))

    async def use(sandbox: Sandbox) -> list[Executed]:
        bench = Bench(sandbox, "/workspace")
        await bench.run(("sh", "-c", "head -c 2000000 /dev/zero >full"))
        return list((await execute([Call("call_0", full[0], json.dumps(full[1]))], TOOLS, bench)).calls)

    (done,) = in_sandbox(spec, use)
    assert done.text == "more: No space left on device"


def test_find_and_grep_look_for_exact_words_and_say_how_much_they_left_out(repository: Path) -> None:
    (repository / ".git").mkdir()
    (repository / ".git" / "sums.py").write_text("add")
    names, none, lines, many, wrong, no_folder = texts(
        repository,
        ("find", {"name": "*sums*"}),
        ("find", {"name": "*.rs"}),
        ("grep", {"pattern": "ADD\\(", "ignore_case": True, "files": "*.py"}),
        ("grep", {"pattern": "^line"}),
        ("grep", {"pattern": "("}),
        ("grep", {"pattern": "x", "path": "nowhere"}),
    )
    assert names.splitlines() == ["calc/sums.py", "test_sums.py"]
    assert none == "no name below . matches *.rs"
    assert "calc/sums.py:4:def add(one, other):" in lines.splitlines()
    assert all(".git" not in line for line in lines.splitlines())
    assert many.splitlines()[-1] == "[400 more lines left out: look for something narrower]"
    assert "(" in wrong
    assert "nowhere" in no_folder


def test_terminal_says_how_a_command_ended(repository: Path) -> None:
    fine, failed, late = call_all(
        repository,
        ("terminal", {"command": "echo out; echo err >&2"}),
        ("terminal", {"command": "exit 3"}),
        ("terminal", {"command": "sleep 60", "timeout_seconds": 0.2}),
    )
    assert fine.text == "exit code 0\nstdout:\nout\nstderr:\nerr"
    assert (failed.text, failed.succeeded) == ("exit code 3", False)
    assert "its time was over" in late.text


def test_tests_and_linter_are_the_commands_that_were_set(repository: Path) -> None:
    (repository / "test_unit.py").write_text(
        "import unittest\nfrom calc.sums import add\n\nclass Adds(unittest.TestCase):\n"
        "    def test(self):\n        self.assertEqual(add(2, 3), 5)\n"
    )
    (repository / "broken.py").write_text("def (:\n")
    edit = {"path": "calc/sums.py", "edits": [{"old": "one - other", "new": "one + other"}]}
    before, _, after, lint = call_all(
        repository, ("run_tests", {"paths": ["test_unit"]}), ("edit", edit), ("run_tests", {"paths": ["test_unit"]}),
        ("lint", {"paths": ["broken.py"]}),
    )  # fmt: skip
    assert "AssertionError: -1 != 5" in before.text
    assert (before.succeeded, after.succeeded, lint.succeeded) == (False, True, False)
    assert "SyntaxError" in lint.text


def test_an_edit_of_equal_size_counts_in_the_same_second(repository: Path) -> None:
    show = ("terminal", {"command": "python3 -c 'import calc.sums; print(calc.sums.add(2, 3))'; ls calc"})
    edits = [
        ("edit", {"path": "calc/sums.py", "edits": [{"old": f"one {old} other", "new": f"one {new} other"}]})
        for old, new in ("-+", "+*", "*-", "-+")
    ]
    calls = [call for edit in edits for call in (show, edit)]
    shown = [executed.text.splitlines()[2] for executed in call_all(repository, *calls)[::2]]
    assert shown == ["-1", "5", "6", "-1"]


def test_search_finds_by_meaning_and_sees_what_was_changed(repository: Path) -> None:
    (repository / "calc" / "httpClient.py").write_text(
        "class HttpClient:\n    def retryRequest(self):\n        return 1\n\n    def close(self):\n        return 2\n"
    )
    first, nothing, _, second = texts(
        repository,
        ("search", {"query": "where are requests retried?"}),
        ("search", {"query": "zebra"}),
        ("write", {"path": "calc/backoff.py", "content": "def retry_requests_later():\n    '''Retry a request.'''\n"}),
        ("search", {"query": "where are requests retried?"}),
    )
    assert first.splitlines()[0].startswith("calc/httpClient.py:2-3 method HttpClient.retryRequest")
    assert "shares a word" in nothing
    assert second.splitlines()[0].startswith("calc/backoff.py:1-2 function retry_requests_later")


def test_search_refuses_what_would_fill_this_machines_memory(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("environments.harness.tools.reading._MOST_CHARACTERS", 50)
    search = ("search", {"query": "add"})
    refused, _, found = texts(repository, search, ("terminal", {"command": "rm -r *; echo add >a.txt"}), search)
    assert "too much text" in refused
    assert found.startswith("a.txt:1-1")
