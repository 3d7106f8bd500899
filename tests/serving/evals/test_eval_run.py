"""Suites run in time and a few cases at once; a case that cannot run says why; commands run within limits."""

import asyncio
import errno
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from serving.evals.cases import CannotRun, Case, Suite, TaskCase
from serving.evals.command import accepts
from serving.evals.endpoint import EvalEndpoint
from serving.evals.run import Solver, SuiteLimits, Worked, run_suite, unscored


def suite_of(*cases: dict[str, Any], directory: Path = Path("/nowhere")) -> Suite:
    made = tuple(Case.model_validate({"name": str(n), "prompt": "?"} | case) for n, case in enumerate(cases))
    return Suite(made, {case.name: directory for case in made}, "digest")


SAYS_YES = {"checker": {"kind": "exact", "text": "yes"}}


async def yes(case: Case) -> str:
    return "yes"


def test_scores_come_in_the_order_of_the_suite() -> None:
    others_answered = asyncio.Event()

    async def answer(case: Case) -> str:
        if case.name == "0":
            await others_answered.wait()
        elif case.name == "2":
            others_answered.set()
        return "yes" if case.name != "1" else "no"

    found = asyncio.run(run_suite(suite_of(SAYS_YES, SAYS_YES, SAYS_YES), answer, SuiteLimits()))
    assert [(result.case.name, result.score) for result in found] == [("0", 1.0), ("1", 0.0), ("2", 1.0)]
    assert unscored(found) == {}


@pytest.mark.parametrize("concurrency", [1, 3])
def test_no_more_requests_are_under_way_than_allowed(concurrency: int) -> None:
    under_way, most = 0, 0

    async def answer(case: Case) -> str:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.001)
        under_way -= 1
        return "yes"

    asyncio.run(run_suite(suite_of(*[SAYS_YES] * 12), answer, SuiteLimits(concurrency=concurrency)))
    assert most == concurrency


def test_what_cannot_run_has_no_score_and_says_why() -> None:
    async def answer(case: Case) -> str:
        if case.name == "1":
            raise CannotRun("503: away")
        return "yes"

    command = {"checker": {"kind": "command", "argv": ["true"]}}
    found = asyncio.run(run_suite(suite_of(SAYS_YES, SAYS_YES, command), answer, SuiteLimits()))
    assert [result.score for result in found] == [1.0, None, None]
    assert unscored(found) == {"1": "503: away", "2": "its checker is a command, and these are not allowed"}


def test_a_task_is_right_by_its_tests_and_its_rules_and_no_failure_of_others_is_a_lost_one() -> None:
    made = tuple(TaskCase.model_validate({"name": str(n), "task": "t", "at_least": 0.5}) for n in range(6))
    suite = Suite(made, {case.name: Path("/nowhere") for case in made}, "digest")
    told: list[str] = []

    async def solve(case: TaskCase) -> Worked:
        if case.name == "3":
            raise CannotRun("disk: disk: No space left on device")
        if case.name == "4":
            raise RecursionError("it was nested too deep")
        many = tuple(f"copy {number}" for number in range(5000))
        left = {
            "0": Worked(0.5),
            "1": Worked(0.4, ending="budget"),
            "2": Worked(1.0, ("it adds 9 lines",)),
            "5": Worked(1.0, ("n\udcff.py" * 100, *many)),
        }
        return left[case.name]

    def run(solver: Solver | None, *, allowed: bool) -> dict[str, tuple[float | None, str]]:
        limits, heard = SuiteLimits(allow_commands=allowed), lambda result: told.append(result.case.name)
        found = asyncio.run(run_suite(suite, yes, limits, solver, heard))
        return {result.case.name: (result.score, result.why) for result in found}

    assert run(solve, allowed=True) == {
        "0": (1.0, ""),
        "1": (0.0, "its tests give 0.4, less than 0.5 (the work ended: budget)"),
        "2": (0.0, "it adds 9 lines"),
        "3": (None, "disk: disk: No space left on device"),
        "4": (None, "this program failed, not the version: RecursionError: it was nested too deep"),
        "5": (0.0, f"{'n?.py' * 60}…; copy 0; copy 1; copy 2; copy 3; and 4996 more"),
    }
    assert sorted(told) == ["0", "1", "2", "3", "4", "5"]
    refused = (None, "it is a task, which runs commands, and these are not allowed")
    assert set(run(solve, allowed=False).values()) == {refused}
    assert {score for score, _ in run(None, allowed=True).values()} == {None}


