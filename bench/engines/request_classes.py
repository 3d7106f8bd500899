"""What rollouts that fill the engine cost users: the time to the first token, and how idle the engine is.

    python -m bench request_classes [--rounds 6] [--seconds 12]

`onward run` with the shipped model, its learner off; users arrive at random, the same in every contender of a round.
Contenders take turns: no rollouts, rollouts of low priority, and, to show what the classes are for, rollouts that call
themselves normal. Each round compares within itself; medians over the rounds are reported. Clients are a process of
their own."""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.api.api_overhead import ROOT
from bench.engines.sglang_world import ready_url, service, wait_for
from bench.table import Row, report

USERS_PER_S = 8.0
ROLLOUTS = 12
TTFT_GOAL = 1.1
IDLE_GOAL = 0.5
SETTINGS = "[learner]\nenabled = false\n"
_BUSY = re.compile(r"^onward_engine_busy_seconds_total (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Figures:
    p50_ms: float
    p99_ms: float
    idle: float
    rollout_tokens_per_s: float


def busy_s(url: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        found = _BUSY.search(answer.read().decode())
    return float(found.group(1)) if found else 0.0


def measure(url: str, rollouts: int, priority: str, seed: int, seconds: float) -> Figures:
    chat = f"{url}/v1/chat/completions"
    command = [sys.executable, "-m", "bench.engines.class_load", chat, str(USERS_PER_S), str(rollouts), priority]
    began_s, busy_before_s = time.monotonic(), busy_s(url)
    done = subprocess.run([*command, str(seed), str(seconds)], cwd=ROOT, check=True, capture_output=True, text=True)
    took_s = time.monotonic() - began_s
    heard = json.loads(done.stdout)
    ttft_ms = np.array(heard["first_token_ms"])
    idle = 1 - (busy_s(url) - busy_before_s) / took_s
    return Figures(
        float(np.quantile(ttft_ms, 0.5)), float(np.quantile(ttft_ms, 0.99)), idle, heard["rollout_tokens"] / took_s
    )


def rows_of(rounds: list[dict[str, Figures]]) -> Iterator[Row]:
    def median(name: str, figure: str) -> float:
        return statistics.median(getattr(each[name], figure) for each in rounds)

    def ratio(name: str, figure: str) -> float:
        return statistics.median(getattr(each[name], figure) / getattr(each["none"], figure) for each in rounds)

    for name in ("low", "normal"):
        for figure, metric in (("p50_ms", "median"), ("p99_ms", "p99")):
            label, value = f"users' first token, {metric}, rollouts of {name} priority", median(name, figure)
            if name == "low" and figure == "p99_ms":
                yield Row.at_most(label, value, "ms", "no rollouts", ratio(name, figure), TTFT_GOAL)
            else:
                yield Row(label, value, "ms", "no rollouts", ratio(name, figure))
        idle = median(name, "idle")
        label = f"idle share of the engine, rollouts of {name} priority"
        if name == "low":
            yield Row.at_most(label, idle, "share", "no rollouts", ratio(name, "idle"), IDLE_GOAL)
        else:
            yield Row(label, idle, "share", "no rollouts", ratio(name, "idle"))
        yield Row(f"tokens of rollouts of {name} priority", median(name, "rollout_tokens_per_s"), "tokens/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=12.0)
    given = parser.parse_args()
    contenders = {"none": (0, "low"), "low": (ROLLOUTS, "low"), "normal": (ROLLOUTS, "normal")}
    rounds: list[dict[str, Figures]] = []
    with tempfile.TemporaryDirectory() as temporary, service(directory := Path(temporary) / "service", SETTINGS):
        url = wait_for(lambda: ready_url(directory), "the service")
        measure(url, ROLLOUTS, "low", 0, 3.0)  # warm up
        for number in range(given.rounds):
            names = list(contenders)[number % 3 :] + list(contenders)[: number % 3]
            found = {name: measure(url, *contenders[name], number + 1, given.seconds) for name in names}
            print(number, found, file=sys.stderr)
            rounds.append(found)
    report("request_classes", list(rows_of(rounds)))


if __name__ == "__main__":
    main()
