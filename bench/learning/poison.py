"""The cost of lying users, and of the defences against them where there are none: true quality after learning.

    python -m bench poison [--only CROWD …] [--seeds 8] [--first-seed 0] [--updates 100]

In one process: the shipped model answers `write` tasks, 32 to an update, everybody judges what they got, and the
learner's own update follows. Liars agree with each other: they take what is bad and turn down what is good. `quiet`
ones speak as much as others; `loud` ones ten times as much, so that most feedback is lies; `repeating` ones say the
same of the same answer ten times in an update. Of `learner.users`, `bounded` is `max_share`, `defended` that and
`distrust`, `shared` is `share_repeats`; `usual` is a learner without a setting. Cost is the final true quality of
the honest crowd without a defence above theirs, paired by seed. Runs are kept one by one, so that the table can be
made in pieces."""

import argparse
import json
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
from rich.progress import track

from bench.learning.office import MODEL, Answered, Office, worth
from bench.paired import mean_and_reach
from bench.table import RESULTS, Row, report
from core.ids import UserHash
from core.settings import LearnerSettings
from core.settings.names import nested
from learner.sequences.scored import ScoredTurn
from learner.updates.state import make_state
from learner.updates.update import update

RUNS = RESULTS / "poison_runs.json"
USERS = 40
LIARS = 4
TURNS = 32
FINAL = 15  # updates whose answers are the final quality
SHARE = 0.05  # of an update that one user may be: twice an even share
LOUD = 10.0
TIMES = 10
GOAL = 0.05
HARMLESS = 0.01  # of true quality: what a defence that is on by default may cost an honest crowd
HONEST = "honest"


@dataclass(frozen=True)
class Crowd:
    """A crowd with or without liars.

    `loudness`: of a liar, against 1 of the others; 0: nobody lies. `defence`: settings of the learner. `times`: how
    often a liar says the same of the same answer. `goal`: what it may cost at most; None: measured without one."""

    loudness: float
    defence: Mapping[str, Any] = field(default_factory=dict)
    times: int = 1
    goal: float | None = None

    def weights(self) -> list[float]:
        return [self.loudness] * LIARS + [1.0] * (USERS - LIARS) if self.loudness else [1.0] * USERS

    def is_liar(self, user: int) -> bool:
        return bool(self.loudness) and user < LIARS


OPEN = {"users.share_repeats": False, "users.max_share": 1.0}
BOUNDED = OPEN | {"users.max_share": SHARE}
DEFENDED = BOUNDED | {"users.distrust": True}
SHARED = OPEN | {"users.share_repeats": True}
USUAL: dict[str, Any] = {}
CROWDS = {
    HONEST: Crowd(0.0, OPEN),
    "honest, shared": Crowd(0.0, SHARED, goal=HARMLESS),
    "honest, bounded": Crowd(0.0, BOUNDED),
    "honest, defended": Crowd(0.0, DEFENDED),
    "honest, usual": Crowd(0.0, USUAL, goal=HARMLESS),
    "quiet, open": Crowd(1.0, OPEN),
    "quiet, defended": Crowd(1.0, DEFENDED, goal=GOAL),
    "loud, open": Crowd(LOUD, OPEN),
    "loud, bounded": Crowd(LOUD, BOUNDED),
    "loud, usual": Crowd(LOUD, USUAL),
    "loud, defended": Crowd(LOUD, DEFENDED, goal=GOAL),
    "repeating, open": Crowd(1.0, OPEN, times=TIMES),
    "repeating, shared": Crowd(1.0, SHARED, times=TIMES),
}


def taught(crowd: Crowd, seed: int, updates: int) -> list[float]:
    """Return the share of answers that were good, update by update."""
    settings = LearnerSettings.model_validate(nested({"seed": seed, "batch.turns": TURNS, **crowd.defence}))
    state, office, rng = make_state(MODEL, settings), Office(seed), random.Random(seed)
    curve = []
    for _ in range(updates):
        answered = office.work(state.policy.model, TURNS)
        curve.append(sum(each.quality.good for each in answered) / TURNS)
        update(state, judged(answered, crowd, office.rng, rng), settings)
    return curve


def judged(answered: Sequence[Answered], crowd: Crowd, content: random.Random, rng: random.Random) -> list[ScoredTurn]:
    users = rng.choices(range(USERS), crowd.weights(), k=len(answered))
    batch = []
    for number, (each, user) in enumerate(zip(answered, users, strict=True)):
        said = lie(each) if crowd.is_liar(user) else worth(each.quality)
        scored = each.turn(number, said, content)
        turn = msgspec.structs.replace(scored.turn, user_id=UserHash(f"user-{user}"))
        batch += [ScoredTurn(turn, scored.reward)] * (crowd.times if crowd.is_liar(user) else 1)
    return batch


def lie(answered: Answered) -> float:
    return -0.5 if answered.quality.good else 1.0


# ---------------------------------------------------------------------------------------------- the table


def known() -> dict[str, list[float]]:
    return dict(json.loads(RUNS.read_text())) if RUNS.exists() else {}


def final(curve: Sequence[float]) -> float:
    return statistics.fmean(curve[-FINAL:])


def rows(runs: dict[str, list[float]], updates: int) -> Iterator[Row]:
    """Compare each crowd with the honest one on the seeds that both have."""
    seeds = {crowd: [seed for seed in range(100) if _has(runs, crowd, seed, updates)] for crowd in CROWDS}
    honest = {seed: final(runs[_name(HONEST, seed)]) for seed in seeds[HONEST]}
    first = statistics.fmean(statistics.fmean(runs[_name(HONEST, seed)][:FINAL]) for seed in honest)
    yield Row(f"true quality of the first {FINAL} updates, {len(honest)} seeds", first, "share")
    for crowd in CROWDS:
        both = [seed for seed in seeds[crowd] if seed in honest]
        if not both:
            continue
        ends = {seed: final(runs[_name(crowd, seed)]) for seed in both}
        metric = f"{crowd}: true quality of the last {FINAL} of {updates} updates, {len(both)} seeds"
        yield Row(metric, statistics.fmean(ends.values()), "share")
        if crowd == HONEST:
            continue
        mean, half = mean_and_reach([honest[seed] - ends[seed] for seed in both])
        metric = f"{crowd}: cost, ± {half:.3f} (95 %)"
        goal = CROWDS[crowd].goal
        if goal is None:
            yield Row(metric, mean, "share", HONEST, mean)
        else:
            yield Row.at_most(metric, mean, "share", HONEST, mean, goal)


def _has(runs: dict[str, list[float]], crowd: str, seed: int, updates: int) -> bool:
    return len(runs.get(_name(crowd, seed), ())) == updates


def _name(crowd: str, seed: int) -> str:
    return f"{crowd}, seed {seed}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=list(CROWDS), default=list(CROWDS), metavar="CROWD")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--updates", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs = known()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    wanted = [(crowd, seed) for seed in seeds for crowd in options.only]
    wanted = [(crowd, seed) for crowd, seed in wanted if not _has(runs, crowd, seed, options.updates)]
    for crowd, seed in track(wanted, f"{len(wanted)} runs of {options.updates} updates"):
        curve = taught(CROWDS[crowd], seed, options.updates)
        runs = known() | {_name(crowd, seed): curve}  # others may have written meanwhile
        RUNS.write_text(json.dumps(runs) + "\n")
    report("poison", list(rows(runs, options.updates)))


if __name__ == "__main__":
    main()
