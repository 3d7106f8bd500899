"""The cost of the API: requests per second with every turn logged.

    python -m bench api_overhead [--no-litellm]

It is compared with a bare FastAPI pass-through that logs nothing, and with the LiteLLM proxy. All stand before the
same stub engine (64 tokens with logprobs at once), one process each, with 64 clients from one further process,
streaming and not; contenders take turns, medians count. Then the route of each other protocol is held against the
chat's. LiteLLM (installed into `.bench-venv`, as it brings a great many packages) stands before the bare pass-through,
as it would before a model's own server.

Two processes of ours, as `processes.api = 2` starts them, are held against the same bare server, which is one process.
The clients are a third one, which on two cores takes its share from both."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import psutil

from bench.api.api_servers import CHUNKS, MODEL, TOKENS
from bench.api.http_load import BODIES, CHAT
from bench.table import Row, interleave, report

ROUNDS = 7
LITELLM_ROUNDS = 3
PROTOCOL_ROUNDS = 3
SECONDS = 3.0
CLIENTS = 64
WHOLE, STREAMS = "whole answers", "streams"
GOALS_AGAINST_FLOOR = {WHOLE: 0.6, STREAMS: 1.5}
GOAL_OF_TWO = 1.0
GOALS_AGAINST_LITELLM = {WHOLE: 20.0, STREAMS: 20.0}
START_TIMEOUT_S = 120
ROOT = Path(__file__).resolve().parents[2]
PEER = ROOT / ".bench-venv"
LITELLM = "litellm[proxy]==1.106.2"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


@contextmanager
def process(command: list[str], **options: object) -> Iterator["subprocess.Popen[str]"]:
    child = subprocess.Popen(command, text=True, cwd=ROOT, **{"env": ENVIRONMENT, **options})  # type: ignore[call-overload]
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


class Server:
    """A running contender, with another process of it `beside` where it has two."""

    def __init__(self, port: int, pid: int, beside: "Server | None" = None) -> None:
        self.port = port
        self._process = psutil.Process(pid)
        self._beside = beside
        self.cpu_us: list[float] = []

    def measure(self, stream: bool, path: str = CHAT) -> float:
        """Return requests per second."""
        ports = str(self.port) if self._beside is None else f"{self.port},{self._beside.port}"
        command = [sys.executable, "-m", "bench.api.http_load", ports, str(CLIENTS), str(SECONDS), path]
        before_s = self._cpu_s()
        result = subprocess.run(
            command + ["stream"] * stream, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=True
        )
        measured = json.loads(result.stdout)
        self.cpu_us.append((self._cpu_s() - before_s) / measured["requests"] * 1e6)
        return float(measured["requests_per_s"])

    def _cpu_s(self) -> float:
        times = self._process.cpu_times()
        return times.user + times.system + (0.0 if self._beside is None else self._beside._cpu_s())


@contextmanager
def ours(*arguments: str, beside: Server | None = None) -> Iterator[Server]:
    """Start one server of `bench.api.api_servers`; `beside`: another process of it, which runs already."""
    with process([sys.executable, "-m", "bench.api.api_servers", *arguments], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        line = child.stdout.readline()
        if not line:
            raise SystemExit(f"the server {arguments[0]} did not start")
        yield Server(int(line), child.pid, beside)


def ensure_litellm() -> Path:
    """Return LiteLLM's command, installing it if need be."""
    command = PEER / "bin" / "litellm"
    if not command.exists():
        subprocess.run([sys.executable, "-m", "venv", str(PEER)], check=True)
        subprocess.run([str(PEER / "bin" / "pip"), "install", "-q", "uv"], check=True)
        python = str(PEER / "bin" / "python")
        subprocess.run([str(PEER / "bin" / "uv"), "pip", "install", "-q", "--python", python, LITELLM], check=True)
    return command


