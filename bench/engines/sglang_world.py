"""Real SGLang servers on this machine's CPU, and a service before one.

Every server runs with `--sleep-on-idle`, also those that are asked directly: an idle scheduler spins otherwise, and
would take one of two cores from the contender that is measured."""

import json
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.api.api_overhead import ROOT, process
from bench.api.api_servers import MODEL
from bench.engines.stream_load import Target
from core.errors import OnwardError
from core.ids import ANCHOR
from core.settings import SglangSettings
from onward.directory.layout import SHIPPED_MODEL
from serving.engines.sglang.process import EngineProcess
from serving.rendering import load_renderer

PYTHON = ROOT / ".sglang" / "bin" / "python"
PROMPT = [{"role": "user", "content": "[web] write total(xs): sum of xs"}]
START_TIMEOUT_S = 300
_LOOK_AGAIN_S = 0.05


def require_sglang() -> None:
    if not PYTHON.exists():
        raise SystemExit("this benchmark needs SGLang for CPUs in .sglang, and there is none: run `make sglang-cpu`")


@contextmanager
def sglang_servers(directory: Path, *names: str) -> Iterator[list[EngineProcess]]:
    """Start servers side by side, since each takes half a minute, most of it imports."""
    settings = SglangSettings(python=PYTHON, arguments=("--sleep-on-idle",))
    servers = [EngineProcess(settings, directory / f"{name}.log") for name in names]
    try:
        for server in servers:
            server.start(SHIPPED_MODEL, ANCHOR)
        wait_for(lambda: all(map(_is_up, servers)), "SGLang")
        yield servers
    finally:
        for server in servers:
            server.stop()


def _is_up(server: EngineProcess) -> bool:
    try:
        return server.is_ready(lambda: answers(f"{server.url}/health"))
    except OnwardError as error:
        raise SystemExit(str(error)) from error


@contextmanager
def service(directory: Path, settings: str) -> Iterator[None]:
    """Run `onward run` on a directory with these settings (TOML); `ready_url` tells when it is up."""
    directory.mkdir()
    (directory / "onward.toml").write_text(settings)
    with (
        directory.with_suffix(".log").open("w") as log,
        process([sys.executable, "-m", "onward", "run", str(directory), "--port", "0"], stdout=log, stderr=log),
    ):
        yield


def ready_url(directory: Path) -> str | None:
    address = directory / "service.json"
    url = str(json.loads(address.read_text())["url"]) if address.exists() else None
    return url if url is not None and answers(f"{url}/readyz") else None


def wait_for(condition: Any, what: str, timeout_s: float = START_TIMEOUT_S) -> Any:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        found = condition()
        if found:
            return found
        time.sleep(_LOOK_AGAIN_S)
    raise SystemExit(f"{what} did not come within {timeout_s:.0f} s")


def answers(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(url, timeout=5) as response:
        return bool(response.status == 200)
    return False


def port_of(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None
    return port


def chat(port: int, max_tokens: int, **fields: Any) -> Target:
    body = {"model": MODEL, "messages": PROMPT, "max_tokens": max_tokens, "temperature": 1.0, "stream": True}
    return Target(port, "/v1/chat/completions", {**body, **fields})


def generate(port: int, max_tokens: int, logit_bias: Mapping[str, float] | None = None) -> Target:
    """Return the request that a service makes of the same chat: the same token ids, with log-probabilities."""
    renderer = load_renderer(SHIPPED_MODEL)
    sampling: dict[str, Any] = {"max_new_tokens": max_tokens, "temperature": 1.0, "top_p": 1.0, "top_k": -1}
    sampling["stop_token_ids"] = list(renderer.stop_token_ids)
    if logit_bias:
        sampling["logit_bias"] = dict(logit_bias)
    body = {"input_ids": list(renderer.render(PROMPT, ())), "sampling_params": sampling, "stream": True}
    return Target(port, "/generate", {**body, "return_logprob": True})
