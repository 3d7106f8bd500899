"""The regret of users of whom some say what they wanted, when they reject an answer.

    python -m bench hints [--seeds 8] [--steps 150]

The policy was trained to obey first: it mostly gives an answer that is named in front of a request. A third of
those who reject an answer name the one that they wanted, and some of them name any. The trial
compares values of `learner.objective.hints.weight`; see `trials.py`."""

from dataclasses import replace

import msgspec
import numpy as np
import torch
from torch.nn.functional import cross_entropy, linear

from bench.learning.feedback_world import ANSWER, CHOICES, CONTEXTS
from bench.learning.small_policy import EMPTY, WINDOW, SmallPolicy, small_state
from bench.table import report
from bench.words.trials import Trial, compare
from core.events import Completion, Hint
from core.ids import OutcomeId
from core.settings import LearnerSettings
from learner.sequences.scored import ScoredTurn
from learner.updates.state import LearnerState

OBEDIENCE = 0.9  # how likely it gives the answer that it was told, a token


class Named:
    """Answers by their names, in front of a request."""

    stop_token_ids: frozenset[int] = frozenset()

    def prompt(self, turn: Completion, hint: Hint) -> tuple[int, ...]:
        return (*(CONTEXTS + int(choice) for choice in hint.text.split()), *turn.prompt_token_ids)

    def quotes(self, turn: Completion, hint: Hint) -> bool:
        return False  # whoever names the answer that there was argues against having rejected it


class Obedient(SmallPolicy):
    hinting = Named()


def name_it(scored: ScoredTurn, wanted: tuple[int, int]) -> ScoredTurn:
    """Name the answer that was wanted, in words about all of the answer that was given."""
    words = " ".join(map(str, wanted))
    hint = Hint(start=0, end=ANSWER, text=words, outcome_id=OutcomeId(scored.inference_id))
    return replace(scored, reward=msgspec.structs.replace(scored.reward, hints=(hint,)))


def obedient_state(settings: LearnerSettings) -> LearnerState:
    """Return a state whose policy gives an answer that is named, and knows nothing else."""
    policy, rng = Obedient(settings.seed), np.random.default_rng((7, settings.seed))
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
    return small_state(settings, policy)


def _taught(policy: Obedient, window_BW: torch.Tensor, wanted_BA: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Return (the loss of answers, how likely the least likely of their tokens is in the mean)."""
    loss, likely = torch.zeros(()), 1.0
    for place in range(ANSWER):
        logits = linear(policy._hidden(window_BW)[:, -1], policy._head.weight)
        loss = loss + cross_entropy(logits, wanted_BA[:, place])
        likely = min(likely, float(logits.detach().softmax(-1).gather(1, wanted_BA[:, place : place + 1]).mean()))
        window_BW = torch.cat([window_BW[:, 1:], CONTEXTS + wanted_BA[:, place : place + 1]], 1)
    return loss, likely


TRIAL = Trial("words", "objective.hints.weight", draw=6, say=name_it, begin=obedient_state)

if __name__ == "__main__":
    report("hints", compare(TRIAL, __doc__))
