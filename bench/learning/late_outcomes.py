"""The effect of outcomes that arrive an hour late on the policy, when a new version comes every 1.5 seconds.

    python -m bench late_outcomes [--seeds 8]

For half of the workloads the only feedback comes 2,400 versions after the turn (by the events' clock, nobody waits);
for the rest it comes at once. Quality of a half is how much of what could be gained the policy has gained at the
end: without the late outcomes, with them, and with `late = "kto"`. The mass of a late reward is its absolute
distance to the baseline."""

import argparse
import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from rich.progress import track

from bench.learning.feedback_loop import STEP_S, learn, settings_for, still_missed
from bench.learning.feedback_world import PLAIN, WORKLOADS
from bench.paired import interval
from bench.table import Row, report
from learner.sequences.scored import ScoredTurn
from learner.updates.update import UpdateResult

SEEDS = 8
LATE_STEPS = round(3600 / STEP_S)
STEPS, BATCHES, RATE = LATE_STEPS + 600, 30, 0.003
LATE = 2  # workloads
STREAM = replace(PLAIN, late_workloads=LATE, late_steps=float(LATE_STEPS))
NEVER = replace(PLAIN, late_workloads=LATE)
WAYS = {
    "never": (NEVER, "baseline"),
    "late": (STREAM, "baseline"),
    "late, KTO for what diverged": (STREAM, "kto"),
}


@dataclass
class Mass:
    """The mass of late rewards: their absolute distance to what was expected, and how much of it trained weights."""

    all: float = 0.0
    trained: float = 0.0

    def hear(self, batch: Sequence[ScoredTurn], result: UpdateResult) -> None:
        for scored, record in zip(batch, result.records, strict=True):
            if int(scored.turn.workload) >= WORKLOADS - LATE:
                mass = abs(record.reward - record.baseline)
                self.all += mass
                self.trained += mass if record.dropped is None else 0.0


@dataclass(frozen=True)
class Ended:
    prompt: float
    late: float
    trained: float


def run(job: tuple[str, int]) -> Ended:
    way, seed = job
    stream, late = WAYS[way]
    settings, mass = settings_for(seed, RATE, {"advantage.baseline": "value", "admission.late": late}), Mass()
    first, learned = learn(stream, settings, 1, learns=False), learn(stream, settings, STEPS, heard=mass.hear)

    def gained(workloads: range) -> float:
        return 1 - still_missed(learned, BATCHES, workloads) / still_missed(first, BATCHES, workloads)

    prompt, late_ones = range(WORKLOADS - LATE), range(WORKLOADS - LATE, WORKLOADS)
    return Ended(gained(prompt), gained(late_ones), mass.trained / mass.all if mass.all else 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    seeds = parser.parse_args().seeds
    jobs = [(way, seed) for seed in range(seeds) for way in WAYS]
    with multiprocessing.get_context("spawn").Pool() as pool:
        ended = dict(zip(jobs, track(pool.imap(run, jobs), "runs", total=len(jobs)), strict=True))
    report("late_outcomes", list(rows(ended, seeds)))


def rows(ended: dict[tuple[str, int], Ended], seeds: int) -> Iterator[Row]:
    without = np.array([ended["never", seed].late for seed in range(seeds)])
    for way in WAYS:
        found = [ended[way, seed] for seed in range(seeds)]
        yield Row(f"{way}: quality where feedback is prompt", float(np.mean([f.prompt for f in found])), "of the gain")
        late = np.array([f.late for f in found])
        if way == "never":
            yield Row(f"{way}: quality where it is late", float(late.mean()), "of the gain")
            continue
        low, high = interval(late - without)
        against = f"never {(late - without).mean():+.3f} [{low:+.3f}, {high:+.3f}], {seeds} seeds"
        yield Row(f"{way}: quality where it is late", float(late.mean()), "of the gain", against, low, 0.0, low > 0)
        trained = float(np.mean([f.trained for f in found]))
        yield Row(f"{way}: mass of late rewards that trained weights", trained, "share")


if __name__ == "__main__":
    main()
