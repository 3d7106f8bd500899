"""The stack of docker-compose.yml, under a project name of the test's own."""

import functools
import json
import os
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = ("docker-compose.yml", "tests/compose/quick.yml")
STAGES = ("api", "ingest", "score", "watch", "learn", "release", "archive", "serve-1", "serve-2")
THIRD_PARTIES = ("kafka", "postgres", "redis", "prometheus", "gateway")
PORTS = {"ONWARD_PORT": "0", "ONWARD_PROMETHEUS_PORT": "0"}  # free ones
RUN_ONCE = ("secrets", "migrate", "engine-arguments")
BACK_TIMEOUT_S = 600  # two engines and the learner start again, on two cores


def run(
    *command: str,
    stdin: str | None = None,
    timeout_s: float = 300,
    check: bool = True,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Return the command's output; fails the test with all of it if the command fails."""
    done = subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        cwd=ROOT,
        env={**os.environ, **PORTS, **(environment or {})},
    )
    if check and done.returncode:
        pytest.fail(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


def wait_for(condition: Callable[[], Any], timeout_s: float, what: str | Callable[[], str]) -> Any:
    """Return the condition's value once it is true; it is looked at once more when its time is over."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        is_over = time.monotonic() >= deadline_s
        found = condition()
        if found:
            return found
        if is_over:
            pytest.fail(f"{what if isinstance(what, str) else what()}: not within {timeout_s:.0f} s")
        time.sleep(0.2)


def require_compose(*, engine: bool) -> None:
    """Skip without Compose v2 (and, with `engine`, an engine); fail instead where ONWARD_REQUIRE_SERVICES=1."""
    missing = what_is_missing(engine=engine)
    if missing is None:
        return
    message = f'needs {missing}: eval "$(.ci/engine.sh up DIR)" brings one where there is none'
    if os.environ.get("ONWARD_REQUIRE_SERVICES") == "1":
        pytest.fail(message)
    pytest.skip(message)


@functools.cache
def what_is_missing(*, engine: bool) -> str | None:
    checks = {"Docker Compose v2": ["docker", "compose", "version"]}
    if engine:
        checks["a Docker engine"] = ["docker", "version"]
    for what, command in checks.items():
        try:
            if subprocess.run(command, capture_output=True, check=False, timeout=30).returncode:
                return what
        except FileNotFoundError:
            return what
    return None


class Refused(Exception):
    """An error answer, or none at all."""


class Stack:
    """A Compose project; COMPOSE_TEST_PROJECT names one to keep running for the next run."""

    def __init__(self) -> None:
        self.kept = os.environ.get("COMPOSE_TEST_PROJECT")
        self.project = self.kept or f"onward-test-{uuid.uuid4().hex[:8]}"
        self._keys: dict[str, str] = {}

    def compose(
        self,
        *arguments: str,
        stdin: str | None = None,
        timeout_s: float = 300,
        check: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> str:
        files = [part for name in FILES for part in ("-f", name)]
        command = ["docker", "compose", "-p", self.project, *files, *arguments]
        return run(*command, stdin=stdin, timeout_s=timeout_s, check=check, environment=environment)

    def build(self) -> None:
        """Build the images, one after another: side by side, each would make for itself the layers that they share."""
        self.compose("build", timeout_s=1500, environment={"COMPOSE_PARALLEL_LIMIT": "1"})

    def up(self) -> None:
        self.compose("up", "--detach", "--no-build", "--wait", "--wait-timeout", "1200", timeout_s=1260)

    def down(self) -> None:
        if self.kept is None:
            self.remove()

    def remove(self) -> None:
        """Remove the containers with their volumes."""
        self.compose("--profile", "*", "down", "--volumes", "--timeout", "20", timeout_s=300)

    # ------------------------------------------------------------------------------------------ containers

    def containers(self, service: str) -> list[str]:
        return self.compose("ps", "--all", "--quiet", service).split()

    def inspect(self, container: str) -> dict[str, Any]:
        return dict(json.loads(run("docker", "inspect", container))[0])

    def is_healthy(self, container: str) -> bool:
        state = self.inspect(container)["State"]
        return bool(state["Running"] and state.get("Health", {"Status": "healthy"})["Status"] == "healthy")

    def pause(self, service: str) -> None:
        """Pause a service, again and again until it is paused.

        An engine gives up on a busy container after some milliseconds."""
        (container,) = self.containers(service)

        def is_paused() -> bool:
            if not self.inspect(container)["State"]["Paused"]:
                self.compose("pause", service, check=False)
            return bool(self.inspect(container)["State"]["Paused"])

        wait_for(is_paused, 120, f"{service} to be paused")

    def crash(self, service: str, index: int = 0) -> Callable[[], bool]:
        """Kill everything in a container with SIGKILL; return a function that tells whether it is back.

        The restart policy restarts a stage; third-party services are started again here."""
        container = self.containers(service)[index]
        before = self.inspect(container)["State"]["StartedAt"]
        if service in THIRD_PARTIES:
            run("docker", "kill", container)
            run("docker", "start", container)
        else:
            run("docker", "exec", container, "sh", "-c", "kill -9 -1", check=False)
        return lambda: self.inspect(container)["State"]["StartedAt"] != before and self.is_healthy(container)

    def wait_ready(self) -> None:
        """Wait until all containers are healthy, as `up --wait` does."""
        wait_for(lambda: not self.unhealthy(), BACK_TIMEOUT_S, lambda: f"a healthy stack ({self.unhealthy()})")

    def unhealthy(self) -> list[str]:
        rows = [json.loads(line) for line in self.compose("ps", "--all", "--format", "json").splitlines()]
        assert rows
        lasting = [row for row in rows if row["Service"] not in RUN_ONCE]
        return [row["Name"] for row in lasting if row["State"] != "running" or row["Health"] not in ("", "healthy")]

    # ------------------------------------------------------------------------------------------ as a client

    def address(self, service: str, port: int, index: int = 1, missing: str | None = None) -> str:
        """Return the URL of a published port, or `missing` while there is none.

        The port may change when the container starts again."""
        found = self.compose("port", "--index", str(index), service, str(port), check=missing is None).strip()
        return "http://" + found if found else str(missing)

    @property
    def url(self) -> str:
        return self.address("gateway", 8700)

    def key(self, name: str = "client_key") -> str:
        """Return a key that `make-secrets` made."""
        if name not in self._keys:
            once = ("run", "--rm", "--no-deps", "-T", "--entrypoint", "cat", "secrets")
            self._keys[name] = self.compose(*once, f"/run/secrets/all/{name}").strip()
        return self._keys[name]

    # ------------------------------------------------------------------------------------------ what is stored

    def report(self, inference_ids: list[str], outcome_ids: list[str]) -> dict[str, Any]:
        """Return what the store and the log say, asked within the network: see report.py."""
        mount = f"{Path(__file__).with_name('report.py')}:/report.py:ro"
        asked = json.dumps({"inference_ids": inference_ids, "outcome_ids": outcome_ids})
        command = ["run", "--rm", "--no-deps", "-T", "-v", mount, "--entrypoint", "with-secrets", "doctor"]
        return dict(json.loads(self.compose(*command, "python", "/report.py", stdin=asked).splitlines()[-1]))

    def newest_version(self) -> int:
        answer = ask(self.url + "/v1/policies", self.key("admin_key"))
        return max(policy["version"] for policy in answer["data"])


def ask(url: str, key: str, body: Mapping[str, Any] | None = None, timeout_s: float = 120) -> Any:
    """Send a request and return its JSON.

    Raises Refused on an error answer or none."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=timeout_s) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            raise Refused(f"{error.code}: {error.read().decode(errors='replace')[:500]}") from None
    except (OSError, ValueError, HTTPException) as error:  # away, broken off, or half an answer
        raise Refused(repr(error)) from error
