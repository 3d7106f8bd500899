"""The cost of a hot swap to clients that stream: the gaps between tokens from a second before it to a second after it.

    python -m bench swap_stall

A swap through `onward run` is compared with the barest swap SGLang itself can do under the same clients: pause
(retract), update from disk with its session, which flushes the prefix cache, and continue; no fetching, no
comparing, no probe, no release. Each contender has an SGLang server of its own, started alike; versions are made
before, and the bare swap loads directories verified before. Blocks of swaps take turns. A window is open from a
second before the pause to a second after the engine was told to go on. A quiet stretch of each block, without a
swap, shows the gaps of streaming itself."""

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

from bench.api.api_overhead import ROOT, process
from bench.api.api_servers import MODEL
from bench.engines.sglang_world import (
    PYTHON,
    chat,
    generate,
    port_of,
    ready_url,
    require_sglang,
    service,
    sglang_servers,
    wait_for,
)
from bench.engines.stream_load import StreamedAnswer, Target, streaming
from bench.engines.swap_versions import Versions
from bench.table import Row, report
from core.ids import PolicyRef
from serving.engines.sglang.admin import Admin
from serving.engines.sglang.swap import SwapStep

BLOCKS = 7
SWAPS = 3  # of a block
CLIENTS = 8
AROUND_S = 1.0
QUIET_S = 2.0
PROBED_S = 0.5  # after the pause; a service's engine answers the probe in this time
MAX_TOKENS = 400
GOAL = 1.5
BARE = "bare SGLang swap"
ENDLESS = {"0": -100.0, "2": -100.0}  # never one of the tokens that end an answer
SETTINGS = f"""
[serving]
engine = "sglang"
model_name = "{MODEL}"
[serving.versions]
min_swap_interval_s = 0.05
keep = 100
cached = 100
[serving.sglang]
python = "{PYTHON}"
replicas = 0
[learner]
enabled = false
[release]
first_turns = 0
[release.canary]
enabled = "off"
"""

Interval = tuple[float, float]
Times = dict[str, float]  # step to when it began, on the monotonic clock
Swapper = Callable[[PolicyRef], Times]


@dataclass
class Contender:
    target: Target
    swap: Swapper
    swaps: list[Times] = field(default_factory=list)
    by_swap_ms: list[list[float]] = field(default_factory=list)
    across_pause_ms: list[list[float]] = field(default_factory=list)
    after_pause_ms: list[list[float]] = field(default_factory=list)
    quiet_ms: list[float] = field(default_factory=list)

    def block(self, versions: Sequence[PolicyRef]) -> None:
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
        for times in made:
            began_s, over_s = times[SwapStep.PAUSE], times[SwapStep.PROBE]
            self.by_swap_ms.append(gaps_ms(answers, (began_s - AROUND_S, over_s + AROUND_S)))
            self.across_pause_ms.append(gaps_ms(answers, (began_s, over_s)))
            self.after_pause_ms.append(gaps_ms(answers, (over_s, over_s + PROBED_S), begun_in_it=True))

    def gaps_ms(self) -> list[float]:
        return [gap for gaps in self.by_swap_ms for gap in gaps]

    def step_ms(self, step: SwapStep, after: SwapStep) -> float:
        return statistics.median(times[after] - times[step] for times in self.swaps) * 1000


def gaps_ms(answers: Sequence[StreamedAnswer], window: Interval, *, begun_in_it: bool = False) -> list[float]:
    """Return the gaps between arrivals of one answer that overlap the window, or that start in it."""
    return [
        (after_s - before_s) * 1000
        for answer in answers
        for before_s, after_s in pairwise(answer.arrivals_s)
        if (before_s if begun_in_it else after_s) >= window[0] and before_s <= window[1]
    ]


def bare_swap(admin: Admin, directory: Path, label: str) -> Times:
    times: Times = {SwapStep.PAUSE: time.monotonic()}
    admin.pause()
    times[SwapStep.LOAD] = time.monotonic()
    admin.load(directory, label, 0)
    times[SwapStep.RESUME] = time.monotonic()
    admin.resume()
    times[SwapStep.PROBE] = time.monotonic()  # there is none: it is over
    return dict(times)


