"""A pretrained model in the whole service, learning from users: what it costs, and how soon feedback is served.

    python -m bench real_model [--model models/smollm2] [--minutes 10] [--clients 8]

`onward init` makes the directory, `onward run` the service. Each client asks for an answer, and accepts it where it is
short: of at most 0.8 of the median length of the first answers, a taste that nobody told the model of. Latencies and
the learner's time are the service's own figures; memory is what the kernel says of its processes, once a second."""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bench.engines.start import Start, started
from bench.table import Row, report

ROOT = Path(__file__).resolve().parents[2]
ANSWER_TOKENS = 48
TEMPERATURE = 0.7
FIRST = 24  # answers whose length says what is short
SHORT = 0.8
LOOK_S = 1.0
SERVED = 'onward_feedback_to_served_quantile_seconds{{quantile="{}"}}'
NOUNS = ("a list", "a queue", "a hash table", "recursion", "a thread", "a socket", "a cache", "an index", "a lock")
ASKED = ("What is {}?", "When is {} slow?", "Name a use of {}.", "Explain {} to a child.", "What can go wrong with {}?")


@dataclass
class Users:
    """Clients that ask and judge until the time is over, and what they saw."""

    url: str
    model: str
    lengths: list[int] = field(default_factory=list)
    accepted: list[bool] = field(default_factory=list)
    reported: int = 0
    failed: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def work(self, seed: int, until_s: float) -> None:
        chance = random.Random(seed)
        while time.monotonic() < until_s:
            try:
                self._once(chance, seed)
            except (urllib.error.URLError, TimeoutError) as error:
                self.failed.append(str(error))
                time.sleep(1.0)

    def _once(self, chance: random.Random, seed: int) -> None:
        question = chance.choice(ASKED).format(chance.choice(NOUNS))
        answer = self._post(
            "/v1/chat/completions",
            model=self.model,
            messages=[{"role": "user", "content": question}],
            max_tokens=ANSWER_TOKENS,
            temperature=TEMPERATURE,
            user=f"user-{seed}-{chance.randrange(4)}",
        )
        length = len(answer["choices"][0]["message"]["content"])
        with self.lock:
            self.lengths.append(length)
            is_liked = length <= SHORT * statistics.median(self.lengths[:FIRST])
            self.accepted.append(is_liked)
        self._post(
            "/v1/feedback", inference_id=answer["onward"]["inference_id"], metric_name="accepted", value=is_liked
        )
        with self.lock:
            self.reported += 1

    def _post(self, path: str, **body: object) -> Any:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data=json.dumps(body).encode(), headers=headers)
        with urllib.request.urlopen(request, timeout=300) as response:
            return json.load(response)


@dataclass
class Watch:
    """The most memory of service and learner, and the disk of each version, as the run goes on."""

    directory: Path
    service: psutil.Process
    service_bytes: int = 0
    learner_bytes: int = 0
    versions: dict[str, int] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)

    def look(self) -> None:
        while not self.over.wait(LOOK_S):
            self.service_bytes = max(self.service_bytes, self.service.memory_info().rss)
            for child in self.service.children():
                if "learn" in child.cmdline():
                    self.learner_bytes = max(self.learner_bytes, child.memory_info().rss)
            for name, size in files_of_versions(self.directory / "blobs"):
                self.versions[name] = max(self.versions.get(name, 0), size)

    @property
    def version_bytes(self) -> float:
        """The median over all versions but the first, which is the given model."""
        return statistics.median(size for name, size in self.versions.items() if name > f"{1:08d}")


def files_of_versions(blobs: Path) -> Iterator[tuple[str, int]]:
    """Yield each version's number, as files are named, and the bytes of all of its files."""
    found: dict[str, int] = {}
    for path in blobs.rglob("*"):
        number = next((part[:8] for part in path.relative_to(blobs).parts if part[:8].isdigit()), None)
        if number is not None and path.is_file():
            found[number] = found.get(number, 0) + size_of(path)
    yield from found.items()


