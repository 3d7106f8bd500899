"""The turns until a policy has learned what its users want, with the texts that they leave and without.

    python -m bench demonstrations [--seeds 6]

Users accept or reject, and some of those who reject put in the answer's place what they wanted. Both ways hear the
same verdicts of the same users; one also learns from the texts. The gain is what verdicts alone have gained at the end,
and a way's turns are those until its regret, a mean over some steps, is less by 90 % of that. Each way has the learning
rate that suits it best, by the other half of the seeds. `astray`: the share of texts that say anything."""

import argparse
import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from rich.progress import track

from bench.learning.feedback_loop import BATCH, learn, settings_for
from bench.learning.feedback_world import PLAIN
from bench.paired import interval
from bench.table import Row, report

SEEDS, STEPS = 6, 160
RATES = (0.012, 0.024)
SHARE, GOAL, COST = 0.9, 0.6, 0.02
SMOOTHED, START, END = 8, 2, 40  # steps whose mean is taken
EDITED = replace(PLAIN, edited=0.3, astray=0.2)
STREAMS = {
    "3 in 10 rejected answers rewritten, 1 in 5 astray": EDITED,
    "1 in 10 rewritten, 1 in 5 astray": replace(EDITED, edited=0.1),
    "3 in 10 rewritten, all astray": replace(EDITED, astray=1.0),
}
ALONE, TEXTS = "verdicts alone", "with texts"
WAYS: dict[str, dict[str, object]] = {ALONE: {"demonstrations.weight": 0.0}, TEXTS: {}}


@dataclass(frozen=True)
class Run:
    stream: str
    way: str
    rate: float
    seed: int


def regret(run: Run) -> list[float]:
    changes = {"advantage.baseline": "value", **WAYS[run.way]}
    return learn(STREAMS[run.stream], settings_for(run.seed, run.rate, changes), STEPS).missed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    seeds = parser.parse_args().seeds
    jobs = [
        Run(stream, way, rate, seed) for stream in STREAMS for way in WAYS for rate in RATES for seed in range(seeds)
    ]
    with multiprocessing.get_context("spawn").Pool() as pool:
        missed = dict(zip(jobs, track(pool.imap(regret, jobs), "runs", total=len(jobs)), strict=True))
    report("demonstrations", list(rows(missed, seeds)))


def rows(missed: dict[Run, list[float]], seeds: int) -> Iterator[Row]:
    for stream in STREAMS:
        alone, texts = (
            suited(np.array([[missed[Run(stream, way, rate, seed)] for seed in range(seeds)] for rate in RATES]))
            for way in (ALONE, TEXTS)
        )
        yield from _rows(stream, alone, texts)


def _rows(stream: str, alone: np.ndarray, texts: np.ndarray) -> Iterator[Row]:
    count = f"{len(alone)} seeds"
    turns = [turns_until(curves, aims(alone)) for curves in (alone, texts)]
    yield Row(f"{stream}: turns to the gain, {ALONE}", float(turns[0].mean()), "turns", count)
    ratio = float(turns[1].mean() / turns[0].mean())
    low, high = interval(np.log(turns[1] / turns[0]))
    against = f"{ALONE}; of the seeds' ratios [{np.exp(low):.2f}, {np.exp(high):.2f}], {count}"
    name, mean = f"{stream}: turns to the gain, {TEXTS}", float(turns[1].mean())
    is_goal = STREAMS[stream] == EDITED
    yield (
        Row.at_most(name, mean, "turns", against, ratio, GOAL) if is_goal else Row(name, mean, "turns", against, ratio)
    )
    worse = texts[:, -END:].mean(1) - alone[:, -END:].mean(1)
    low, high = interval(worse)
    against = f"{ALONE}: {worse.mean():+.4f} [{low:+.4f}, {high:+.4f}], {count}"
    name, mean = f"{stream}: regret a turn at the end, {TEXTS}", float(texts[:, -END:].mean())
    yield Row.at_most(name, mean, "regret a turn", against, float(worse.mean()), COST)


def suited(curves: np.ndarray) -> np.ndarray:
    """Return each seed's curve [seed, step], of [rate, seed, step], at the rate that suits the other half best."""
    found = np.empty_like(curves[0])
    for these, others in ((slice(0, None, 2), slice(1, None, 2)), (slice(1, None, 2), slice(0, None, 2))):
        found[these] = curves[int(curves[:, others].mean((1, 2)).argmin())][these]
    return found


def aims(alone: np.ndarray) -> np.ndarray:
    """Return the regret of each seed at which most of the gain is made."""
    start, end = alone[:, :START].mean(1), alone[:, -END:].mean(1)
    return start - SHARE * (start - end)  # type: ignore[no-any-return]


def turns_until(curves: np.ndarray, aims: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return the turns until each seed's regret is no more than it is to be; all turns where it never is."""
    found = []
    for curve, aim in zip(curves, aims, strict=True):
        smooth = np.convolve(curve, np.ones(SMOOTHED) / SMOOTHED, "valid")
        reached = np.flatnonzero(smooth <= aim)
        found.append(BATCH * (int(reached[0]) + SMOOTHED if len(reached) else len(curve)))
    return np.array(found, dtype=float)


if __name__ == "__main__":
    main()
