"""A real SGLang server on this machine's CPU, in a process group of the test's own."""

import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

import psutil
import pytest
from ports import free_port

from serving.engines.sglang.process import LAUNCHER, cpu_arguments, cpu_environment

ROOT = Path(__file__).resolve().parents[3]
PYTHON = ROOT / ".sglang" / "bin" / "python"
MODEL = ROOT / "models" / "tiny"
START_TIMEOUT_S = 300
STOP_TIMEOUT_S = 30


@dataclass
class SglangServer:
    url: str
    pid: int
    log: Path
    process: "subprocess.Popen[bytes]"

    def kill(self) -> None:
        """Kill the whole process group at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(STOP_TIMEOUT_S)


def require_sglang() -> None:
    """Skip without SGLang, or fail where ONWARD_REQUIRE_SERVICES=1."""
    if PYTHON.exists():
        return
    why = "SGLang is not installed: make sglang-cpu"
    if os.environ.get("ONWARD_REQUIRE_SERVICES") == "1":
        pytest.fail(why)
    pytest.skip(why)


@contextmanager
def sglang_server(
    model: Path,
    directory: Path,
    *,
    dtype: str = "float32",
    extra: Sequence[str] = (),
    admin_key: str | None = None,
) -> Iterator[SglangServer]:
    require_sglang()
    directory.mkdir(parents=True, exist_ok=True)
    port, log = free_port(), directory / "sglang.log"
    command = [str(PYTHON), LAUNCHER, "--model-path", str(model), "--port", str(port)]
    command += [*cpu_arguments(dtype), *extra]
    if admin_key is not None:
        command += ["--admin-api-key", admin_key]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **cpu_environment()},
            start_new_session=True,
        )
    server = SglangServer(f"http://127.0.0.1:{port}", process.pid, log, process)
    try:
        _wait_until_ready(server)
        yield server
    finally:
        _stop(server)


def _wait_until_ready(server: SglangServer) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            pytest.fail(f"SGLang ended with {server.process.returncode}:\n{server.log.read_text()[-4000:]}")
        try:
            with urllib.request.urlopen(f"{server.url}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (OSError, HTTPException):
            time.sleep(0.1)
    pytest.fail(f"SGLang was not ready within {START_TIMEOUT_S} s:\n{server.log.read_text()[-4000:]}")


def _stop(server: SglangServer) -> None:
    children = []
    with suppress(psutil.NoSuchProcess):
        children = psutil.Process(server.pid).children(recursive=True)
    if server.process.poll() is None:
        server.process.send_signal(signal.SIGCONT)
        server.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            server.process.wait(STOP_TIMEOUT_S)
    server.kill()
    psutil.wait_procs(children, STOP_TIMEOUT_S)
