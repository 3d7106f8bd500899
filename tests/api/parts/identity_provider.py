"""An identity provider that speaks OpenID Connect, as a process of its own (`oidc-provider-mock`)."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from ports import free_port

_WAIT_S = 120


@contextmanager
def running_provider(*users: dict[str, object]) -> Iterator[str]:
    """Yield its URL; users are their claims, `sub` among them."""
    port = free_port()
    command = [sys.executable, "-W", "ignore", "-m", "oidc_provider_mock", "--port", str(port), "--require-nonce"]
    for user in users:
        command += ["--user-claims", json.dumps(user)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=environment, **quiet) as process:  # type: ignore[call-overload]
        url = f"http://127.0.0.1:{port}"
        try:
            _wait_for(url)
            yield url
        finally:
            process.terminate()
            process.wait()


def _wait_for(url: str) -> None:
    deadline_s = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline_s:
        try:
            if httpx.get(f"{url}/.well-known/openid-configuration").is_success:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise TimeoutError(f"{url}: the identity provider did not start")
