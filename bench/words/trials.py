"""The regret of users if some of those who reject an answer say which one they wanted instead.

A small policy learns from the stream `noise` by the learner's own update. The trial compares weights with which what
users say is taught; 0 teaches nothing. A share of what they say is wrong: it names a random answer. Regret is by how
much likelier the best answer would have been accepted, averaged over all turns. Pairs share seeds, users and chance.
If everything that is said is wrong, there is no goal: the row shows what that costs."""

import argparse
import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from rich.progress import track

from bench.learning.feedback_loop import learn, settings_for
from bench.learning.feedback_world import CHOICES, STREAMS, Users
from bench.learning.small_policy import small_state
from bench.paired import interval
from bench.table import Row
from core.settings import LearnerSettings
from learner.sequences.scored import ScoredTurn
from learner.updates.state import LearnerState

SEEDS, STEPS, RATE = 8, 150, 0.003
SAID = 1 / 3  # of rejected answers
WEIGHTS = (0.0, 0.1, 0.3, 1.0)
WRONG = (0.0, 0.3, 1.0)  # share of what is said that names any answer
Say = Callable[[ScoredTurn, tuple[int, int]], ScoredTurn]
"""Puts into a turn's reward that its user wanted this answer."""


@dataclass(frozen=True)
class Trial:
    """What users say (`texts`) and how; `weight` is the setting that is compared, `draw` the seed of who says it."""

    texts: str
    weight: str
    draw: int
    say: Say
    begin: Callable[[LearnerSettings], LearnerState] = small_state


@dataclass(frozen=True)
class Run:
    weight: float
    wrong: float
    seed: int
    steps: int


class Speakers:
    """Users who say what they wanted, a share of whom name a random answer."""

    def __init__(self, trial: Trial, run: Run) -> None:
        self._rng, self._wrong, self._say = np.random.default_rng((trial.draw, run.seed)), run.wrong, trial.say

    def say(self, users: Users, scored: ScoredTurn) -> ScoredTurn:
        """Return the turn with what its user says of it."""
        says, errs, *anything = self._rng.random(4)
        if scored.reward.value > 0 or says > SAID:
            return scored
        wanted = users.wanted(scored.turn.prompt_token_ids[-1])
        if errs < self._wrong:
            wanted = int(anything[0] * CHOICES), int(anything[1] * CHOICES)
        return self._say(scored, wanted)


def regret(trial: Trial, run: Run) -> float:
    settings = settings_for(run.seed, RATE, {"advantage.baseline": "value", trial.weight: run.weight})
    said = Speakers(trial, run).say
    return float(np.mean(learn(STREAMS["noise"], settings, run.steps, said=said, begin=trial.begin).missed))


def compare(trial: Trial, description: str | None) -> list[Row]:
    """Run all of a trial, as its command line says; return the rows."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--steps", type=int, default=STEPS)
    asked = parser.parse_args()
    runs = [Run(w, wrong, seed, asked.steps) for seed in range(asked.seeds) for wrong in WRONG for w in WEIGHTS]
    with multiprocessing.get_context("spawn").Pool() as pool:
        regrets = track(pool.imap(partial(regret, trial), runs), "runs", total=len(runs))
        found = dict(zip(runs, regrets, strict=True))
    return list(rows(trial.texts, found, asked.seeds, asked.steps))


def rows(texts: str, found: Mapping[Run, float], seeds: int, steps: int) -> Iterator[Row]:
    for wrong in WRONG:
        without, *others = (np.array([found[Run(w, wrong, seed, steps)] for seed in range(seeds)]) for w in WEIGHTS)
        yield Row(f"{texts} teach nothing, {wrong:.0%} of them wrong: regret", float(without.mean()), "of 1")
        for weight, regrets in zip(WEIGHTS[1:], others, strict=True):
            low, high = interval(regrets - without)
            against = f"teach nothing {(regrets - without).mean():+.4f} [{low:+.4f}, {high:+.4f}], {seeds} seeds"
            metric = f"weight {weight:g}, {wrong:.0%} of {texts} wrong: regret"
            goal, holds = (0.0, high < 0) if wrong < 1 else (None, True)
            yield Row(metric, float(regrets.mean()), "of 1", against, high, goal, holds)
