"""A model on GPUs: the whole service on SGLang, learning by adapters and then with all weights.

    python -m bench gpu --model DIR [--minutes 3] [--clients 32]

For each way to learn `onward init` makes a directory, `onward run` the service, and clients ask, judge and stream as in
`bench.demos.brief_users`. Where there is no GPU that is said, and the rows stand there without values."""

import argparse
import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from bench.demos.brief_users import Users, made_directory
from bench.demos.watch import Watch, samples_of
from bench.engines.start import started
from bench.table import Row, report
from core.profile import read_shape
from core.profile.memory import learner_memory
from core.profile.words import gigabytes
from core.settings import load_settings

ADAPTERS, WHOLE = "adapters", "all weights"
WAYS = (ADAPTERS, WHOLE)
WHOLE_RATE = 0.1  # of the adapters'
METRICS = (
    ("start to ready", "s"),
    ("tokens sampled", "1/s"),
    ("first token, mean", "ms"),
    ("feedback to served, quantile 0.5", "s"),
    ("an update", "s"),
    ("learner, positions", "1/s"),
    ("learner, model FLOPs utilisation", "share"),
    ("publishing a version", "s"),
    ("disk of a version", "MB"),
    ("memory of the fullest GPU", "GB"),
    ("versions swapped in", "versions"),
    ("requests that failed", "requests"),
)
_LOOK_S = 1.0
Values = Mapping[str, float | None]


@dataclass
class Cards:
    """The most memory that any card had in use, looked at once a second."""

    most_bytes: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def look(self) -> None:
        while not self.over.wait(_LOOK_S):
            self.most_bytes = max(self.most_bytes, *used_bytes())


def used_bytes() -> list[int]:
    """Return the memory in use of each card; none where there is no card."""
    return _asked_of_cards("memory.used")


def total_bytes() -> list[int]:
    return _asked_of_cards("memory.total")


def _asked_of_cards(what: str) -> list[int]:
    command = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return []
    return [int(line) * 2**20 for line in done.stdout.split()]


def settings_of(way: str, directory: Path, model: Path) -> tuple[str, ...] | None:
    """Return the way's settings over those in the directory, or None where a card does not hold the learner."""
    if way == ADAPTERS:
        return ()
    learner = load_settings(directory / "onward.toml", {}).learner
    whole = learner.model_copy(update={"lora": learner.lora.model_copy(update={"rank": 0})})
    memory = learner_memory(read_shape(model), whole, whole.compute.micro_batch_tokens)
    if memory.total > min(total_bytes()):
        print(f"{way}: {gigabytes(memory.total)} are more than a GPU has: not measured")
        return None
    return ("learner.lora.rank=0", f"learner.optimizer.learning_rate={WHOLE_RATE * learner.optimizer.learning_rate:g}")


def measured(directory: Path, model: Path, asked: argparse.Namespace, way: str) -> Values:
    """Run the service with clients; return the values by metric, none where the model is too large for the way."""
    made_directory(directory, model, "cuda")
    settings = settings_of(way, directory, model)
    if settings is None:
        return {}
    with started(directory, time.monotonic(), settings) as (service, start):
        url = json.loads((directory / "service.json").read_text())["urls"][0]
        users, watch, cards = Users(url, model.name), Watch(directory, service), Cards()
        watching: list[Watch | Cards] = [watch, cards]
        threads = [threading.Thread(target=each.look) for each in watching]
        for thread in threads:
            thread.start()
        until_s = time.monotonic() + 60 * asked.minutes
        with ThreadPoolExecutor(asked.clients) as pool:
            list(pool.map(lambda seed: users.work(seed, until_s), range(asked.clients)))
        samples = samples_of(url)
        for each, thread in zip(watching, threads, strict=True):
            each.over.set()
            thread.join()
    found = of_samples(samples, 60 * asked.minutes)
    found |= {"start to ready": start.ready_s, "requests that failed": float(len(users.failed))}
    return found | {"disk of a version": watch.version_bytes / 1e6, "memory of the fullest GPU": cards.most_bytes / 1e9}


def of_samples(samples: Mapping[str, float], seconds: float) -> dict[str, float | None]:
    """Return what the service's own metrics say; None for what it has no figure of."""

    def mean(name: str) -> float | None:
        count = samples.get(f"onward_{name}_count", 0.0)
        return samples[f"onward_{name}_sum"] / count if count else None

    updates, first_s = samples.get("onward_learner_updates_total", 0.0), mean("first_token_seconds")

    def spent(doing: str) -> float | None:
        return samples[f'onward_learner_seconds_total{{doing="{doing}"}}'] / updates if updates else None

    return {
        "tokens sampled": samples.get("onward_generated_tokens_total", 0.0) / seconds,
        "first token, mean": None if first_s is None else 1000 * first_s,
        "feedback to served, quantile 0.5": samples.get('onward_feedback_to_served_quantile_seconds{quantile="0.5"}'),
        "an update": spent("updating"),
        "publishing a version": spent("publishing"),
        "learner, positions": samples.get('onward_learner{figure="positions_per_s"}'),
        "learner, model FLOPs utilisation": samples.get('onward_learner{figure="mfu"}'),
        "versions swapped in": samples.get("onward_swaps_total", 0.0),
    }


def rows(found: Mapping[str, Values]) -> Iterator[Row]:
    """Yield a row for each way and metric, without a value where nothing was measured."""
    for way in WAYS:
        for metric, unit in METRICS:
            value = found.get(way, {}).get(metric)
            yield Row(f"{way}: {metric}", value, unit, holds=metric != "requests that failed" or not value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--clients", type=int, default=32)
    asked = parser.parse_args()
    found: dict[str, Values] = {}
    if not used_bytes():
        print("there is no GPU here: nothing was measured")
    else:
        for way in WAYS:
            with tempfile.TemporaryDirectory(prefix="onward-gpu-") as parent:
                found[way] = measured(Path(parent) / "service", asked.model.resolve(), asked, way)
    report("gpu", list(rows(found)))


if __name__ == "__main__":
    main()
