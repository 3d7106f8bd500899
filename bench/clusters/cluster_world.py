"""Two whole services that meet in a bucket of a real S3 server; the edge's way there is a line that can be cut."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from bench.clusters.cut_line import Line
from deploy.services.s3 import S3
from onward.wiring.foundation import Foundation, open_foundation

START_TIMEOUT_S, STOP_TIMEOUT_S, DIE_TIMEOUT_S = 400.0, 60.0, 30.0
_PATIENCE_S = 120.0
_LOOK_AGAIN_S = 0.05
BUCKET = "onward"
SHARED = {"blobs": f"s3://{BUCKET}/blobs", "clusters.url": f"s3://{BUCKET}/clusters"}
HOME = SHARED | {"clusters.role": "home", "serving.cluster": "home"}
EDGE = SHARED | {"clusters.role": "edge", "serving.cluster": "edge", "learner.enabled": "false"}


def wait_for(condition: Callable[[], Any], what: str, timeout_s: float) -> Any:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if found := condition():
            return found
        time.sleep(_LOOK_AGAIN_S)
    raise SystemExit(f"{what} did not come within {timeout_s:.0f} s")


def asked(url: str, body: Mapping[str, Any] | None = None) -> Any:
    """Return the JSON of an answer, also of one that is no success to a GET. Raises OSError, HTTPException."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=_PATIENCE_S) as response:
        return json.load(response)


class Cluster:
    """An `onward run` on a directory. After a kill it starts again at the same port."""

    def __init__(self, directory: Path, settings: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self.directory = directory
        self._settings, self._environment = settings, {**os.environ, **environment, "OMP_NUM_THREADS": "1"}
        self._log = directory.with_suffix(".log")
        self._process: subprocess.Popen[bytes] | None = None
        self._address = directory / "service.json"
        self._killed_s: float | None = None
        self.url = ""
        self.away: list[tuple[float, float]] = []
        """From each kill to the moment at which all had started again, in monotonic seconds."""
        directory.mkdir()

    def start(self) -> None:
        """Start it. Raises SystemExit with the end of its log where it does not come up."""
        if not self.comes_up():
            raise SystemExit(f"{self.directory.name} ended:\n{self._log.read_text()[-4000:]}")

    def comes_up(self) -> bool:
        """Start it; return whether all of it has started, False once it has ended instead."""
        self._address.unlink(missing_ok=True)
        port = urlsplit(self.url).port or 0
        command = [sys.executable, "-m", "onward", "run", str(self.directory), "--port", str(port)]
        for name, value in self._settings.items():
            command += ["--set", f"{name}={value}"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=self._environment)
        wait_for(lambda: not self.runs or self._has_started(), f"{self.directory.name}'s start", START_TIMEOUT_S)
        if self.runs and self._killed_s is not None:
            self.away.append((self._killed_s, time.monotonic()))
            self._killed_s = None
        return self.runs

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _has_started(self) -> bool:
        if not self._address.exists():
            return False
        self.url = str(json.loads(self._address.read_text())["url"])
        with suppress(OSError):
            return "degraded: starting" not in self._readiness().values() and self.live() > 0
        return False

    def _readiness(self) -> dict[str, str]:
        try:
            return dict(asked(f"{self.url}/readyz")["components"])
        except urllib.error.HTTPError as error:  # a part is down: the others may have started
            with error:
                return dict(json.load(error)["components"])

    def kill(self) -> None:
        """Kill the service with SIGKILL; its children end by themselves."""
        assert self._process is not None
        children = psutil.Process(self._process.pid).children(recursive=True)
        self._killed_s = time.monotonic()
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(DIE_TIMEOUT_S)
        left = psutil.wait_procs(children, DIE_TIMEOUT_S)[1]
        if left:
            raise SystemExit(f"{self.directory.name}: outlived their service: {left}")

    def stop(self) -> None:
        if self._process is not None and self.runs:
            self._process.terminate()
            self._process.wait(STOP_TIMEOUT_S)

    def live(self) -> int:
        """Return the version that serves here. Raises OSError."""
        return int(asked(f"{self.url}/v1/policies?limit=1")["live"] or 0)

    def reaches_the_bucket(self) -> bool:
        """Return whether it sees the other clusters. Raises OSError."""
        return asked(f"{self.url}/v1/clusters")["unreachable"] is None

    @contextmanager
    def opened(self) -> Iterator[Foundation]:
        """Yield its store and blobs, beside the service."""
        settings = {f"ONWARD_{name.upper().replace('.', '__')}": str(value) for name, value in self._settings.items()}
        foundation = open_foundation(self.directory, settings)
        try:
            yield foundation
        finally:
            foundation.close()


@dataclass(frozen=True)
class World:
    home: Cluster
    edge: Cluster
    line: Line


@contextmanager
def two_clusters(place: Path) -> Iterator[World]:
    """Yield both clusters, started. What reads S3 in this process finds the server, too."""
    with ExitStack() as stack:
        s3 = S3(place / "s3")
        s3.up()
        stack.callback(s3.kill)
        s3.make_bucket(BUCKET)
        os.environ.update(s3.environment)
        line = Line(s3.ports["port"])
        stack.callback(line.close)
        home = Cluster(place / "home", HOME, {})
        edge = Cluster(place / "edge", EDGE, {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{line.port}"})
        for cluster in (home, edge):
            stack.callback(cluster.stop)
            cluster.start()
        yield World(home, edge, line)