def test_cases_beyond_the_budget_could_not_run() -> None:
    async def answer(case: Case) -> str:
        await asyncio.sleep(0 if case.name == "0" else 3600)
        return "yes"

    found = asyncio.run(run_suite(suite_of(*[SAYS_YES] * 4), answer, SuiteLimits(budget_s=1.0, concurrency=1)))
    assert [result.score for result in found] == [1.0, None, None, None]
    assert set(unscored(found).values()) == {"it took more than 0.5 s", "the suite's 1 s were over"}


def test_a_case_that_hangs_leaves_the_others_half_of_the_time() -> None:
    async def answer(case: Case) -> str:
        await asyncio.sleep(3600 if case.name == "0" else 0)
        return "yes"

    found = asyncio.run(run_suite(suite_of(*[SAYS_YES] * 4), answer, SuiteLimits(budget_s=4.0, concurrency=1)))
    assert [result.score for result in found] == [None, 1.0, 1.0, 1.0]
    assert unscored(found) == {"0": "it took more than 2 s"}


def test_what_this_machine_lacks_is_no_score_and_ends_nothing() -> None:
    async def answer(case: Case) -> str:
        raise OSError(errno.EMFILE, "too many open files")

    (found,) = asyncio.run(run_suite(suite_of(SAYS_YES), answer, SuiteLimits()))
    assert (found.score, "too many open files" in found.why) == (None, True)


def test_a_fault_of_ours_ends_the_run() -> None:
    async def answer(case: Case) -> str:
        raise KeyError("a bug")

    with pytest.raises(ExceptionGroup):
        asyncio.run(run_suite(suite_of(SAYS_YES), answer, SuiteLimits()))


def check(script: str, answer: str = "", timeout_s: float = 120.0) -> bool:
    return asyncio.run(accepts([sys.executable, "-c", script], answer, timeout_s))


def test_a_command_reads_the_answer_and_says_by_its_status() -> None:
    compares = "import sys; sys.exit(sys.stdin.buffer.read() != 'grüß\\ud800'.encode(errors='surrogatepass'))"
    assert check(compares, "grüß\ud800")
    assert not check(compares, "other")
    assert check("pass", "x" * 1_000_000)  # and may leave it unread
    assert not check("import os; os.abort()")


def test_a_command_has_a_directory_and_next_to_no_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "1")
    told = tmp_path / "told"
    assert check(f"import os; open({str(told)!r}, 'w').write(repr((os.getcwd(), os.listdir(), sorted(os.environ))))")
    directory, entries, names = eval(told.read_text())
    assert entries == []
    assert not Path(directory).exists()
    assert set(names) <= {"PATH", "HOME", "TMPDIR", "LANG", "LC_CTYPE"}


def test_a_command_that_takes_too_long_is_ended_with_what_it_started(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    script = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(told)!r}, 'w').write(str(child.pid))\n"
        "time.sleep(600)"
    )

    async def impatient() -> None:
        running = asyncio.create_task(accepts([sys.executable, "-c", script], "", 3600))
        assert await asyncio.to_thread(in_time, lambda: told.exists() and told.read_text() != "")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(impatient())
    pid = int(told.read_text())  # killed, and so was its parent, which would have waited for it
    assert in_time(lambda: has_ended(pid))
    assert not check("import time; time.sleep(600)", timeout_s=0.5)


