"""One SGLang server as a child process."""

import ctypes
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from core.errors import ConfigError, EngineUnavailable, WeightsError
from core.grammars.library import LIBRARY, VERSION
from core.ids import PolicyRef
from core.settings import SglangSettings
from serving.engines.sglang import launcher
from serving.engines.sglang.admin import AdapterRoom

_STOP_TIMEOUT_S = 20.0
_TAIL = 1500
_PR_SET_PDEATHSIG = 1
_FIRST_PORT, _PORTS = 20_000, 12_000  # below those that a system hands out by itself
GRAMMARS: Final = ("--grammar-backend", LIBRARY)  # ours: the learner makes its masks again
PRIORITIES: Final = ("--enable-priority-scheduling",)
LAUNCHER: Final = str(Path(launcher.__file__))
# Found here and not after the fork, when another thread may have held the linker's lock for good.
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def cpu_arguments(dtype: str) -> list[str]:
    """Return arguments for a small server on a CPU.

    Its default dtype would turn float32 checkpoints into float16. The share of memory only bounds what weights and
    cache may take: how large the cache is follows from its tokens."""
    options = ["--device", "cpu", "--dtype", dtype, "--attention-backend", "torch_native"]
    options += ["--sampling-backend", "pytorch", "--disable-overlap-schedule", "--mem-fraction-static", "0.6"]
    options += ["--max-total-tokens", "32768", "--max-running-requests", "48", *GRAMMARS, *PRIORITIES]
    return [*options, "--incremental-streaming-output", "--sleep-on-idle"]  # else an idle server takes a whole core


def adapter_arguments(room: AdapterRoom, device: str) -> list[str]:
    """Return arguments for adapters beside the base; on a CPU plain torch computes them.

    With strict loading the server refuses an adapter with a tensor that it cannot place, instead of skipping it."""
    options = ["--enable-lora", "--lora-strict-loading", "--max-lora-rank", str(room.max_rank)]
    options += ["--lora-target-modules", *sorted(room.targets)]
    options += [] if room.max_loaded is None else ["--max-loaded-loras", str(room.max_loaded)]
    return [*options, *(["--lora-backend", "torch_native"] if device == "cpu" else [])]


def _gpu_arguments(dtype: str) -> list[str]:
    return ["--dtype", dtype, "--incremental-streaming-output", *GRAMMARS, *PRIORITIES]


def server_arguments(settings: SglangSettings, model: Path, room: AdapterRoom | None) -> list[str]:
    """Return all arguments that follow from the settings, which add some of their own; `room`: the adapters to take."""
    options = cpu_arguments(settings.dtype) if settings.device == "cpu" else _gpu_arguments(settings.dtype)
    options += [] if room is None else adapter_arguments(room, settings.device)
    return ["--model-path", str(model), *options, *settings.arguments]


def cpu_environment() -> dict[str, str]:
    return {
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",  # else /health generates, and hangs while paused
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        launcher.FORKING: "1",
    }


class EngineProcess:
    """Started, stopped and started again by its host, and dead when the host is. One thread."""

    def __init__(self, settings: SglangSettings, log: Path, room: AdapterRoom | None = None) -> None:
        """Prepare a server, which loads adapters by name where `room` says which.

        Raises ConfigError when there is no interpreter."""
        if not settings.python.exists():
            raise ConfigError(
                f"serving.sglang.python: {settings.python} does not exist (`make sglang-cpu` makes the one for CPUs)"
            )
        _check_grammars(settings.python)
        self._settings, self._log, self._room = settings, log, room
        self._group = log.with_suffix(".pid")
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0
        self.started_on: PolicyRef | None = None
        self.is_starting = False
        self.url = f"http://127.0.0.1:{_free_port()}"

    def start(self, model: Path, version: PolicyRef) -> None:
        """Start the server and return at once; it answers after a while, under the same URL each time."""
        assert not self.is_alive
        self._end_leftover()
        settings = self._settings
        command = [str(settings.python), *_program(settings)]
        command += ["--host", "127.0.0.1", "--port", self.url.rsplit(":", 1)[1], "--weight-version", str(version)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *server_arguments(settings, model, self._room)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=_environment(settings),
                start_new_session=True,
                preexec_fn=_die_with_host,
            )
        self._group.write_text(str(self._process.pid))
        self.started_on, self.is_starting, self._started_s = version, True, time.monotonic()

    def _end_leftover(self) -> None:
        """End processes that a killed host left: its server dies with it, but workers that just started may not."""
        with suppress(FileNotFoundError, ValueError):
            group = int(self._group.read_text())
            for process in psutil.process_iter(["cmdline"]):
                with suppress(ProcessLookupError, psutil.NoSuchProcess):
                    if os.getpgid(process.pid) == group and "sglang" in " ".join(process.info["cmdline"] or ()):
                        process.kill()

    def is_ready(self, answers: Callable[[], bool]) -> bool:
        """Return whether the start is complete.

        Raises WeightsError with the log's end when the server died, and EngineUnavailable when it took too long and was
        ended."""
        if not self.is_alive:
            self.is_starting = False
            raise WeightsError(f"the SGLang server ended, see {self._log}:\n{self.log_tail()}")
        if answers():
            self.is_starting = False
        elif time.monotonic() - self._started_s > self._settings.timeouts.start_s:
            self.kill()
            raise EngineUnavailable(f"the SGLang server did not start within {self._settings.timeouts.start_s:.0f} s")
        return not self.is_starting

    def log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-_TAIL:] if self._log.exists() else ""

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def stop(self) -> None:
        """Stop the whole process group, by SIGTERM, then by SIGKILL."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_TIMEOUT_S)
        self.kill()

    def kill(self) -> None:
        self.is_starting = False
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(_STOP_TIMEOUT_S)


def _check_grammars(python: Path) -> None:
    """Refuse an SGLang whose masks may differ from those that the learner makes again. Raises ConfigError."""
    script = f"import importlib.metadata as m; print(m.version({LIBRARY!r}))"
    asked = subprocess.run([python, "-c", script], capture_output=True, text=True, check=False)
    found = asked.stdout.strip() or f"no {LIBRARY}"
    if found != VERSION:
        raise ConfigError(
            f"serving.sglang.python: {python} has {found}, and masks of grammars are made again by {VERSION}: "
            f"install {LIBRARY}=={VERSION} beside SGLang"
        )


def _program(settings: SglangSettings) -> list[str]:
    is_ours = settings.admin_key is not None or settings.device == "cpu"
    return [LAUNCHER] if is_ours else ["-m", "sglang.launch_server"]


def _environment(settings: SglangSettings) -> dict[str, str]:
    """Ours, without our settings: some are secrets that are not the server's."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("ONWARD_")}
    key = {} if settings.admin_key is None else {launcher.KEY: settings.admin_key}
    return {**ours, **(cpu_environment() if settings.device == "cpu" else {}), **key}


def _free_port() -> int:
    """Return a port where nobody listens, below the range from which the system hands out ports by itself.

    The server binds it only once its model is loaded, and again each time it is started: nobody else must get it
    meanwhile."""
    for _ in range(_PORTS):
        port = _FIRST_PORT + secrets.randbelow(_PORTS)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise ConfigError(f"no port of 127.0.0.1 from {_FIRST_PORT} to {_FIRST_PORT + _PORTS - 1} is free for SGLang")


def _die_with_host() -> None:
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
