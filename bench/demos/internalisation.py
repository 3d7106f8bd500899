"""Whether a model does without its long instructions, once it has learned from the answers that it gave under them.

    python -m bench internalisation [--seeds 0 1 2] [--logged 192] [--asked 128]

For each seed a service with SmolLM2 answers requests for small functions under long instructions with worked examples,
and its users take what passes their tests. `onward internalise` learns from that log. Then functions which were never
asked for while it was logged are asked three times: of the model as it was, under no instructions and under the long
ones, and of the model that learned, under none. Runs are merged by seed into
`bench/results/internalisation_runs.json`; rows are means over them."""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from bench.engines.start import started
from bench.table import RESULTS, Row, commit, report
from onward.commands.demo import PRETRAINED_NAME, as_options, pretrained_settings
from onward.directory.layout import PRETRAINED_MODEL
from simulator.functions.answers import code_of
from simulator.functions.requests import Request, sample
from simulator.tasks.sandbox import Sandbox
from simulator.users.client import Client

RUNS = RESULTS / "internalisation_runs.json"
USERS = 8
MAX_TOKENS = 64
TEMPERATURE = 0.7
MARGIN = 0.05  # of the share right, that may be lost
INSTRUCTIONS = """\
You write small Python functions for an editor. Answer with one block of code and nothing else: no greeting, no
explanation, no example of use. The block begins with ```python and ends with ```. Use the name and the arguments that
you are asked for. Prefer built-in functions, and return the value instead of printing it.

Write a Python function `triple(n)` that returns three times n.
```python
def triple(n):
    return 3 * n
```
I need a Python function `largest(xs)`. It returns the largest of the numbers in the list xs.
```python
def largest(xs):
    return max(xs)
```
Write `shout(s)` in Python: it should return the string s in capitals.
```python
def shout(s):
    return s.upper()
```"""


@dataclass(frozen=True)
class Asked:
    right: float
    prompt_tokens: float  # a request


async def ask(url: str, requests: Sequence[Request], instructions: str | None, *, log: bool) -> Asked:
    """Ask all requests; with `log` the users say what they think of the answers, which may be learned from."""
    sandbox, waiting = Sandbox(), iter(requests)
    found: list[tuple[bool, int]] = []
    headers = {"x-onward-workload": "functions", "x-onward-learn": str(log).lower(), "x-session-done": "true"}

    async def use(client: Client) -> None:
        for request in waiting:
            body = {"model": PRETRAINED_NAME, "max_tokens": MAX_TOKENS, "temperature": TEMPERATURE}
            told = [] if instructions is None else [{"role": "system", "content": instructions}]
            body["stop"] = ["\n```\n"]
            answer = await client.post(
                "/v1/chat/completions", body | {"messages": [*told, {"role": "user", "content": request.text}]}, headers
            )
            code = code_of(answer["choices"][0]["message"]["content"] or "")
            right = (await sandbox.run(code, request.tests)).all_passed
            found.append((right, answer["usage"]["prompt_tokens"]))
            if log:
                outcome = {"metric_name": "accepted" if right else "rejected", "value": True}
                await client.post("/v1/feedback", outcome | {"inference_id": answer["onward"]["inference_id"]})

    try:
        async with aiohttp.ClientSession() as http:
            client = Client([url], http, aiohttp.ClientTimeout(total=600))
            await asyncio.gather(*(use(client) for _ in range(USERS)))
    finally:
        await sandbox.close()
    return Asked(statistics.mean(right for right, _ in found), statistics.mean(tokens for _, tokens in found))


def serve(directory: Path, model: Path, seed: int, *asked: tuple[Sequence[Request], str | None, bool]) -> list[Asked]:
    """Serve a model without a learner, and ask it."""
    directory.mkdir(parents=True)
    changed = {"ONWARD_SERVING__MODEL": str(model), "ONWARD_LEARNER__ENABLED": "false"}
    with started(directory, time.monotonic(), as_options(pretrained_settings(seed) | changed)):
        url = json.loads((directory / "service.json").read_text())["urls"][0]
        return [asyncio.run(ask(url, requests, told, log=log)) for requests, told, log in asked]


def run(seed: int, logged: int, count: int, steps: int, directory: Path) -> dict[str, Any]:
    taught, held_out = sample("taught", logged, f"internalise {seed}"), sample("held_out", count, f"held out {seed}")
    first, learned = directory / "first" / "service", directory / "learned"
    users, long, none = serve(
        first,
        PRETRAINED_MODEL,
        seed,
        (taught, INSTRUCTIONS, True),
        (held_out, INSTRUCTIONS, False),
        (held_out, None, False),
    )
    began_s = time.monotonic()
    options = ["--init", str(PRETRAINED_MODEL), "--seed", str(seed), "--steps", str(steps)]
    options += ["--row-tokens", "512", "--rows", "2"]
    command = [sys.executable, "-m", "onward", "internalise", str(first), str(learned), *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    learning_s = time.monotonic() - began_s
    counts = json.loads((learned / "report.json").read_text())["sessions"]["counts"]
    (after,) = serve(directory / "after" / "service", learned, seed, (held_out, None, False))
    return {
        "seed": seed,
        "commit": commit(),
        "logged": logged,
        "held_out": count,
        "taken": counts["taken"],
        "right_logged": users.right,
        "right_long": long.right,
        "right_none": none.right,
        "right_after": after.right,
        "prompt_long": long.prompt_tokens,
        "prompt_after": after.prompt_tokens,
        "learning_s": learning_s,
    }


def rows(runs: Sequence[dict[str, Any]]) -> Iterator[Row]:
    made = ", ".join(sorted({each["commit"] for each in runs}))
    of_all = f"{len(runs)} seeds, {runs[0]['held_out']} held-out functions each"

    def mean(name: str) -> float:
        return statistics.mean(each[name] for each in runs)

    yield Row("right under the long instructions", mean("right_long"), "share", of_all, commit=made)
    yield Row("right under none, before", mean("right_none"), "share", of_all, commit=made)
    lost = mean("right_long") - mean("right_after")
    after = f"long less this, at most {MARGIN}"
    yield Row("right under none, after", mean("right_after"), "share", after, lost, MARGIN, lost <= MARGIN, made)
    ratio = mean("prompt_after") / mean("prompt_long")
    yield Row("tokens of a prompt, after", mean("prompt_after"), "tokens", "long", ratio, 0.5, ratio <= 0.5, made)
    yield Row("learned from, of those logged", mean("taken"), "turns", commit=made)
    yield Row("learning", mean("learning_s"), "s", commit=made)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--logged", type=int, default=192, help="answers that users judge")
    parser.add_argument("--asked", type=int, default=128, help="held-out functions, asked three times")
    parser.add_argument("--steps", type=int, default=40)
    asked = parser.parse_args()
    for seed in asked.seeds:
        with tempfile.TemporaryDirectory(prefix="onward-internalisation-") as parent:
            made = run(seed, asked.logged, asked.asked, asked.steps, Path(parent))
        known = json.loads(RUNS.read_text()) if RUNS.exists() else []
        runs = sorted([*(each for each in known if each["seed"] != seed), made], key=lambda each: each["seed"])
        RUNS.write_text(json.dumps(runs, indent=1) + "\n")
    report("internalisation", list(rows(json.loads(RUNS.read_text()))))


if __name__ == "__main__":
    main()
