"""The sandbox runs code for real, within limits, and no run affects the next."""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.tasks.sandbox import ForkServer, TestResult

ADD = "def add(a, b):\n    return a + b"


TESTS = (("add(1, 2)", "3"), ("add(0, 0)", "0"))


async def run_in_order(*codes: str, tests: tuple[tuple[str, str], ...] = TESTS) -> list[TestResult]:
    sandbox = ForkServer()
    try:
        return [await sandbox.run(code, tests) for code in codes]
    finally:
        await sandbox.close()


def run(*codes: str, tests: tuple[tuple[str, str], ...] = TESTS) -> list[TestResult]:
    return asyncio.run(run_in_order(*codes, tests=tests))


def test_results_tell_how_many_tests_passed() -> None:
    right, half, broken, missing = run(ADD, ADD.replace("+", "*"), "def add(", "x = 1")
    assert (right, right.all_passed) == (TestResult(2, 2, None), True)
    assert (half, half.all_passed) == (TestResult(1, 2, None), False)
    assert (broken.error, broken.all_passed) == ("SyntaxError", False)
    assert missing.error == "NameError"


def test_values_are_compared_as_written() -> None:
    assert not run("def add(a, b):\n    return float(a + b)")[0].all_passed
    assert not run("def add(a, b):\n    return True", tests=(("add(1, 0)", "1"),))[0].all_passed


def test_a_failing_test_costs_only_itself_and_those_after_it() -> None:
    assert run("def add(a, b):\n    return a // b", tests=(("add(4, 2)", "2"), ("add(1, 0)", "0")))[0].error == (
        "ZeroDivisionError"
    )


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
        "import os\nos._exit(0)",
        "import os\nfor number in range(3, 16):\n    os.dup2(0, number)",
    ],
)
def test_code_that_does_not_end_well_is_ended_and_the_next_runs(code: str) -> None:
    first, second = run(code + "\n" + ADD, ADD)
    assert not first.all_passed
    assert second.all_passed


def test_code_that_sleeps_is_ended_and_the_next_runs(limit_sandboxes: Callable[..., None]) -> None:
    """It would pass its tests if it were let sleep; it sleeps with its alarm on, off, and deaf to it."""
    limit_sandboxes(WALL_S=3.0)
    alarms = ["", "signal.setitimer(signal.ITIMER_REAL, 0)", "signal.signal(signal.SIGALRM, signal.SIG_IGN)"]
    codes = [(f"import signal, time\n{before}\ntime.sleep(60)\n{ADD}", ADD) for before in alarms]

    async def work() -> list[list[TestResult]]:
        return await asyncio.gather(*(run_in_order(*each) for each in codes))

    for before, (first, second) in zip(alarms, asyncio.run(work()), strict=True):
        assert not first.all_passed, before
        assert second.all_passed, before


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("data = bytearray(1 << 30)", "MemoryError"),
        ("import socket\nsocket.socket()", "PermissionError"),
        ("import os\nos.fork()", "PermissionError"),
        ("import os\nos.system('true')", "PermissionError"),
        ("import subprocess\nsubprocess.run(['true'])", "PermissionError"),
        ("def f(): return f()\nf()", "RecursionError"),
        ("raise SystemExit", "killed"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("import os\nos.kill(os.getppid(), 9)", "PermissionError"),
        ("import os\nos.killpg(0, 15)", "PermissionError"),
        ("import os\nos.forkpty()", "PermissionError"),
        ("import _posixsubprocess", "PermissionError"),
        ("import ctypes\nctypes.CDLL(None)", "PermissionError"),
        ("import ctypes\nctypes.pythonapi.fork()", "PermissionError"),
        ("import resource\nresource.setrlimit(resource.RLIMIT_CPU, (9, 9))", "PermissionError"),
    ],
)
def test_what_is_not_allowed_is_refused(code: str, error: str) -> None:
    (result,) = run(code + "\n" + ADD)
    assert not result.all_passed
    assert result.error == error


@pytest.mark.parametrize("mode", ["w", "a", "x", "r+"])
def test_no_file_is_opened_for_writing(tmp_path: Path, mode: str) -> None:
    target = tmp_path / "kept"
    if mode != "x":
        target.write_text("kept")
    (result,) = run(f"open({str(target)!r}, {mode!r})\n{ADD}")
    assert result.error == "PermissionError"
    assert not target.exists() if mode == "x" else target.read_text() == "kept"


@pytest.mark.parametrize(
    "harm", ["os.remove({0!r})", "os.rename({0!r}, {0!r} + 'x')", "os.truncate({0!r}, 0)", "os.chmod({0!r}, 0)"]
)
def test_no_file_is_harmed(tmp_path: Path, harm: str) -> None:
    target = tmp_path / "kept"
    target.write_text("kept")
    (result,) = run(f"import os\n{harm.format(str(target))}\n{ADD}")
    assert result.error == "PermissionError"
    assert target.read_text() == "kept"


TO_THE_SERVER = """\
import os
for number in range(3, 16):
    try:
        os.write(number, {told})
    except OSError:
        pass
"""


@pytest.mark.parametrize(
    "told",
    [
        b'{"passed": 2, "total": 2, "error": null}',
        b'{"values": 1, "error": null}',
        b"[]",
        b"{",
        b"[" * 9000,
        b"x" * 40_000,
    ],
)
def test_answers_that_code_writes_itself_do_not_count(told: bytes) -> None:
    """Code finds the pipe to the server among its open files; what it writes there is no verdict."""
    first, second = run(TO_THE_SERVER.format(told=told) + "os._exit(0)", ADD)
    assert first == TestResult(0, 2, "killed")
    assert second.all_passed


