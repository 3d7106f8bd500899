"""Log-ratios of logged turns: how likely a candidate was to give the logged answers."""

from collections.abc import Sequence

import numpy as np
import torch

from learner.model.policy_model import PolicyModel
from learner.off_policy.overlap import LoggedTurns
from learner.off_policy.predictions import predictions
from learner.sequences.joining import merge
from learner.sequences.scored import ScoredTurn
from learner.sequences.tensors import micro_batches


def logged_turns(candidate: PolicyModel, batch: Sequence[ScoredTurn], max_tokens: int, device: str) -> LoggedTurns:
    """Return the turns as a candidate sees them, each with the latest revision of its reward.

    Turns that the candidate was trained on would flatter it. A user's turns are one cluster; so are those of a
    session without a user. A turn's expected reward is estimated from other users' turns of its namespace and
    workload. Raises ValueError naming an untrainable turn, whose log-probabilities are not of the distribution that
    it was sampled from."""
    for scored in batch:
        if not scored.turn.trainable:
            raise ValueError(f"{scored.inference_id}: untrainable ({', '.join(scored.turn.untrainable_reasons)})")
    rewards = [scored.reward.value for scored in batch]
    strata = [f"{scored.turn.namespace}\0{scored.turn.workload}" for scored in batch]
    users = [f"{scored.turn.namespace}\0{scored.turn.user_id or scored.turn.session_id}" for scored in batch]
    ratios = _log_ratios(candidate, batch, max_tokens, device)
    return LoggedTurns.of(ratios, rewards, users, predictions(rewards, strata, users))


def _log_ratios(candidate: PolicyModel, batch: Sequence[ScoredTurn], max_tokens: int, device: str) -> np.ndarray:
    """Return the log-ratio of each turn, summed over its sampled tokens, under its own temperature."""
    sums = torch.zeros(len(batch), dtype=torch.float64)
    was_training = candidate.model.training
    candidate.model.eval()
    with torch.no_grad():
        for part in micro_batches(merge(batch), batch, max_tokens, device, masks=candidate.masks):
            logprobs_N, _ = candidate.score(candidate.hidden_states(part), part)
            sums.index_add_(0, part.turns_N.cpu(), (logprobs_N - part.behaviour_N).double().cpu())
    candidate.model.train(was_training)
    return sums.numpy()
