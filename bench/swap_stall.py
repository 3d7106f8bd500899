"""What a hot swap costs who streams: the gaps between tokens from a second before a swap to a second after it, through
`onward run`, against the barest swap SGLang itself can do under the same clients.

    python -m bench.swap_stall

Bare means three requests: pause (retract), update from disk with its session, which flushes the prefix cache, and
continue; no fetching, no comparing, no probe, no release. Each contender has an SGLang server of its own, started
alike; versions are made before, and the bare swap loads directories verified before. Blocks of swaps take turns. A
window is open from a second before the pause to a second after the engine was told to go on. A quiet stretch of each
block, without a swap, shows what is streaming's own.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from bench.api_overhead import ROOT, process
from bench.api_servers import MODEL
from bench.sglang_world import (
    PYTHON,
    chat,
    generate,
    port_of,
    ready_url,
    require_sglang,
    service,
    sglang_server,
    wait_for,
)
from bench.stream_load import Answer, Target, streaming
from bench.swap_versions import Versions
from bench.table import Row, report
from core.ids import Version
from serving.sglang.admin import Admin
from serving.sglang.swap import Step

BLOCKS = 8
SWAPS = 3  # of a block
CLIENTS = 8
AROUND_S = 1.0
QUIET_S = 2.0
MAX_TOKENS = 400
GOAL = 1.5
ENDLESS = {"0": -100.0, "2": -100.0}  # never one of the tokens that end an answer
SETTINGS = f"""
[serving]
engine = "sglang"
model_name = "{MODEL}"
min_swap_interval_s = 0.05
keep_versions = 100
cached_versions = 100
[serving.sglang]
python = "{PYTHON}"
replicas = 0
[learner]
enabled = false
[release]
canary = "off"
"""

Interval = tuple[float, float]
Times = dict[str, float]  # step to when it began, on the monotonic clock
Swapper = Callable[[Version], Times]


@dataclass
class Contender:
    target: Target
    swap: Swapper
    swaps: list[Times] = field(default_factory=list)
    by_swap_ms: list[list[float]] = field(default_factory=list)
    quiet_ms: list[float] = field(default_factory=list)

    def block(self, versions: Sequence[Version]) -> None:
        with streaming(self.target, CLIENTS) as answers:
            quiet = (time.monotonic(), time.monotonic() + QUIET_S)
            time.sleep(QUIET_S)
            made = []
            for version in versions:
                time.sleep(AROUND_S)
                made.append(self.swap(version))
                time.sleep(AROUND_S)
        self.swaps += made
        self.quiet_ms += gaps_ms(answers, quiet)
        self.by_swap_ms += [gaps_ms(answers, (s[Step.PAUSE] - AROUND_S, s[Step.PROBE] + AROUND_S)) for s in made]

    def gaps_ms(self) -> list[float]:
        return [gap for gaps in self.by_swap_ms for gap in gaps]

    def step_ms(self, step: Step, after: Step) -> float:
        return statistics.median(times[after] - times[step] for times in self.swaps) * 1000


def gaps_ms(answers: Sequence[Answer], window: Interval) -> list[float]:
    """Between arrivals of one answer, where any of the gap lies in the window."""
    return [
        (after_s - before_s) * 1000
        for answer in answers
        for before_s, after_s in pairwise(answer.arrivals_s)
        if after_s >= window[0] and before_s <= window[1]
    ]


def bare_swap(admin: Admin, directory: Path, label: str) -> Times:
    times = {Step.PAUSE: time.monotonic()}
    admin.pause()
    times[Step.LOAD] = time.monotonic()
    admin.load(directory, label)
    times[Step.RESUME] = time.monotonic()
    admin.resume()
    times[Step.PROBE] = time.monotonic()  # there is none: it is over
    return dict(times)


class Released:
    """A swap through the service: announced, and followed in the host's notes."""

    def __init__(self, versions: Versions, steps: Path) -> None:
        self._versions, self._steps = versions, steps

    def __call__(self, version: Version) -> Times:
        self._versions.announce(version)
        times: Times = wait_for(lambda: self._served(version), f"version {version}", timeout_s=60)
        return times

    def _served(self, version: Version) -> Times | None:
        lines = [line.split() for line in self._steps.read_text().splitlines()]
        times = {step: float(at_s) for at_s, step, of in lines if of == str(version)}
        return times if Step.SERVES in times else None


