"""Distillation from words: the policy learns to answer as if it had known what would be said of its answer.

The teacher is an average of the policy's own weights (`learner.model.teacher`) that reads a hint in its context. Of
each sampled token that the hint is about (SDPO, arXiv:2601.20802; OPSD, arXiv:2601.18734):

    a = clip(log teacher(token | prompt with the hint) - log pi(token | prompt), -clip, clip)
    loss = -w * min(pi / mu, cap) * a * log pi

In expectation over what mu samples, that is the gradient of the KL divergence from the policy to the teacher. Alone it
collapses where a hint is wrong, or tells the answer (its repository's issue 25). So a hint teaches nothing

- unless the sum of its a has the sign of the outcome: what its tokens earned, less what was expected of the answer;
- if it quotes what it is about, since a teacher that has read a token copies it;
- about the token that ends an answer, or it would teach how long answers are.

And all hints of a turn together move it by at most `most` nats before w.

Legend: N tokens of a hint's, or of a micro-batch's."""

import math
from collections.abc import Sequence

from torch import Tensor

from core.settings import HintSettings


def told_by(teacher: Sequence[float], policy: Sequence[float], verdict: float, settings: HintSettings) -> list[float]:
    """Return a of each token of a hint; all 0 where it argues against the verdict, or there is none."""
    found = [max(-settings.clip, min(settings.clip, one - other)) for one, other in zip(teacher, policy, strict=True)]
    agrees = math.fsum(found) * verdict > 0
    return found if agrees else [0.0] * len(found)


def bounded(told: Sequence[float], settings: HintSettings) -> list[float]:
    """Return what all hints of a turn tell together, within the bounds of a token and of a turn, times the weight."""
    clipped = [max(-settings.clip, min(settings.clip, each)) for each in told]
    whole = math.fsum(map(abs, clipped))
    share = settings.weight * min(1.0, settings.most / whole) if whole else 0.0
    return [share * each for each in clipped]


def hint_loss(logprobs_N: Tensor, behaviour_N: Tensor, told_N: Tensor, cap: float) -> Tensor:
    """Return the loss of each token. `told_N`: what is told now, less what was told before."""
    ratio_N = (logprobs_N.detach() - behaviour_N).exp().clamp(max=cap)
    return -ratio_N * told_N * logprobs_N
