"""A batch that the policy has drifted away from, so that the whole batch decides what happens to each turn."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import torch
from changed_settings import changed
from logged_world import MODEL, logged_past
from torch import Tensor

from core.events import Hint, TextEdit
from core.ids import OutcomeId
from core.settings import LearnerSettings
from learner.model.ranks import ALONE, Ranks, whole
from learner.sequences.scored import ScoredTurn
from learner.updates.state import make_state
from learner.updates.update import UpdateResult, update

CASES: dict[str, dict[str, Any]] = {
    "ess": {"admission.min_ess": 0.9},
    "kto": {
        "admission.min_ess": 0.9,
        "admission.late": "kto",
        "admission.kto_outcomes": ["thumb"],
        "objective.kto_beta": 1.0,
        "objective.demonstration_weight": 0.05,
        "objective.hints.weight": 0.1,
    },
    "others": {
        "admission.min_ess": 0.9,
        "advantage.baseline": "beta",
        "objective.loss": "ppo",
        "objective.correction.method": "geometric",
        "objective.policy_normaliser": "sequence",
        "objective.entropy_coefficient": 0.1,
        "objective.entropy_normaliser": "constant",
        "advantage.turn_discount": 0.5,
    },
    "in the reward": {
        "objective.kl.estimator": "k1",
        "objective.kl.placement": "reward",
    },
}


def drifted_batch(count: int = 10) -> list[ScoredTurn]:
    """Return turns whose answers were more or less likely when sampled; all lengths differ.

    A third of them were judged by thumbs; of each, its user rewrote something and said something, which all cases but
    one leave alone."""
    rng = random.Random(5)
    batch = []
    for number, (turn, reward) in enumerate(logged_past(count)):
        tokens, shift = 3 + number % 9, rng.gauss(0, 0.5)
        logprobs = tuple(logprob + shift for logprob in turn.logprobs[:tokens])
        spans = tuple(msgspec.structs.replace(span, end=tokens) for span in turn.policy_versions)
        cut = msgspec.structs.replace(
            turn, token_ids=turn.token_ids[:tokens], logprobs=logprobs, policy_versions=spans, delivered_tokens=tokens
        )
        text = TextEdit(start=1, end=2, token_ids=tuple(range(300, 301 + number % 4)))
        said = Hint(start=0, end=tokens, text="no, use our logger", outcome_id=OutcomeId("said"))
        batch.append(ScoredTurn(cut, msgspec.structs.replace(reward, edits=(text,), hints=(said,))))
        if number % 3 == 0:
            by_thumb = msgspec.structs.replace(batch[-1].reward, components={"thumb": reward.value})
            batch[-1] = replace(batch[-1], reward=by_thumb)
    return batch


@dataclass(frozen=True)
class Updated:
    """An update: its clipped gradients, and the changes to the weights of policy and value head."""

    gradients: list[Tensor]
    changes: list[Tensor]
    result: UpdateResult


def updated(case: str, ranks: Ranks = ALONE, settings: Mapping[str, Any] = {}) -> Updated:
    """Make one update, with an anchor that differs from the policy.

    The first of several processes gets the whole result."""
    chosen = changed(LearnerSettings(), {"admission.max_divergence": 2.0, **CASES[case], **settings})
    state = make_state(MODEL, chosen, ranks)
    with torch.no_grad():
        for number, weight in enumerate(state.anchor.apart().model.parameters()):
            weight *= 1 + 0.3 * (-1) ** number
    weights = [*state.policy.parameters(), *state.advantages.parameters()]
    before = [whole(weight.detach()).clone() for weight in weights]
    result = update(state, drifted_batch(), chosen)
    changes = [whole(weight.detach()) - old for weight, old in zip(weights, before, strict=True)]
    moments = [state.optimizer.state[weight]["exp_avg"] for weight in state.policy.parameters()]
    return Updated([whole(moment) / (1 - chosen.optimizer.beta1) for moment in moments], changes, result)