def rows_of(onward: Contender, bare: Contender) -> Iterator[Row]:
    ours, theirs = onward.gaps_ms(), bare.gaps_ms()
    name, around = "bare SGLang swap", f"{len(onward.swaps)} swaps, {CLIENTS} streams"
    p99_ms, bare_p99_ms = _percentile(ours, 99), _percentile(theirs, 99)
    yield Row.at_most(f"gap between tokens, p99, {around}", p99_ms, "ms", name, p99_ms / bare_p99_ms, GOAL)
    for label, percent in (("median", 50), ("p99.9", 99.9), ("max", 100)):
        value = _percentile(ours, percent)
        yield Row(f"gap between tokens, {label}", value, "ms", name, value / _percentile(theirs, percent))
    longest, bare_longest = (statistics.median(map(max, c.by_swap_ms)) for c in (onward, bare))
    yield Row("longest gap of a swap, median", longest, "ms", name, longest / bare_longest)
    quiet, bare_quiet = (_percentile(c.quiet_ms, 99) for c in (onward, bare))
    yield Row("no swap near: gap between tokens, p99", quiet, "ms", "SGLang directly", quiet / bare_quiet)
    for label, values in (("p99", bare_p99_ms), ("median", _percentile(theirs, 50)), ("max", max(theirs))):
        yield Row(f"{name}: gap between tokens, {label}", values, "ms")
    paused, bare_paused = (c.step_ms(Step.PAUSE, Step.PROBE) for c in (onward, bare))
    yield Row("the engine is paused for, median", paused, "ms", name, paused / bare_paused)
    steps = [Step.PAUSE, Step.LOAD, Step.COMPARE, Step.FLUSH, Step.RESUME, Step.PROBE, Step.SERVES]
    for step, after in pairwise(steps):
        yield Row(f"step {step}, median", onward.step_ms(step, after), "ms")
    for step, after in pairwise([Step.PAUSE, Step.LOAD, Step.RESUME, Step.PROBE]):
        yield Row(f"{name}: step {step}, median", bare.step_ms(step, after), "ms")


def _percentile(values: Sequence[float], percent: float) -> float:
    return float(np.percentile(values, percent))


def main() -> None:
    require_sglang()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=ROOT, prefix=".bench-swap-")))
        served, plain = (stack.enter_context(sglang_server(directory, name)) for name in ("served", "plain"))
        root, steps = directory / "service", directory / "steps"
        stack.enter_context(service(root, SETTINGS))
        wait_for(lambda: (root / "service.json").exists(), "the service")
        versions = stack.enter_context(closing(Versions(root, BLOCKS * SWAPS)))
        directories = versions.directories(directory / "verified")
        host = [sys.executable, "-m", "bench.swap_host", str(root), served.url, str(steps)]
        stack.enter_context(process(host))
        url = wait_for(lambda: ready_url(root), "the host")
        admin = stack.enter_context(closing(Admin(plain.url, None, 30.0)))
        onward = Contender(chat(port_of(url), MAX_TOKENS, logit_bias=ENDLESS), Released(versions, steps))
        bare = Contender(
            generate(port_of(plain.url), MAX_TOKENS, ENDLESS),
            lambda version: bare_swap(admin, directories[version], str(version)),
        )
        for block in range(BLOCKS):
            now = versions.numbers[block * SWAPS : (block + 1) * SWAPS]
            for contender in (onward, bare) if block % 2 else (bare, onward):
                contender.block(now)
        report("swap_stall", list(rows_of(onward, bare)))


if __name__ == "__main__":
    main()
