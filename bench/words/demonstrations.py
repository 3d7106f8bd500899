"""The regret of users of whom some write what they wanted instead of an answer that they rejected.

    python -m bench demonstrations [--seeds 8] [--steps 150]

A small policy learns by the learner's own update from the stream `noise`. A third of those who reject an answer also
edit it, and some of them write something that nobody wants. Compared is `learner.objective.demonstration_weight`: with
0 their texts teach nothing. Regret is by how much likelier the best answer would have been accepted, the mean over all
turns. Pairs share seeds, users and their luck. Where all texts are wrong there is no goal: it shows what they cost."""

import argparse
import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from rich.progress import track

from bench.learning.feedback_loop import learn, settings_for
from bench.learning.feedback_world import CHOICES, CONTEXTS, STREAMS, Users
from bench.paired import interval
from bench.table import Row, report
from core.events import TextEdit
from learner.sequences.scored import ScoredTurn

SEEDS, STEPS, RATE = 8, 150, 0.003
EDITED = 1 / 3  # of rejected answers
WEIGHTS = (0.0, 0.1, 0.3, 1.0)
WRONG = (0.0, 0.3, 1.0)  # share of texts that nobody wants


@dataclass(frozen=True)
class Run:
    weight: float
    wrong: float
    seed: int
    steps: int


class Editors:
    """Users who write what they wanted, or, of a share of them, anything."""

    def __init__(self, seed: int, wrong: float) -> None:
        self._rng, self._wrong = np.random.default_rng((5, seed)), wrong

    def say(self, users: Users, scored: ScoredTurn) -> ScoredTurn:
        """Put the text that the user wrote into the reward, as edits of the tokens that it changes."""
        edits, errs, *anything = self._rng.random(4)
        if scored.reward.value > 0 or edits > EDITED:
            return scored
        turn = scored.turn
        wanted = users.wanted(turn.prompt_token_ids[-1])
        if errs < self._wrong:
            wanted = int(anything[0] * CHOICES), int(anything[1] * CHOICES)
        written = [CONTEXTS + choice for choice in wanted]
        changed = [
            TextEdit(start=place, end=place + 1, token_ids=(new,))
            for place, (new, old) in enumerate(zip(written, turn.token_ids, strict=True))
            if new != old
        ]
        return replace(scored, reward=msgspec.structs.replace(scored.reward, edits=tuple(changed)))


def regret(run: Run) -> float:
    chosen = {"advantage.baseline": "value", "objective.demonstration_weight": run.weight}
    settings = settings_for(run.seed, RATE, chosen)
    return float(np.mean(learn(STREAMS["noise"], settings, run.steps, said=Editors(run.seed, run.wrong).say).missed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--steps", type=int, default=STEPS)
    asked = parser.parse_args()
    runs = [Run(w, wrong, seed, asked.steps) for seed in range(asked.seeds) for wrong in WRONG for w in WEIGHTS]
    with multiprocessing.get_context("spawn").Pool() as pool:
        found = dict(zip(runs, track(pool.imap(regret, runs), "runs", total=len(runs)), strict=True))
    report("demonstrations", list(rows(found, asked.seeds, asked.steps)))


def rows(found: dict[Run, float], seeds: int, steps: int) -> Iterator[Row]:
    for wrong in WRONG:
        without, *others = (np.array([found[Run(w, wrong, seed, steps)] for seed in range(seeds)]) for w in WEIGHTS)
        yield Row(f"texts teach nothing, {wrong:.0%} of them wrong: regret", float(without.mean()), "of 1")
        for weight, regrets in zip(WEIGHTS[1:], others, strict=True):
            low, high = interval(regrets - without)
            against = f"teach nothing {(regrets - without).mean():+.4f} [{low:+.4f}, {high:+.4f}], {seeds} seeds"
            metric = f"weight {weight:g}, {wrong:.0%} of texts wrong: regret"
            goal, holds = (0.0, high < 0) if wrong < 1 else (None, True)
            yield Row(metric, float(regrets.mean()), "of 1", against, high, goal, holds)


if __name__ == "__main__":
    main()
