"""Admission: which loss each turn of a batch trains with, and with which advantage, or why with none.

Legend: N sampled tokens of a micro-batch, M turns of the batch."""

from collections.abc import Sequence
from copy import copy

import torch
from torch import Tensor

from core.ids import PolicyRef
from core.settings import AdmissionSettings, LearnerSettings
from learner.batches.staleness import Drift, left_out, nowhere, oldest_allowed, together, too_old, within
from learner.model.ranks import Ranks
from learner.objective.advantages.base import MIN_SCALE
from learner.objective.advantages.sources import rewarded, sources_of
from learner.objective.credit import TokenCredit, applied
from learner.objective.kto import reference_of
from learner.objective.normalisation import USUAL, BatchTotals
from learner.sequences.scored import ScoredTurn, TurnRecord
from learner.sequences.tensors import MicroBatch

_ALL_ALIKE = "all_alike"


class BatchAdmission:
    """The admission of one batch.

    A turn trains by its importance weights (`enter`), by KTO (`late`), or it trains only the baseline."""

    def __init__(
        self,
        batch: Sequence[ScoredTurn],
        scales: Sequence[float],
        tokens_per_turn: float,
        settings: LearnerSettings,
        released: Sequence[PolicyRef] = (),
        influence: Sequence[float] = (),
        whole: BatchTotals = USUAL,
    ) -> None:
        """Start the admission of a batch. `scales`: of each turn's advantage; `influence`: of each turn, 1 when empty.

        `whole`: what is assumed of the whole batch, to be compared at the end with what was `seen`."""
        self.batch, self.whole = batch, whole
        self.tokens_per_turn, self.released = tokens_per_turn, released
        self.stale_tokens = 0
        admission = settings.admission
        self._oldest = oldest_allowed(released, admission.max_versions_behind)
        self._bounds = admission.max_divergence, admission.min_ess
        self._drift = nowhere(len(batch))
        self._ratios_M = torch.zeros(len(batch))  # KTO's
        self._out_M = torch.tensor([turn in whole.left_out for turn in range(len(batch))])
        self._old_M = torch.tensor([_is_too_old(scored, admission) for scored in batch])
        self._kto_M = torch.tensor([_is_for_kto(scored, admission) for scored in batch]) & ~self._old_M
        self._late_M = [admission.late == "kto" and not _is_beyond(scored, admission) for scored in batch]
        self.has_kto = admission.late == "kto" or bool(self._kto_M.any())
        shares = influence or [1.0] * len(batch)
        self.limited = sum(share < 1 for share in shares)
        self.expected_M = torch.zeros(len(batch))  # the reward that the whole answer let expect
        self._scales_M = torch.tensor(
            [
                scored.applied.scale if scored.applied else scale / share
                for scored, scale, share in zip(batch, scales, shares, strict=True)
            ]
        )
        self._applied_M = torch.tensor([s.applied.worth if s.applied else 0.0 for s in batch])
        self._correction_M = torch.tensor([s.is_correction for s in batch])
        self._rewards_M = torch.tensor([s.worth for s in batch])
        self._alike_M = ~self._correction_M & self._all_alike(settings.advantage.baseline == "value", scales)
        self._records: dict[int, TurnRecord] = {}

    def _all_alike(self, by_head: bool, scales: Sequence[float]) -> Tensor:
        """Return [M]: whether a turn is of a source whose rewards are all the same, so that none says which are better.

        A turn with credits is not: they say which of its tokens are.
        A value head says what each answer let expect, once a spread of rewards gives that a scale."""
        alike_M = torch.zeros(len(self.batch), dtype=torch.bool)
        for places in sources_of(self.batch):
            if by_head and min(scales[place] for place in places) > MIN_SCALE:
                continue
            rewards = self._rewards_M[rewarded(self.batch, places)]
            alike_M[places] = bool((rewards == rewards[:1]).all())
        return alike_M & ~torch.tensor([bool(scored.reward.credits) for scored in self.batch])

    def spare(self) -> "BatchAdmission":
        """Return a copy for a computation that does not count."""
        spare = copy(self)
        spare._records, spare.expected_M = {}, self.expected_M.clone()
        return spare

    def gather(self, ranks: Ranks) -> None:
        """Add what other processes entered."""
        mine = (self._records, self._drift, self._ratios_M, self.expected_M, self.stale_tokens)
        records, drifts, ratios_M, expected_M, stale_tokens = zip(*ranks.gather(mine), strict=True)
        self._records = {turn: record for each in records for turn, record in each.items()}
        self._drift = together(drifts)
        self._ratios_M = torch.stack(ratios_M).sum(0)
        self.expected_M = torch.stack(expected_M).sum(0)
        self.stale_tokens = sum(stale_tokens)

    def seen(self) -> BatchTotals:
        """Return what holds of the whole batch, once all its parts were entered."""
        out = left_out(self._drift, *self._bounds)
        by_kto = any(record.late or (turn in out and self._late_M[turn]) for turn, record in self._records.items())
        return BatchTotals(out, reference_of(self._ratios_M) if by_kto else USUAL.reference)

    @property
    def shifts_M(self) -> Tensor:
        return self._drift.shift_M

    @property
    def ess(self) -> float:
        return self._drift.ess

    def enter(self, part: MicroBatch, new: TokenCredit, baseline_N: Tensor, drift: Drift) -> tuple[Tensor, Tensor]:
        """Enter the turns of a micro-batch; return (advantage_N, keep_N)."""
        turns_N, applied_N = part.turns_N.cpu(), applied(part, self.batch).rewards_N.cpu()
        subtracted_N = torch.where(self._correction_M[turns_N], applied_N, baseline_N.cpu())
        advantage_N = (new.rewards_N.cpu() - subtracted_N) / self._scales_M[turns_N]
        fresh_M = within(drift, self._bounds[0]) & ~self._out_M
        keep_M = fresh_M & ~self._old_M & ~self._alike_M & ~self._kto_M
        stale_N = part.versions_N.cpu() < self._oldest
        self.stale_tokens += int(stale_N.sum())
        self._drift = together([self._drift, drift])
        for turn in sorted(set(turns_N.tolist())):
            mine_N = turns_N == turn
            self.expected_M[turn] = baseline_N.cpu()[mine_N][-1]
            self._records[turn] = self._record(
                turn,
                float(subtracted_N[mine_N].mean()),
                float(advantage_N[mine_N].mean()),
                float(drift.divergence_M[turn]),
                self._reason(turn, bool(fresh_M[turn]), bool(stale_N[mine_N].all())),
            )
        device = baseline_N.device
        return advantage_N.to(device), (keep_M[turns_N] & ~stale_N).to(device)

    def late(self, part: MicroBatch, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return (late_M, gain_M): which turns of the micro-batch train by KTO, and the gain of each in its scale."""
        turns = set(part.turns_N.tolist())
        late = [turn in turns and self._records[turn].late for turn in range(len(self.batch))]
        return torch.tensor(late, device=device), ((self._rewards_M - self._applied_M) / self._scales_M).to(device)

    def compare(self, ratio_M: Tensor) -> None:
        """Enter the log-ratios to the anchor of a micro-batch's turns, for KTO."""
        self._ratios_M = self._ratios_M + ratio_M.detach().cpu()

    def _reason(self, turn: int, fresh: bool, stale: bool) -> str | None:
        if bool(self._old_M[turn]):
            return "too_old"
        if not fresh:
            return "too_divergent"
        if stale:
            return "too_stale"
        return _ALL_ALIKE if bool(self._alike_M[turn]) else None

    def _record(self, turn: int, baseline: float, credit: float, divergence: float, dropped: str | None) -> TurnRecord:
        scored = self.batch[turn]
        late = bool(self._kto_M[turn]) or (self._late_M[turn] and dropped not in (None, _ALL_ALIKE))
        return TurnRecord(
            inference_id=scored.inference_id,
            revision=scored.reward.revision,
            reward=scored.reward.value,
            follow=scored.follow,
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


def _is_too_old(scored: ScoredTurn, settings: AdmissionSettings) -> bool:
    return too_old(scored.turn, scored.reward, settings.max_outcome_age_s, settings.usual_max_age_s)


def _is_beyond(scored: ScoredTurn, settings: AdmissionSettings) -> bool:
    return too_old(scored.turn, scored.reward, {}, settings.late_max_age_s)


def _is_for_kto(scored: ScoredTurn, settings: AdmissionSettings) -> bool:
    """Return whether config assigns all outcomes of the reward to KTO."""
    made_of = scored.reward.components.keys()
    return bool(made_of) and made_of <= set(settings.kto_outcomes)