def test_an_answer_without_end_is_cut_off(limit_sandboxes: Callable[..., None]) -> None:
    """It ends when it is too long, and does not first go on for all the time that code has: here more than a test."""
    limit_sandboxes(CPU_S=600, WALL_S=600.0)
    flooding = "while True:\n    " + TO_THE_SERVER.format(told=b"x" * 4096).replace("\n", "\n    ")

    assert run(flooding, tests=(("1", "1"),)) == [TestResult(0, 1, "killed")]


def test_what_the_tests_expect_is_not_in_the_process_that_runs_code() -> None:
    secret = "only the user knows"
    code = f"""\
import gc
def add(a, b):
    known = [repr(each) for each in gc.get_objects() if type(each) in (dict, list)]
    return any({secret[:9]!r} + {secret[9:]!r} in each for each in known)
"""
    (result,) = run(code, tests=(("add(1, 2)", repr(secret)), ("add(1, 2)", "False")))
    assert result == TestResult(1, 2, None)


@pytest.mark.parametrize("value", ["'x' * 100_000_000", "[list(range(99))] * 99"])
def test_a_value_too_long_to_compare_passes_nothing(value: str) -> None:
    first, second = run(f"def add(a, b):\n    return {value}", ADD)
    assert first.passed == 0
    assert second.all_passed


def test_a_worker_that_was_killed_is_started_again() -> None:
    me = psutil.Process()

    async def work() -> None:
        sandbox = ForkServer()
        before = set(me.children())
        try:
            await sandbox.run(ADD, (("add(1, 2)", "3"),))
            (worker,) = set(me.children()) - before
            worker.kill()
            await asyncio.sleep(0.2)
            results = [await sandbox.run(ADD, ((f"add(1, {number})", str(number + 1)),)) for number in range(2)]
            assert results[1].all_passed
            assert results[0].all_passed or results[0].error == "killed"
        finally:
            await sandbox.close()

    asyncio.run(work())


def test_nothing_is_written(tmp_path: Path) -> None:
    target = tmp_path / "written"
    (result,) = run(f"with open({str(target)!r}, 'w') as file:\n    file.write('x' * 100_000)\n{ADD}")
    assert not result.all_passed
    assert not target.exists() or target.stat().st_size == 0


def test_nothing_is_sent() -> None:
    """Connections fail, even to a listener on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        (result,) = run(f"import socket\nsocket.create_connection(('127.0.0.1', {port}))\n{ADD}")
        assert not result.all_passed
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):  # one that was made would wait there
            listener.accept()


def test_what_one_answer_does_the_next_does_not_see() -> None:
    spoilt, clean = run(f"import builtins\nbuiltins.sum = None\n{ADD}", f"total = sum([1])\n{ADD}")
    assert spoilt.all_passed
    assert clean.all_passed


def test_prints_do_not_garble_the_answers() -> None:
    noisy, quiet = run(f"print('{{}}')\nimport sys\nsys.stderr.write('x')\n{ADD}", ADD)
    assert noisy.all_passed
    assert quiet.all_passed


def test_secrets_of_the_environment_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONWARD_SECRET", "hush")
    assert "ONWARD_SECRET" in os.environ
    (result,) = run(
        "import os\ndef add(a, b):\n    return os.environ.get('ONWARD_SECRET')", tests=(("add(1, 1)", "None"),)
    )
    assert result.all_passed


class CountingSandbox(ForkServer):
    executions = 0

    async def _execute(self, code: str, tests: Sequence[tuple[str, str]]) -> TestResult:
        self.executions += 1
        return await super()._execute(code, tests)


def test_the_same_code_is_run_once() -> None:
    async def work() -> int:
        sandbox = CountingSandbox()
        try:
            for code in (ADD, ADD, ADD + "\n", ADD):
                for tests in ((("add(1, 2)", "3"),), (("add(1, 2)", "4"),)):
                    assert (await sandbox.run(code, tests)).all_passed == (tests[0][1] == "3")
            return sandbox.executions
        finally:
            await sandbox.close()

    assert asyncio.run(work()) == 4


SPITEFUL = (
    "while True: pass",
    "data = bytearray(1 << 30)",
    "open('/tmp/written', 'w').write('x')",
    "import socket\nsocket.socket()",
    "import os\nos.fork()",
    "import os\nos._exit(3)",
    "raise ValueError",
    "def add(",
    "import sys\nsys.stdin.close()",
)


def test_one_worker_survives_all_of_it_and_none_is_left_after_closing() -> None:
    me = psutil.Process()

    async def work() -> None:
        sandbox = ForkServer()
        before = set(me.children())  # not those of services that other tests left running
        try:
            await sandbox.run(ADD, (("add(1, 2)", "3"),))
            (worker,) = set(me.children()) - before
            for number, code in enumerate(SPITEFUL):
                assert not (await sandbox.run(code, (("add(1, 2)", "3"),))).all_passed, code
                assert (await sandbox.run(ADD, ((f"add({number}, 2)", str(number + 2)),))).all_passed, code
            assert set(me.children()) - before == {worker}
            assert worker.children() == []
        finally:
            await sandbox.close()
        assert not worker.is_running()
        assert set(me.children()) <= before
        await sandbox.close()  # once more does no harm

    asyncio.run(work())


def test_a_sandbox_that_never_ran_closes() -> None:
    asyncio.run(ForkServer().close())


@settings(max_examples=3, deadline=None)
@given(st.lists(st.text(max_size=80), min_size=20, max_size=20))
def test_whatever_a_model_writes_the_next_code_runs(codes: list[str]) -> None:
    *_, last = run(*codes, ADD)
    assert last.all_passed
