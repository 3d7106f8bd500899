"""The regret of users of whom some say what they wanted, when they reject an answer.

    python -m bench hints [--seeds 8] [--steps 150]

A small policy learns by the learner's own update from the stream `noise`. It was taught before to do as it is told: an
answer named in front of a request is mostly given. A third of those who reject an answer name the one that they wanted,
and some of them name any. Compared is `learner.objective.hints.weight`: with 0 words teach nothing. Regret is by how
much likelier the best answer would have been accepted, the mean over all turns. Pairs share seeds, users and their
luck. Where all words are wrong there is no goal: it shows what they cost."""

import argparse
import copy
import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import torch
from rich.progress import track
from torch.nn.functional import cross_entropy, linear

from bench.learning.feedback_loop import learn, settings_for
from bench.learning.feedback_world import ANSWER, CHOICES, CONTEXTS, STREAMS, Users
from bench.learning.small_policy import EMPTY, WINDOW, SmallPolicy, small_state
from bench.paired import interval
from bench.table import Row, report
from core.events import Completion, Hint
from core.ids import OutcomeId
from core.settings import LearnerSettings
from learner.sequences.scored import ScoredTurn
from learner.updates.state import LearnerState

SEEDS, STEPS, RATE = 8, 150, 0.003
SAID = 1 / 3  # of rejected answers
WEIGHTS = (0.0, 0.1, 0.3, 1.0)
WRONG = (0.0, 0.3, 1.0)  # share of words that name any answer
OBEDIENCE = 0.9  # how likely it gives the answer that it was told, a token


@dataclass(frozen=True)
class Run:
    weight: float
    wrong: float
    seed: int
    steps: int


class Named:
    """Answers by their names, in front of a request."""

    stop_token_ids: frozenset[int] = frozenset()

    def prompt(self, turn: Completion, hint: Hint) -> tuple[int, ...]:
        return (*(CONTEXTS + int(choice) for choice in hint.text.split()), *turn.prompt_token_ids)

    def quotes(self, turn: Completion, hint: Hint) -> bool:
        return False  # whoever names the answer that there was argues against having rejected it


class Obedient(SmallPolicy):
    hinting = Named()


class Speakers:
    """Users who say what they wanted, or, of a share of them, anything."""

    def __init__(self, seed: int, wrong: float) -> None:
        self._rng, self._wrong = np.random.default_rng((6, seed)), wrong

    def say(self, users: Users, scored: ScoredTurn) -> ScoredTurn:
        says, errs, *anything = self._rng.random(4)
        if scored.reward.value > 0 or says > SAID:
            return scored
        wanted = users.wanted(scored.turn.prompt_token_ids[-1])
        if errs < self._wrong:
            wanted = int(anything[0] * CHOICES), int(anything[1] * CHOICES)
        words = " ".join(map(str, wanted))
        hint = Hint(start=0, end=ANSWER, text=words, outcome_id=OutcomeId(scored.inference_id))
        return replace(scored, reward=msgspec.structs.replace(scored.reward, hints=(hint,)))


def obedient_state(settings: LearnerSettings) -> LearnerState:
    """Return a state whose policy gives an answer that is named, and knows nothing else."""
    state = small_state(settings, Obedient)
    policy, rng = state.policy, np.random.default_rng((7, settings.seed))
    assert isinstance(policy, Obedient)
    optimizer, obeys = torch.optim.Adam(policy.parameters(), lr=0.01), 0.0
    while obeys < OBEDIENCE:
        told = torch.tensor(rng.integers(CHOICES, size=(256, ANSWER)))
        context = torch.tensor(rng.integers(CONTEXTS, size=(256, 1)))
        other = torch.tensor(rng.integers(CHOICES, size=(256, ANSWER)))
        named = torch.cat([torch.full((256, 1), EMPTY), CONTEXTS + told, context], 1)
        plain = torch.cat([torch.full((256, WINDOW - 1), EMPTY), context], 1)
        loss, likely = _taught(policy, named, told)
        untold, _ = _taught(policy, plain, other)
        optimizer.zero_grad()
        (loss + untold).backward()
        optimizer.step()
        obeys = likely
    state.anchor = copy.deepcopy(policy)  # type: ignore[assignment]
    return state


def _taught(policy: Obedient, window_BW: torch.Tensor, wanted_BA: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Return (the loss of answers, how likely the least likely of their tokens is in the mean)."""
    loss, likely = torch.zeros(()), 1.0
    for place in range(ANSWER):
        logits = linear(policy._hidden(window_BW)[:, -1], policy._head.weight)
        loss = loss + cross_entropy(logits, wanted_BA[:, place])
        likely = min(likely, float(logits.detach().softmax(-1).gather(1, wanted_BA[:, place : place + 1]).mean()))
        window_BW = torch.cat([window_BW[:, 1:], CONTEXTS + wanted_BA[:, place : place + 1]], 1)
    return loss, likely


def regret(run: Run) -> float:
    torch.set_num_threads(1)
    chosen = {"advantage.baseline": "value", "objective.hints.weight": run.weight}
    settings = settings_for(run.seed, RATE, chosen)
    speakers = Speakers(run.seed, run.wrong)
    learned = learn(STREAMS["noise"], settings, run.steps, said=speakers.say, begin=obedient_state)
    return float(np.mean(learned.missed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--steps", type=int, default=STEPS)
    asked = parser.parse_args()
    runs = [Run(w, wrong, seed, asked.steps) for seed in range(asked.seeds) for wrong in WRONG for w in WEIGHTS]
    with multiprocessing.get_context("spawn").Pool() as pool:
        found = dict(zip(runs, track(pool.imap(regret, runs), "runs", total=len(runs)), strict=True))
    report("hints", list(rows(found, asked.seeds, asked.steps)))


def rows(found: dict[Run, float], seeds: int, steps: int) -> Iterator[Row]:
    for wrong in WRONG:
        without, *others = (np.array([found[Run(w, wrong, seed, steps)] for seed in range(seeds)]) for w in WEIGHTS)
        yield Row(f"words teach nothing, {wrong:.0%} of them wrong: regret", float(without.mean()), "of 1")
        for weight, regrets in zip(WEIGHTS[1:], others, strict=True):
            low, high = interval(regrets - without)
            against = f"teach nothing {(regrets - without).mean():+.4f} [{low:+.4f}, {high:+.4f}], {seeds} seeds"
            metric = f"weight {weight:g}, {wrong:.0%} of words wrong: regret"
            goal, holds = (0.0, high < 0) if wrong < 1 else (None, True)
            yield Row(metric, float(regrets.mean()), "of 1", against, high, goal, holds)


if __name__ == "__main__":
    main()