def has_ended(pid: int) -> bool:
    """Return whether a process is gone, or waits for its parent alone; it may go while it is looked at."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def in_time(holds: Callable[[], bool]) -> bool:
    until_s = time.monotonic() + 120
    while not holds() and time.monotonic() < until_s:
        time.sleep(0.01)
    return holds()


@pytest.mark.parametrize(
    "greedy",
    [
        "bytearray(4 << 30)",
        "open('big', 'wb').write(bytes(65 << 20))",
        "[open('/dev/null') for _ in range(300)]",
    ],
)
def test_a_command_stays_within_its_bounds(greedy: str) -> None:
    assert not check(f"kept = {greedy}")


def test_a_command_that_is_not_there_is_no_wrong_answer() -> None:
    with pytest.raises(CannotRun, match="/nowhere/check: not found, or cannot be run"):
        asyncio.run(accepts(["/nowhere/check"], "", 120.0))


def test_suites_run_commands_where_they_are_allowed(tmp_path: Path) -> None:
    script = tmp_path / "check.sh"
    script.write_text("#!/bin/sh\ngrep -q yes\n")
    script.chmod(0o755)
    cases = [
        {"checker": {"kind": "command", "argv": ["./check.sh"]}},
        {"checker": {"kind": "command", "argv": ["./x"]}},
    ]
    found = asyncio.run(run_suite(suite_of(*cases, directory=tmp_path), yes, SuiteLimits(allow_commands=True)))
    assert [result.score for result in found] == [1.0, None]
    assert "not found" in found[1].why


class _Server(ThreadingHTTPServer):
    """A server that answers as scripted and records its requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.status, self.body, self.wait = 200, "", threading.Event()
        self.wait.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/"


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.asked.append((self.path, headers, body))
        self.server.wait.wait(120)
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.body.encode())

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield server
        server.wait.set()
        server.shutdown()


def ask(url: str, timeout_s: float = 120.0, **entries: object) -> str:
    async def once() -> str:
        endpoint = EvalEndpoint(url, "live", "key", timeout_s)
        try:
            return await endpoint(suite_of(SAYS_YES | entries).cases[0])
        finally:
            await endpoint.aclose()

    return asyncio.run(once())


def test_an_endpoint_is_asked_as_openais(server: _Server) -> None:
    server.body = json.dumps({"id": "x", "choices": [{"index": 0, "message": {"role": "assistant", "content": "yes"}}]})
    assert ask(server.url, seed=3) == "yes"
    path, headers, body = server.asked[0]
    assert path == "/v1/chat/completions"
    assert (headers["authorization"], headers["x-onward-learn"], headers["x-turn-type"]) == (
        "Bearer key",
        "false",
        "side",
    )
    assert body == {
        "model": "live",
        "messages": [{"role": "user", "content": "?"}],
        "temperature": 0.0,
        "max_tokens": 512,
        "seed": 3,
    }
    server.body = '{"choices": [{"message": {"role": "assistant", "content": null}}]}'
    assert ask(server.url) == ""
    assert "seed" not in server.asked[1][2]


@pytest.mark.parametrize("words", ['"code": "context_length_exceeded"', '"message": "maximum context length is 512"'])
def test_a_case_that_says_nothing_of_it_takes_the_room_there_is(server: _Server, words: str) -> None:
    """One that does is told to say fewer."""
    server.status, server.body = 400, f'{{"error": {{{words}}}}}'
    with pytest.raises(CannotRun, match=r"400: .*\}$"):
        ask(server.url)
    assert [body.get("max_tokens") for _, _, body in server.asked] == [512, None]
    with pytest.raises(CannotRun, match=r"400: .* \(the case's max_tokens is 600: say fewer\)"):
        ask(server.url, max_tokens=600)
    assert len(server.asked) == 3


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (503, "away", "503: away"),
        (404, '{"error": {"message": "no such model"}}', "404: .*no such model"),
        (200, "<html>", "not a chat completion"),
        (200, '{"choices": []}', "not a chat completion"),
        (200, '{"choices": [{"message": {"content": 3}}]}', "not a chat completion"),
    ],
)
def test_what_is_no_answer_says_so(server: _Server, status: int, body: str, said: str) -> None:
    server.status, server.body = status, body
    with pytest.raises(CannotRun, match=f"/v1/chat/completions: {said}"):
        ask(server.url)


def test_an_endpoint_that_hangs_or_is_away_says_so(server: _Server) -> None:
    server.wait.clear()
    with pytest.raises(CannotRun, match=r"no answer within 0\.1 s"):
        ask(server.url, timeout_s=0.1)
    server.wait.set()
    server.server_close()
    with pytest.raises(CannotRun, match="ConnectError"):
        ask(server.url)


def test_nothing_is_left_of_what_ran() -> None:
    before = set(psutil.Process(os.getpid()).children(recursive=True))
    check("pass")
    assert set(psutil.Process(os.getpid()).children(recursive=True)) <= before