class Released:
    """A swap through the service: announced, and followed in the host's notes."""

    def __init__(self, versions: Versions, steps: Path) -> None:
        self._versions, self._steps = versions, steps

    def __call__(self, version: PolicyRef) -> Times:
        self._versions.announce(version)
        times: Times = wait_for(lambda: self._served(version), f"version {version}", timeout_s=60)
        return times

    def _served(self, version: PolicyRef) -> Times | None:
        lines = [line.split() for line in self._steps.read_text().splitlines()]
        times = {step: float(at_s) for at_s, step, of in lines if of == str(version)}
        return times if SwapStep.SERVES in times else None


def rows_of(onward: Contender, bare: Contender) -> Iterator[Row]:
    ours, theirs = onward.gaps_ms(), bare.gaps_ms()
    p99_ms, name = _percentile(ours, 99), f"gap between tokens, p99, {len(onward.swaps)} swaps, {CLIENTS} streams"
    yield Row.at_most(name, p99_ms, "ms", BARE, p99_ms / _percentile(theirs, 99), GOAL)
    for label, percent in (("median", 50.0), ("p99.9", 99.9), ("max", 100.0)):
        yield _compare(f"gap between tokens, {label}", _percentile(ours, percent), _percentile(theirs, percent))
    of_swaps = [statistics.median(_percentile(gaps, 99) for gaps in c.by_swap_ms) for c in (onward, bare)]
    yield _compare("p99 of one swap's gaps, median of swaps", *of_swaps)
    for label, one, other in (
        ("in all its window", onward.by_swap_ms, bare.by_swap_ms),
        ("across the pause", onward.across_pause_ms, bare.across_pause_ms),
        (f"begun in the {PROBED_S} s after the pause", onward.after_pause_ms, bare.after_pause_ms),
    ):
        yield _compare(f"longest gap {label}, median of swaps", _longest(one), _longest(other))
    for percent in (50, 99):
        quiet = [_percentile(c.quiet_ms, percent) for c in (onward, bare)]
        yield _compare(f"gap between tokens, p{percent}, no swap near", *quiet)
    yield _compare("the engine is paused, median", *(c.step_ms(SwapStep.PAUSE, SwapStep.PROBE) for c in (onward, bare)))
    steps = [
        SwapStep.PAUSE,
        SwapStep.LOAD,
        SwapStep.COMPARE,
        SwapStep.FLUSH,
        SwapStep.RESUME,
        SwapStep.PROBE,
        SwapStep.SERVES,
    ]
    for step, after in pairwise(steps):
        yield Row(f"step {step}, median", onward.step_ms(step, after), "ms")
    for step, after in pairwise([SwapStep.PAUSE, SwapStep.LOAD, SwapStep.RESUME, SwapStep.PROBE]):
        yield Row(f"{BARE}: step {step}, median", bare.step_ms(step, after), "ms")


def _compare(metric: str, ours_ms: float, theirs_ms: float) -> Row:
    return Row(metric, ours_ms, "ms", BARE, ours_ms / theirs_ms)


def _longest(by_swap_ms: list[list[float]]) -> float:
    return statistics.median(max(gaps) for gaps in by_swap_ms if gaps)


def _percentile(values: Sequence[float], percent: float) -> float:
    return float(np.percentile(values, percent))


def main() -> None:
    require_sglang()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=ROOT, prefix=".bench-swap-")))
        served, plain = stack.enter_context(sglang_servers(directory, "served", "plain"))
        root, steps = directory / "service", directory / "steps"
        stack.enter_context(service(root, SETTINGS))
        wait_for(lambda: (root / "service.json").exists(), "the service")
        versions = stack.enter_context(closing(Versions(root, BLOCKS * SWAPS)))
        directories = versions.directories(directory / "verified")
        host = [sys.executable, "-m", "bench.engines.swap_host", str(root), served.url, str(steps)]
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
