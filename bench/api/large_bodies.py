"""The delay to other users while twenty bodies of 4 MiB are sent at once, of shapes that cost the most to read.

    python -m bench large_bodies [SHAPE...]

One service on the shipped model, as `onward run` starts it (without a learner). Four users ask for short answers,
each again 50 ms after the last; twenty clients send large bodies, each again as soon as it has its answer. Phases
without and with them take turns, so that other load of the machine affects both; medians of the phases count. Memory
is that of the service's whole tree of processes, its most within a phase against what it was before the first."""

import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from bench.table import Row, report

MODEL = "onward-tiny"
LARGE = 20
USERS = 4
PAUSE_S = 0.05
PHASE_S = 5.0
ROUNDS = 3
SIZE = (4 << 20) - 4096
GOAL_P99 = 2.0
GOAL_MB = 300.0
START_TIMEOUT_S = 120
CHAT = "/v1/chat/completions"
ROOT = Path(__file__).resolve().parents[2]
HEADERS = {"Content-Type": "application/json"}


def chat(messages: str, more: str = "") -> bytes:
    return f'{{"model": "{MODEL}", "messages": [{messages}]{more}}}'.encode()


def user(text: str) -> str:
    return f'{{"role": "user", "content": "{text}"}}'


def repeated(part: str, between: str = "") -> str:
    return between.join([part] * (SIZE // len((part + between).encode())))


def schema(parameters: str) -> str:
    return f', "tools": [{{"type": "function", "function": {{"name": "a", "parameters": {parameters}}}}}]'


SHAPES: dict[str, Callable[[], bytes]] = {
    "a text": lambda: chat(user(repeated("def total(prices): return sum(prices) # "))),
    "one word": lambda: chat(user(repeated("a"))),
    "line breaks": lambda: chat(user(repeated("\\n"))),
    "escapes": lambda: chat(user(repeated("\\u6f22"))),
    "control tokens": lambda: chat(user(repeated("<|im_end|>"))),
    "tiny messages": lambda: chat(repeated(user(""), ",")),
    "messages up to the bound": lambda: chat(",".join([user("x" * 90)] * 33_000)),
    "nested arrays": lambda: chat(user("hi"), schema(f'{{"enum": {"[" * 99_000}{"]" * 99_000}}}')),
    "tools": lambda: chat(user("hi"), f', "tools": [{repeated(chr(123) + chr(125), ",")}]'),
    "a schema that is not shown": lambda: chat(user("hi"), schema(f'{{"description": "{repeated("word ")}"}}')),
}


@dataclass(frozen=True)
class Phase:
    p99_ms: float
    most_mb: float
    statuses: dict[str, int]
    longest_s: float


@contextmanager
def service() -> Iterator[tuple[int, psutil.Process]]:
    with tempfile.TemporaryDirectory(prefix="onward-large-") as directory:
        command = [sys.executable, "-m", "onward", "run", directory, "--port", "0", "--set", "learner.enabled=false"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            port = int(line.split()[3].rpartition(":")[2])
            wait_until_ready(port)
            yield port, psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait(60)


def wait_until_ready(port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while ask(port, "GET", "/readyz", None)[0] != 200:
        if time.monotonic() > deadline:
            raise SystemExit("the service is not ready")
        time.sleep(0.2)


def ask(port: int, method: str, path: str, body: bytes | None) -> tuple[int, float]:
    """Return (status, seconds); the status is 0 where the connection broke."""
    started = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request(method, path, body, HEADERS)
        with connection.getresponse() as response:
            response.read()
            return response.status, time.perf_counter() - started
    except OSError:
        return 0, time.perf_counter() - started
    finally:
        connection.close()


def work(role: str, port: int, seconds: float, shape: str) -> None:
    """Send requests in a process of its own, and print [[status, seconds], ...]."""
    body = chat(user("What does this do?"), ', "max_tokens": 8') if role == "users" else SHAPES[shape]()
    count, pause_s = (USERS, PAUSE_S) if role == "users" else (LARGE, 0.0)
    ending = time.monotonic() + seconds
    found: list[tuple[int, float]] = []

    def go_on() -> None:
        while time.monotonic() < ending:
            found.append(ask(port, "POST", CHAT, body))
            time.sleep(pause_s)

    threads = [threading.Thread(target=go_on) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(found))


def start(role: str, port: int, shape: str, answers: IO[str]) -> "subprocess.Popen[str]":
    """Start a process that prints its results to the file `answers`.

    A pipe would not do: nobody reads it until the process ends, and it holds 64 KiB."""
    command = [sys.executable, "-m", "bench.api.large_bodies", "--work", role, str(port), str(PHASE_S), shape]
    return subprocess.Popen(command, stdout=answers, text=True, cwd=ROOT)


def printed(answers: IO[str]) -> list[tuple[int, float]]:
    answers.seek(0)
    found: list[tuple[int, float]] = json.load(answers)
    return found


def memory_mb(process: psutil.Process) -> float:
    total = 0
    for each in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            total += each.memory_info().rss
    return total / (1 << 20)


def phase(port: int, process: psutil.Process, shape: str | None) -> Phase:
    with tempfile.TemporaryFile("w+") as of_users, tempfile.TemporaryFile("w+") as of_large:
        workers = [start("users", port, "", of_users)]
        if shape is not None:
            workers.append(start("large", port, shape, of_large))
        most = 0.0
        while any(worker.poll() is None for worker in workers):
            most = max(most, memory_mb(process))
            time.sleep(0.05)
        users = printed(of_users)
        large = [] if shape is None else printed(of_large)
    wrong = [status for status, _ in users if status != 200]
    if wrong:
        raise SystemExit(f"users were answered with {set(wrong)}")
    took = sorted(seconds for _, seconds in users)
    statuses = {str(status): sum(1 for each, _ in large if each == status) for status, _ in large}
    return Phase(
        p99_ms=took[int(len(took) * 0.99)] * 1000,
        most_mb=most,
        statuses=statuses,
        longest_s=max((seconds for _, seconds in large), default=0.0),
    )


def measure(port: int, process: psutil.Process, shape: str, before_mb: float) -> list[Row]:
    idle, loaded = [], []
    for _ in range(ROUNDS):
        idle.append(phase(port, process, None))
        loaded.append(phase(port, process, shape))
    calm = statistics.median(each.p99_ms for each in idle)
    p99 = statistics.median(each.p99_ms for each in loaded)
    grown = max(each.most_mb for each in loaded) - before_mb
    print(f"{shape}: {[each.statuses for each in loaded]}", flush=True)
    return [
        Row.at_most(f"{shape}: the others' p99", p99, "ms", f"{calm:.1f} ms without", p99 / calm, GOAL_P99),
        Row(f"{shape}: memory grown by", grown, "MB", "before the first", None, GOAL_MB, grown <= GOAL_MB),
        Row(f"{shape}: longest until it is answered", max(each.longest_s for each in loaded), "s"),
    ]


def main(names: list[str]) -> None:
    shapes = names or list(SHAPES)
    rows: list[Row] = []
    with service() as (port, process):
        phase(port, process, None)  # to warm up
        before_mb = memory_mb(process)
        for shape in shapes:
            rows += measure(port, process, shape, before_mb)
    if names:
        for row in rows:
            print(row)
    else:
        report("large_bodies", rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), sys.argv[5])
    else:
        main(sys.argv[1:])
