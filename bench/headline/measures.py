"""The measurements of the headline, each in a minute at most, in whatever tree they are run.

    python -m bench.headline.measures NAME

It prints the figures as JSON in its last line, by their names in `figures.py`. Later commits measure this
one by the same command (`headline.py`)."""

import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from bench.api import api_overhead
from bench.engines import engine as engine_bench
from bench.engines.start import one_round
from bench.headline.figures import SAID
from bench.log import embedded_log
from bench.log.traffic import turns_and_outcomes
from bench.scoring import monitors as monitors_bench
from bench.table import interleave
from core.blobs import FsspecBlobs
from core.clock import SystemClock
from core.codec import encode
from core.events import Topic
from core.ids import base_ref
from core.reward_spec import load_reward_spec
from core.settings import MonitorSettings, ScoringSettings, ServingSettings
from core.stages.rounds import Rounds
from core.store import open_sqlite
from ingest.sqlite.log import SqliteEventLog
from scoring.stage import Scorer
from serving.engines.local import LocalEngine
from serving.weights.published import BlobWeights

DEMO_SECONDS = 60
ROUNDS = 3
SCORED_TURNS = 3000

Figures = dict[str, float]


def demo() -> Figures:
    """Run a whole service with its learner and twenty sessions a second for a minute, from a fresh directory."""
    with tempfile.TemporaryDirectory(prefix="onward-headline-") as folder:
        command = [sys.executable, "-m", "onward", "demo", folder, "--seconds", str(DEMO_SECONDS)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        report = Path(folder) / "report.json"
        if not report.exists():
            sys.exit(f"the demo ended with {ended.returncode}: {ended.stdout[-1000:]}{ended.stderr[-1000:]}")
        told = json.loads(report.read_text())
    return {name: float(told[key]) for key, name in SAID.items()}


def api() -> Figures:
    """Measure whole answers and streams, every turn durable, as a share of what a bare FastAPI sends."""
    api_overhead.SECONDS = 2.0
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(dir=api_overhead.ROOT, prefix=".bench-headline-"))
        ours, bare = (stack.enter_context(api_overhead.ours(*words)) for words in (("onward", directory), ("floor",)))
        found = {}
        for stream, name in ((False, "answers"), (True, "streams")):
            contenders = {"ours": partial(ours.measure, stream), "bare": partial(bare.measure, stream)}
            rates = interleave(contenders, ROUNDS)
            found[name] = rates["ours"] / rates["bare"]
    return found


def two() -> Figures:
    """Measure whole answers of two processes that share an engine, as a share of what one bare FastAPI sends."""
    api_overhead.SECONDS = 2.0
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(dir=api_overhead.ROOT, prefix=".bench-headline-"))
        first = stack.enter_context(api_overhead.ours("first", directory))
        both = stack.enter_context(api_overhead.ours("beside", directory, beside=first))
        bare = stack.enter_context(api_overhead.ours("floor"))
        rates = interleave({"both": partial(both.measure, False), "bare": partial(bare.measure, False)}, ROUNDS)
    return {"answers_of_two": rates["both"] / rates["bare"]}


def engine() -> Figures:
    """Measure tokens a second of the embedded engine, as a multiple of transformers' `generate`."""
    torch.set_num_threads(1)
    sys.setswitchinterval(engine_bench.SWITCH_INTERVAL_S)
    directory = engine_bench.MODEL
    peer = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    peer.generation_config.eos_token_id = None
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        weights = BlobWeights(FsspecBlobs(folder))
        anchor = weights.publish(base_ref(1), [directory / "model.safetensors"], None)
        with closing(LocalEngine(ServingSettings(), directory, weights, anchor)) as made:
            made.start()
            for requests in (8, 32):
                contenders: dict[str, Callable[[], float]] = {
                    "ours": partial(engine_bench.measure_engine, made, requests, engine_bench.Rounds()),
                    "peer": partial(engine_bench.measure_generate, peer, requests, engine_bench.Rounds()),
                }
                for warm_up in contenders.values():
                    warm_up()
                rates = interleave(contenders, ROUNDS)
                found[f"engine_{requests}"] = rates["ours"] / rates["peer"]
    return found


def log() -> Figures:
    """Measure durable turns a second of 32 appenders, as a share of a plain loop that commits the same rows."""
    turns = [embedded_log.turn() for _ in range(embedded_log.RECORDS)]
    raws = [encode(event) for event in turns]
    contenders = {
        "ours": partial(embedded_log.log_rate, turns, embedded_log.APPENDERS),
        "plain": partial(embedded_log.plain_rate, raws, embedded_log.BATCH),
    }
    rates = interleave(contenders, 2 * ROUNDS)
    return {"log": rates["ours"] / rates["plain"]}


def scorer() -> Figures:
    """Measure events a second from the log to rewards in SQLite, as a share of a reader that only decodes them."""
    clock, spec = SystemClock(), load_reward_spec(monitors_bench.SPEC)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 1000)  # as in the service
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-headline-") as folder, ExitStack() as stack:
        events = stack.enter_context(closing(SqliteEventLog(Path(folder) / "log.db", partitions=1, poll_s=0.01)))
        store = stack.enter_context(closing(open_sqlite(Path(folder) / "store.db")))
        scoring = stack.enter_context(closing(Scorer(events, store, spec, ScoringSettings(), clock)))
        reader = stack.enter_context(closing(events.reader([Topic.TURNS])))
        rounds = Rounds("scorer", scoring)
        found: dict[str, list[float]] = {"ours": [], "decode": []}
        for _ in range(ROUNDS + 1):  # the first of them only warms up
            events.append_blocking(Topic.TURNS, turns_and_outcomes(SCORED_TURNS))
            found["ours"].append(monitors_bench.rate(lambda: _scored(rounds)))
            found["decode"].append(monitors_bench.rate(lambda: monitors_bench.decode_all(reader)))
    ours, decode = (statistics.median(rates[1:]) for rates in found.values())
    return {"scorer": ours / decode}


def _scored(rounds: Rounds) -> int:
    taken = 0
    while taken < 2 * SCORED_TURNS:
        taken += rounds.step(0.0)
    return taken


def monitors() -> Figures:
    """Measure events a second into the monitors' windows, as a share of a reader's, and two kinds of looks."""
    rates = monitors_bench.rates()
    every_s = MonitorSettings().every_s
    return {
        "monitors": rates["watch"] / rates[monitors_bench.FLOOR],
        "look": monitors_bench.look_s(10) / every_s,
        "look_100": monitors_bench.look_s(100) / every_s,
    }


def start() -> Figures:
    """Measure the seconds from `onward run` to ready, the first time on a directory and the next."""
    with tempfile.TemporaryDirectory() as parent:
        found = {kind: each.ready_s for kind, each in one_round(Path(parent) / "service")}
    return {"first_start": found["first start"], "later_start": found["later start"]}


MEASURES: Mapping[str, Callable[[], Figures]] = {
    each.__name__: each for each in (demo, api, two, engine, log, scorer, monitors, start)
}


def main() -> None:
    began_s = time.monotonic()
    found = MEASURES[sys.argv[1]]()
    print(json.dumps({"figures": found, "seconds": time.monotonic() - began_s}))


if __name__ == "__main__":
    main()
