"""Figures of an update, for operators: sums over its sampled tokens, and what is computed from them.

Legend: N sampled tokens of a micro-batch, M turns of the batch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from core.ids import PolicyRef
from learner.batches.admission import BatchAdmission
from learner.model.ranks import Ranks
from learner.objective.advantages.sources import mean_reward
from learner.objective.losses import TokenLosses
from learner.sequences.tensors import MicroBatch

_PER_TOKEN = (
    *("loss", "policy_loss", "kl_loss", "entropy_loss", "value_loss"),
    *("ratio", "truncated", "masked", "kl", "entropy", "versions_behind"),
)
_RATIO_QUANTILES = {"ratio_p01": 0.01, "ratio_p50": 0.5, "ratio_p99": 0.99, "ratio_max": 1.0}


@dataclass
class UpdateFigures:
    """Sums over the batch, by figure, and the ratios of all its tokens.

    `released`: the versions that were released, in ascending order."""

    released: Sequence[PolicyRef] = ()
    sums: dict[str, float] = field(default_factory=dict)
    ratios: list[Tensor] = field(default_factory=list)
    most_behind: int = 0

    def add(self, **figures: float | Tensor) -> None:
        for name, value in figures.items():
            self.sums[name] = self.sums.get(name, 0.0) + float(value)

    def enter(self, part: MicroBatch, losses: TokenLosses, entropy_N: Tensor, keep_N: Tensor, fit: Tensor) -> None:
        """Add what was computed of a micro-batch. `fit`: the baseline's own loss, a mean over its tokens."""
        behind_N = self._behind(part.versions_N.cpu())
        self.most_behind = max(self.most_behind, int(behind_N.max()))
        self.ratios.append(losses.ratio_N.cpu())
        self.add(
            loss=losses.loss_N.detach().sum(),
            policy_loss=losses.policy_N.sum(),
            kl_loss=losses.kl_N.sum(),
            entropy_loss=losses.entropy_N.sum(),
            value_loss=fit.detach() * len(part.targets_N),
            ratio=losses.ratio_N.sum(),
            truncated=losses.truncated_N.sum(),
            masked=(~keep_N).sum(),
            kl=losses.k3_N.sum(),
            entropy=entropy_N.detach().sum(),
            versions_behind=behind_N.sum(),
            positions=part.positions,
        )

    def _behind(self, versions_N: Tensor) -> Tensor:
        """Return how many versions were released after each token's; 0 where its version was not recorded."""
        released = torch.tensor([version.version for version in self.released], dtype=versions_N.dtype)
        behind_N = len(released) - torch.searchsorted(released, versions_N, right=True)
        return torch.where(versions_N > 0, behind_N, 0)

    def gather(self, ranks: Ranks) -> None:
        """Add what other processes counted."""
        every = ranks.gather((self.ratios, self.most_behind))
        self.ratios = [ratio_N for ratios, _ in every for ratio_N in ratios]
        self.most_behind = max(most for _, most in every)
        self.sums = ranks.total(self.sums)

    def figures(self, rewards_M: Tensor, ledger: BatchAdmission) -> dict[str, float]:
        """Return the figures by name: means over tokens unless the name says otherwise; unknown ones are left out."""
        records, sums = ledger.records(), self.sums
        ratio_N = torch.cat(self.ratios).double()
        quantiles = torch.quantile(ratio_N, torch.tensor(list(_RATIO_QUANTILES.values()), dtype=ratio_N.dtype))
        return {
            **{name: sums[name] / len(ratio_N) for name in _PER_TOKEN},
            **dict(zip(_RATIO_QUANTILES, quantiles.tolist(), strict=True)),
            "versions_behind_max": float(self.most_behind),
            "ess": ledger.ess,
            "gradient_norm": sums["gradient_norm"],
            "reward": mean_reward(ledger.batch, rewards_M),
            "tokens": float(len(ratio_N)),
            "positions": sums["positions"],
            "kept_share": sum(record.dropped is None for record in records) / len(records),
            "limited_turns": float(ledger.limited),
            "stale_tokens": float(ledger.stale_tokens),
            "divergence": sum(record.divergence for record in records) / len(records),
            **{name: sums[name] / len(ratio_N) for name in ("kto_loss",) if ledger.has_kto},
            **{name: sums[name] / len(ratio_N) for name in ("demonstration_loss",) if name in sums},
            **{name: sums[name] for name in ("taught_tokens",) if name in sums},
            **explained(ledger),
        }


def explained(ledger: BatchAdmission) -> dict[str, float]:
    """Return `explained_variance`, 1 - Var(R - V) / Var(R), over the turns that are rewarded for the first time.

    It is how much of the rewards' variance the baseline knows: 0 for a constant, below 0 for a misleading one."""
    first = [record for record in ledger.records() if record.applied_revision is None]
    if len(first) < 2:
        return {}
    rewards_M = torch.tensor([record.reward + record.follow for record in first], dtype=torch.float64)
    left_M = rewards_M - torch.tensor([record.baseline for record in first], dtype=torch.float64)
    spread = float(rewards_M.var())
    share = 1 - float(left_M.var()) / spread if spread > 0 else math.nan
    return {"explained_variance": share} if math.isfinite(share) else {}