def size_of(path: Path) -> int:
    """Return a file's bytes, 0 where it is gone by now."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def samples_of(url: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as response:
        lines = response.read().decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if line.startswith("onward_"))
    return {name: float(value) for name, _, value in pairs}


def made_directory(directory: Path, model: Path, device: str) -> None:
    command = ["-m", "onward", "init", str(directory), "--model", str(model), "--device", device]
    subprocess.run([sys.executable, *command], check=True, cwd=ROOT)


def measured(directory: Path, model: Path, minutes: float, clients: int) -> Iterator[Row]:
    made_directory(directory, model, "cpu")
    with started(directory, time.monotonic()) as (service, start):
        url = json.loads((directory / "service.json").read_text())["urls"][0]
        users, watch = Users(url, model.name), Watch(directory, service)
        looking = threading.Thread(target=watch.look)
        looking.start()
        until_s = time.monotonic() + 60 * minutes
        with ThreadPoolExecutor(clients) as pool:
            list(pool.map(lambda seed: users.work(seed, until_s), range(clients)))
        samples = samples_of(url)
        watch.over.set()
        looking.join()
        yield from rows_of(start, users, watch, samples, minutes)
    kept = sum(map(size_of, (path for path in directory.rglob("*") if path.is_file())))
    yield Row.at_most(f"disk after {minutes:g} min", kept / 1e6, "MB", "2 GB", kept / 2e9, 1.0)


def rows_of(start: Start, users: Users, watch: Watch, samples: Mapping[str, float], minutes: float) -> Iterator[Row]:
    yield Row.at_most("start to ready", start.ready_s, "s", "20 s", start.ready_s / 20, 1.0)
    for quantile, goal_s in (("0.5", 45.0), ("0.99", 90.0)):
        yield within(f"feedback to served, quantile {quantile}", samples.get(SERVED.format(quantile)), goal_s)
    updates = samples.get("onward_learner_updates_total", 0.0)
    if not updates:
        sys.exit(f"no update in {minutes:g} minutes, of {users.reported} outcomes")
    yield Row("updates", updates, "updates")
    yield from publishing(samples, updates)
    yield Row.at_most("disk of a version", watch.version_bytes / 1e6, "MB", "30 MB", watch.version_bytes / 30e6, 1.0)
    for name, size, goal in (("service", watch.service_bytes, 1.3e9), ("learner", watch.learner_bytes, 1.2e9)):
        yield Row.at_most(f"memory of the {name}", size / 1e6, "MB", f"{goal / 1e9} GB", size / goal, 1.0)
    yield Row("turns", len(users.lengths) / minutes, "1/min")
    third = max(1, len(users.accepted) // 3)
    first, last = statistics.fmean(users.accepted[:third]), statistics.fmean(users.accepted[-third:])
    yield Row("accepted, last third against first", last, "share", f"{first:.3f}", last / first if first else None)
    yield Row("requests that failed", len(users.failed), "requests", holds=not users.failed)
    lost = users.reported - samples.get('onward_outcomes_total{name="accepted"}', 0.0)
    yield Row("feedback acknowledged and not counted", lost, "outcomes", holds=lost == 0)


def within(metric: str, seconds: float | None, goal_s: float) -> Row:
    """Return a row that holds within so many seconds, and not where there was nothing to measure."""
    if seconds is None:
        return Row(metric, None, "s", f"{goal_s:g} s", holds=False)
    return Row.at_most(metric, seconds, "s", f"{goal_s:g} s", seconds / goal_s, 1.0)


def publishing(samples: Mapping[str, float], updates: float) -> Iterator[Row]:
    doing = {name: seconds for name, seconds in samples.items() if name.startswith("onward_learner_seconds_total{")}
    published_s = sum(seconds for name, seconds in doing.items() if "publishing" in name)
    share, each_s = published_s / sum(doing.values()), published_s / updates
    yield Row.at_most("publishing, of the learner's time", share, "share", "0.05", share / 0.05, 1.0)
    yield Row.at_most("publishing a version", each_s, "s", "1.5 s", each_s / 1.5, 1.0)
    updated_s = sum(seconds for name, seconds in doing.items() if "updating" in name)
    yield Row("an update", updated_s / updates, "s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "smollm2")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=8)
    asked = parser.parse_args()
    if not (asked.model / "config.json").exists():
        sys.exit(f"{asked.model} is not there: make smollm2")
    with tempfile.TemporaryDirectory(prefix="onward-real-model-") as parent:
        rows = list(measured(Path(parent) / "service", asked.model.resolve(), asked.minutes, asked.clients))
    report("real_model", rows)


if __name__ == "__main__":
    main()
