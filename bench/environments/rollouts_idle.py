"""Users' times to the first token with rollouts that fill the engine and without, and the engine's idle share.

    python -m bench rollouts_idle [--rounds N] [--requests N]

Each round starts two services one after the other; in one of them the model works on tasks while users leave it idle
(`[rollouts]`). A user asks both at the same random times. The figures are medians over rounds."""

import argparse
import http.client
import json
import random
import re
import statistics
import tempfile
import time
import urllib.request
from pathlib import Path

from bench.engines.start import started
from bench.table import Row, interleave, report
from onward.commands.rollouts.demo import with_longer_context

GOAL = 1.1
GOAL_IDLE = 0.5
ROOT = Path(__file__).resolve().parents[2]
TASKS = ROOT / "environments" / "tasks" / "own"
KEPT = ROOT / "build" / "environments"
PAUSE_S = 0.25  # on average, between two requests
SETTLE_TIMEOUT_S = 600.0
BODY = {
    "model": "onward-tiny",
    "messages": [{"role": "user", "content": "[web] write add(a, b): their sum"}],
    "max_tokens": 16,
    "stream": True,
}
_TOKENS = re.compile(rb'"content":\s?"[^"]')
BUSY = "onward_engine_busy_seconds_total"


class Users:
    """Starts services on new directories below `folder`, and asks each as one user."""

    def __init__(self, folder: Path, requests: int) -> None:
        self._folder, self._requests = folder, requests
        self._model = with_longer_context(folder / "model")
        self._count = 0
        self.idle: dict[str, list[float]] = {"with": [], "without": []}

    def without(self) -> float:
        return self._first_token_ms("without", [])

    def beside(self) -> float:
        sets = json.dumps(str(TASKS))
        settings = ["rollouts.enabled=true", f"rollouts.task_sets={{own = {{folders = [{sets}]}}}}"]
        settings += ['rollouts.images={"*" = "machine"}', f"rollouts.prepared={KEPT}", "rollouts.parallel=4"]
        return self._first_token_ms("with", settings)

    def _first_token_ms(self, kind: str, settings: list[str]) -> float:
        """Return the 99th percentile of the times to the first token."""
        self._count += 1
        directory = self._folder / f"service-{self._count}"
        directory.mkdir()
        settings += [f"serving.model={self._model}", "learner.enabled=false"]
        with started(directory, time.monotonic(), settings):
            url = json.loads((directory / "service.json").read_text())["urls"][0]
            if kind == "with":
                _wait_for_episodes(url)
            busy_s, began_s = _counted(url, BUSY), time.monotonic()
            chance, taken = random.Random(7), list[float]()
            for _ in range(self._requests):
                time.sleep(chance.expovariate(1 / PAUSE_S))
                taken.append(_asked(url))
            self.idle[kind].append(1 - (_counted(url, BUSY) - busy_s) / (time.monotonic() - began_s))
        return statistics.quantiles(taken, n=100)[98]


def _wait_for_episodes(url: str) -> None:
    """Wait until the model works: while images are prepared, the engine would count as idle."""
    end_s = time.monotonic() + SETTLE_TIMEOUT_S
    while not _counted(url, BUSY) and time.monotonic() < end_s:
        time.sleep(0.5)
    if not _counted(url, BUSY):
        raise SystemExit("the rollouts have asked nothing: see the service's log")


def _asked(url: str) -> float:
    """Ask once; return the milliseconds until the first token."""
    host = url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=600)
    began_s = time.monotonic()
    connection.request("POST", "/v1/chat/completions", json.dumps(BODY), {"content-type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise SystemExit(answer.read().decode())
    taken_ms = None
    for line in answer:
        if taken_ms is None and _TOKENS.search(line):
            taken_ms = 1000 * (time.monotonic() - began_s)
    connection.close()
    if taken_ms is None:
        raise SystemExit("an answer without a token")
    return taken_ms


def _counted(url: str, metric: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(metric))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=300)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        users = Users(Path(folder), options.requests)
        found = interleave({"with": users.beside, "without": users.without}, options.rounds)
    idle = {kind: statistics.median(shares) for kind, shares in users.idle.items()}
    report("rollouts_idle", _rows(found, idle))


def _rows(found: dict[str, float], idle: dict[str, float]) -> list[Row]:
    first, alone = found["with"], found["without"]
    against = f"{alone:.1f} ms without"
    rested = f"{idle['without']:.2f} without"
    return [
        Row.at_most("users' time to the first token beside rollouts, p99", first, "ms", against, first / alone, GOAL),
        Row.at_most(
            "the engine's idle share beside rollouts",
            idle["with"],
            "of the time",
            rested,
            idle["with"] / max(idle["without"], 1e-9),
            GOAL_IDLE,
        ),
    ]


if __name__ == "__main__":
    main()
