"""One update: a batch of scored turns moves the policy.

Legend: N sampled tokens of a micro-batch, M turns of the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from core.settings import LearnerSettings
from learner.influence import influences
from learner.kto import kto_loss
from learner.loss import TokenLosses, token_losses
from learner.scored import ScoredTurn, TurnRecord
from learner.sequences import merge
from learner.staleness import Staleness, judge, too_old
from learner.state import LearnerState
from learner.tensors import MicroBatch, micro_batches


@dataclass
class Tally:
    """Sums over the batch, by figure."""

    sums: dict[str, float] = field(default_factory=dict)

    def add(self, **figures: float | Tensor) -> None:
        for name, value in figures.items():
            self.sums[name] = self.sums.get(name, 0.0) + float(value)


@dataclass(frozen=True)
class UpdateResult:
    records: tuple[TurnRecord, ...]
    metrics: dict[str, float]


def update(state: LearnerState, batch: Sequence[ScoredTurn], settings: LearnerSettings) -> UpdateResult:
    """Change `state` by one step of the optimizer. The same state and batch give the same bits."""
    rewards_M = torch.tensor([scored.reward.value for scored in batch], device=settings.device)
    old_M = torch.tensor([_is_too_old(scored, settings) for scored in batch])
    state.advantages.begin(batch, rewards_M)
    parts = micro_batches(merge(batch), batch, settings.micro_batch_tokens, settings.device)
    num_tokens = sum(len(part.targets_N) for part in parts)
    ledger = _Ledger(batch, old_M, state.advantages.scale, settings)
    tally = Tally()
    for part in parts:
        loss, fit = _forward(state, part, ledger, settings, tally)
        (loss.sum() / num_tokens + fit * (len(part.targets_N) / num_tokens)).backward()
    tally.add(gradient_norm=torch.nn.utils.clip_grad_norm_(state.policy.parameters(), settings.gradient_clip))
    if ledger.any_kept:  # else its momentum alone would move the weights
        state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)
    state.advantages.end()
    return UpdateResult(ledger.records(), _metrics(tally, num_tokens, len(parts), rewards_M, ledger))


def _is_too_old(scored: ScoredTurn, settings: LearnerSettings) -> bool:
    return too_old(scored.turn, scored.reward, settings.max_outcome_age_s, settings.default_max_age_s)


def _is_beyond(scored: ScoredTurn, settings: LearnerSettings) -> bool:
    return too_old(scored.turn, scored.reward, {}, settings.late_max_age_s)


def _forward(
    state: LearnerState, part: MicroBatch, ledger: "_Ledger", settings: LearnerSettings, tally: Tally
) -> tuple[Tensor, Tensor]:
    """(loss_N of the policy, fit of the baseline)."""
    hidden_ND = state.policy.hidden_states(part)
    logprobs_N, entropy_N = state.policy.score(hidden_ND, part)
    anchor_N = _anchor_logprobs(state, part, logprobs_N, settings)
    baseline_N, fit = state.advantages.tokens(hidden_ND, part.turns_N)
    staleness = judge(
        logprobs_N.detach(),
        part.behaviour_N,
        part.turns_N,
        len(ledger.batch),
        max_divergence=settings.max_divergence,
        min_ess=settings.min_ess,
    )
    advantage_N, keep_N = ledger.enter(part, baseline_N, staleness)
    losses = token_losses(
        logprobs_N,
        entropy_N,
        part.behaviour_N,
        anchor_N,
        advantage_N,
        keep_N,
        ratio_cap=settings.ratio_cap,
        kl_coefficient=settings.kl_coefficient,
        entropy_coefficient=settings.entropy_coefficient,
    )
    _count(tally, losses, entropy_N, fit, staleness, len(part.targets_N))
    if settings.late == "kto":
        late_M, gain_M = ledger.late(part, logprobs_N.device)
        late = kto_loss(logprobs_N, anchor_N, part.turns_N, late_M, gain_M, settings.kto_beta)
        return losses.loss_N.sum() + late, fit
    return losses.loss_N, fit


def _anchor_logprobs(state: LearnerState, part: MicroBatch, logprobs_N: Tensor, settings: LearnerSettings) -> Tensor:
    if settings.kl_coefficient == 0 and settings.late != "kto":
        return logprobs_N.detach()
    with torch.no_grad():
        return state.anchor.score(state.anchor.hidden_states(part), part)[0]


def _count(
    tally: Tally, losses: TokenLosses, entropy_N: Tensor, fit: Tensor, staleness: Staleness, num_tokens: int
) -> None:
    tally.add(
        loss=losses.loss_N.detach().sum(),
        ratio=losses.ratio_N.sum(),
        truncated=losses.truncated_N.sum(),
        kl=losses.k3_N.sum(),
        entropy=entropy_N.detach().sum(),
        value_loss=fit.detach() * num_tokens,
        ess=staleness.ess,
    )


class _Ledger:
    """What becomes of each turn of the batch."""

    def __init__(self, batch: Sequence[ScoredTurn], old_M: Tensor, scale: float, settings: LearnerSettings) -> None:
        self.batch = batch
        self._old_M = old_M
        self._late_M = [settings.late == "kto" and not _is_beyond(scored, settings) for scored in batch]
        shares = influences(batch, settings)
        self.limited = sum(share < 1 for share in shares)
        self._scales_M = torch.tensor(
            [s.applied.scale if s.applied else scale / share for s, share in zip(batch, shares, strict=True)]
        )
        self._applied_M = torch.tensor([s.applied.reward if s.applied else 0.0 for s in batch])
        self._correction_M = torch.tensor([s.is_correction for s in batch])
        self._rewards_M = torch.tensor([s.reward.value for s in batch])
        self._records: dict[int, TurnRecord] = {}

    def enter(self, part: MicroBatch, baseline_N: Tensor, staleness: Staleness) -> tuple[Tensor, Tensor]:
        """(advantage_N, keep_N) of a micro-batch, entering its turns."""
        turns_N = part.turns_N.cpu()
        subtracted_N = torch.where(self._correction_M[turns_N], self._applied_M[turns_N], baseline_N.cpu())
        advantage_N = (self._rewards_M[turns_N] - subtracted_N) / self._scales_M[turns_N]
        keep_M = staleness.keep_M & ~self._old_M
        for turn in sorted(set(turns_N.tolist())):
            mine_N = turns_N == turn
            self._records[turn] = self._record(
                turn,
                float(subtracted_N[mine_N].mean()),
                float(advantage_N[mine_N].mean()),
                float(staleness.divergence_M[turn]),
                self._reason(turn, bool(staleness.keep_M[turn])),
            )
        device = baseline_N.device
        return advantage_N.to(device), keep_M[turns_N].to(device)

    def late(self, part: MicroBatch, device: torch.device) -> tuple[Tensor, Tensor]:
        """(late_M, gain_M): which turns of the micro-batch are too late, and what each gained over what was applied."""
        turns = set(part.turns_N.tolist())
        late = [turn in turns and self._records[turn].late for turn in range(len(self.batch))]
        return torch.tensor(late, device=device), (self._rewards_M - self._applied_M).to(device)

    def _reason(self, turn: int, fresh: bool) -> str | None:
        if bool(self._old_M[turn]):
            return "too_old"
        return None if fresh else "too_divergent"

    def _record(self, turn: int, baseline: float, credit: float, divergence: float, dropped: str | None) -> TurnRecord:
        scored = self.batch[turn]
        late = self._late_M[turn] and dropped is not None
        return TurnRecord(
            inference_id=scored.inference_id,
            revision=scored.reward.revision,
            reward=scored.reward.value,
            applied_revision=None if scored.applied is None else scored.applied.revision,
            baseline=baseline,
            scale=float(self._scales_M[turn]),
            credit=0.0 if late else credit,
            divergence=divergence,
            dropped=None if late else dropped,
            late=late,
        )

    @property
    def any_kept(self) -> bool:
        return any(record.dropped is None for record in self._records.values())

    def records(self) -> tuple[TurnRecord, ...]:
        return tuple(self._records[turn] for turn in range(len(self.batch)))


def _metrics(tally: Tally, num_tokens: int, num_parts: int, rewards_M: Tensor, ledger: _Ledger) -> dict[str, float]:
    sums = tally.sums
    per_token = ("loss", "ratio", "truncated", "kl", "entropy", "value_loss")
    kept = [record for record in ledger.records() if record.dropped is None]
    return {
        **{name: sums[name] / num_tokens for name in per_token},
        "ess": sums["ess"] / num_parts,
        "gradient_norm": sums["gradient_norm"],
        "reward": float(rewards_M.mean()),
        "tokens": float(num_tokens),
        "kept_share": len(kept) / len(ledger.batch),
        "limited_turns": float(ledger.limited),
        "divergence": sum(record.divergence for record in ledger.records()) / len(ledger.batch),
    }