@contextmanager
def litellm(command: Path, backend: Server, directory: Path, port: int) -> Iterator[Server]:
    parameters = {"model": f"openai/{MODEL}", "api_base": f"http://127.0.0.1:{backend.port}/v1", "api_key": "none"}
    config = directory / "litellm.json"  # YAML reads JSON
    config.write_text(json.dumps({"model_list": [{"model_name": MODEL, "litellm_params": parameters}]}))
    environment = ENVIRONMENT | {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",  # no keys to check, as for the others
    }
    arguments = ["--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    with (
        (directory / "litellm.log").open("w") as log,
        process([str(command), *arguments, "--telemetry", "False"], stdout=log, stderr=log, env=environment) as child,
    ):
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not _answers(f"http://127.0.0.1:{port}/health/liveliness"):
            if child.poll() is not None or time.monotonic() > deadline_s:
                raise SystemExit(f"LiteLLM did not start:\n{(directory / 'litellm.log').read_text()[-2000:]}")
            time.sleep(0.2)
        yield Server(port, child.pid)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def rows_against(name: str, onward: Server, other: Server, rounds: int, goals: Mapping[str, float]) -> Iterator[Row]:
    for stream in (False, True):
        contenders: dict[str, Callable[[], float]] = {
            "onward": partial(onward.measure, stream),
            name: partial(other.measure, stream),
        }
        onward.cpu_us.clear()
        other.cpu_us.clear()
        medians = interleave(contenders, rounds)
        kind = STREAMS if stream else WHOLE
        ratio = medians["onward"] / medians[name]
        yield Row.at_least(f"{kind}, every turn durable", medians["onward"], "requests/s", name, ratio, goals[kind])
        yield Row(f"{kind}, {name}", medians[name], "requests/s")
        for who, server in (("onward", onward), (name, other)):
            yield Row(f"{kind}, {who}: CPU", sorted(server.cpu_us)[len(server.cpu_us) // 2], "µs/request")


def rows_of_two(directory: str, floor: Server) -> Iterator[Row]:
    """Yield what two processes do that share an engine, beside the bare server."""
    with ours("first", directory) as first, ours("beside", directory, beside=first) as both:
        floor.cpu_us.clear()
        medians = interleave({"both": partial(both.measure, False), "bare": partial(floor.measure, False)}, ROUNDS)
        ratio = medians["both"] / medians["bare"]
        yield Row.at_least(f"{WHOLE}, two processes", medians["both"], "requests/s", "bare FastAPI", ratio, GOAL_OF_TWO)
        middle = len(both.cpu_us) // 2
        yield Row(f"{WHOLE}, two processes: CPU", sorted(both.cpu_us)[middle], "µs/request")


def rows_of_protocols(onward: Server) -> Iterator[Row]:
    """Yield what each route does beside the chat's, on the same server."""
    for stream in (False, True):
        medians = interleave({path: partial(onward.measure, stream, path) for path in BODIES}, PROTOCOL_ROUNDS)
        kind = STREAMS if stream else WHOLE
        for path in BODIES:
            if path != CHAT:
                ratio = medians[path] / medians[CHAT]
                yield Row(f"{kind}, {path}", medians[path], "requests/s", CHAT, ratio)


def main() -> None:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=ROOT, prefix=".bench-api-")))
        onward = stack.enter_context(ours("onward", str(directory)))
        floor = stack.enter_context(ours("floor"))
        print(f"{TOKENS} tokens with logprobs, {CHUNKS} chunks, {CLIENTS} clients", file=sys.stderr)
        rows = list(rows_against("bare FastAPI", onward, floor, ROUNDS, GOALS_AGAINST_FLOOR))
        rows += rows_of_protocols(onward)
        rows += rows_of_two(str(directory / "two"), floor)
        if "--no-litellm" not in sys.argv:
            proxy = stack.enter_context(litellm(ensure_litellm(), floor, directory, free_port()))
            rows += rows_against("LiteLLM", onward, proxy, LITELLM_ROUNDS, GOALS_AGAINST_LITELLM)
    report("api_overhead", rows)


if __name__ == "__main__":
    main()
