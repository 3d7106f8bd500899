"""The choice of turns that are too stale to train, by the effect of staleness first and by its count in versions last.

- A turn's divergence: mean k3 between the current policy and the one that sampled it, over its tokens.
- The effective sample size of the batch's turns under their importance weights, as a share
  (Kish: (sum w)^2 / (n sum w^2), w the exponential of a turn's mean log-ratio); the most divergent turns are left out
  until it is large enough.
- The age of the outcome, by its kind (`too_old`), which needs no model.
- If configured, the number of versions that were released since a token was sampled (`oldest_allowed`). It is asked
  of the policy's own tokens: how far another policy's versions were from it, their numbers do not say, and the
  divergence does.

Legend: N sampled tokens of a micro-batch, M turns of the batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from core.events import Completion, Reward
from core.ids import PolicyRef, Version
from learner.objective.losses.kl import k3


@dataclass(frozen=True)
class Drift:
    """The drift of the policy from what sampled the turns of a micro-batch; entries of other turns are zero."""

    divergence_M: Tensor
    shift_M: Tensor  # mean absolute difference of the log-probabilities
    log_weight_M: Tensor  # mean of the log-ratios
    present_M: Tensor

    @property
    def ess(self) -> float:
        return effective_share(self.log_weight_M[self.present_M].exp())


def measure(logprobs_N: Tensor, behaviour_N: Tensor, turns_N: Tensor, num_turns: int) -> Drift:
    counts_M = torch.zeros(num_turns).index_add_(0, turns_N.cpu(), torch.ones(len(turns_N)))
    ratio_N = (logprobs_N - behaviour_N).cpu()
    return Drift(
        divergence_M=_mean(k3(behaviour_N, logprobs_N).cpu(), turns_N, counts_M),
        shift_M=_mean(ratio_N.abs(), turns_N, counts_M),
        log_weight_M=_mean(ratio_N, turns_N, counts_M),
        present_M=counts_M > 0,
    )


def together(drifts: Sequence[Drift]) -> Drift:
    """Return the drift of several micro-batches, in which no turn occurs twice."""
    return Drift(
        divergence_M=torch.stack([drift.divergence_M for drift in drifts]).sum(0),
        shift_M=torch.stack([drift.shift_M for drift in drifts]).sum(0),
        log_weight_M=torch.stack([drift.log_weight_M for drift in drifts]).sum(0),
        present_M=torch.stack([drift.present_M for drift in drifts]).any(0),
    )


def nowhere(num_turns: int) -> Drift:
    """Return the drift before the first micro-batch."""
    none_M = torch.zeros(num_turns)
    return Drift(none_M, none_M, none_M, torch.zeros(num_turns, dtype=torch.bool))


def within(drift: Drift, max_divergence: float) -> Tensor:
    """Return [M] bool: which of the present turns have diverged little enough, each by itself."""
    return drift.present_M & (drift.divergence_M <= max_divergence)


def left_out(drift: Drift, max_divergence: float, min_ess: float) -> frozenset[int]:
    """Return the turns of the whole batch to leave out so that the effective sample size is large enough."""
    keep_M, weights_M = within(drift, max_divergence), drift.log_weight_M.exp()
    out = set[int]()
    for turn in torch.argsort(drift.divergence_M, descending=True, stable=True).tolist():
        if effective_share(weights_M[keep_M]) >= min_ess:
            break
        if keep_M[turn]:
            out.add(turn)
            keep_M[turn] = False
    return frozenset(out)


def _mean(values_N: Tensor, turns_N: Tensor, counts_M: Tensor) -> Tensor:
    return torch.zeros(len(counts_M)).index_add_(0, turns_N.cpu(), values_N) / counts_M.clamp(min=1)


def effective_share(weights: Tensor) -> float:
    """Return the effective sample size as a share: 1 for equal weights, 1/n when one outweighs the rest; 1 for none."""
    if len(weights) == 0:
        return 1.0
    return float(weights.sum() ** 2 / (len(weights) * (weights**2).sum()))


def too_old(turn: Completion, reward: Reward, limits_s: Mapping[str, float], default_s: float) -> bool:
    """Return whether every outcome in the reward came later after the turn than its kind may."""
    age_s = ((reward.last_outcome_at or reward.decided_at) - turn.received_at).total_seconds()
    limit_s = max((limits_s.get(name, default_s) for name in reward.components), default=default_s)
    return age_s > limit_s


def oldest_allowed(released: Sequence[PolicyRef], most_behind: int | None) -> Version:
    """Return the number of the oldest version with at most `most_behind` of the ascending `released` after it."""
    if most_behind is None or len(released) <= most_behind:
        return Version(0)
    return released[-1 - most_behind].version
