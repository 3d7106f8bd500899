"""The update: one batch of scored turns changes the policy.

Legend: N sampled tokens of a micro-batch, M turns of the batch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from core.errors import OnwardError
from core.ids import PolicyRef
from core.settings import LearnerSettings, OptimizerSettings
from learner.batches.admission import BatchAdmission
from learner.batches.staleness import measure
from learner.objective.credit import credited, with_follow
from learner.objective.kto import kto_loss, turn_ratios
from learner.objective.losses import TokenInputs, token_losses
from learner.objective.normalisation import USUAL
from learner.sequences.joining import merge
from learner.sequences.scored import ScoredTurn, TurnRecord
from learner.sequences.tensors import MicroBatch, micro_batches
from learner.updates.figures import UpdateFigures
from learner.updates.state import LearnerState, computing_in
from learner.updates.teaching import teach, with_texts


class NonFiniteLoss(OnwardError):
    """An update that would have spoilt the weights; `figures` are its sums."""

    def __init__(self, figures: dict[str, float]) -> None:
        super().__init__(figures)
        self.figures = figures

    def __str__(self) -> str:
        return "the update was skipped: " + ", ".join(f"{name} {value}" for name, value in self.figures.items())


@dataclass(frozen=True)
class UpdateResult:
    records: tuple[TurnRecord, ...]
    metrics: dict[str, float]


def update(
    state: LearnerState, batch: Sequence[ScoredTurn], settings: LearnerSettings, released: Sequence[PolicyRef] = ()
) -> UpdateResult:
    """Change `state` by one step of the optimizer. The same state and batch give the same bits.

    `released`: the versions that were released, in ascending order, by which staleness is counted. Several processes
    call it with the same batch. Raises NonFiniteLoss, and changes nothing, when loss or gradient are not finite."""
    compute = settings.compute
    batch = with_follow(batch, settings.advantage.turn_discount)
    rewards_M = torch.tensor([scored.worth for scored in batch], device=settings.device)
    influence = state.influence.weigh(batch)
    state.advantages.begin(batch, rewards_M, influence)
    parts = micro_batches(
        merge(batch),
        batch,
        compute.micro_batch_tokens,
        settings.device,
        packed=compute.packed,
        shared=compute.shared_prompts,
        masks=state.policy.masks,
    )
    num_tokens = sum(len(part.targets_N) for part in parts)
    fresh = partial(
        BatchAdmission, batch, state.advantages.scales, num_tokens / len(batch), settings, released, influence
    )
    ledger, tally = _differentiate(state, parts, settings, fresh(USUAL))
    if (whole := ledger.seen()) != USUAL:  # known only now, when all was computed: once more
        _forget(state)
        ledger, tally = _differentiate(state, parts, settings, fresh(whole))
    records = with_texts(state, batch, ledger.records(), influence, settings)
    tally.add(**teach(state, batch, records, settings, num_tokens))
    norm = torch.nn.utils.clip_grad_norm_(state.policy.parameters(), settings.optimizer.gradient_clip)
    tally.add(gradient_norm=norm.full_tensor() if isinstance(norm, DTensor) else norm)
    _require_finite(state, tally)
    steer(state.optimizer, settings.optimizer)
    if ledger.any_kept:  # else its momentum alone would move the weights
        state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)
    state.advantages.end(ledger.shifts_M)
    state.influence.end(batch, ledger.expected_M.tolist())
    figures = tally.figures(rewards_M, ledger) | state.influence.figures(batch)
    return UpdateResult(records, figures)


def _differentiate(
    state: LearnerState, parts: Sequence[MicroBatch], settings: LearnerSettings, ledger: BatchAdmission
) -> tuple[BatchAdmission, UpdateFigures]:
    """Add up the gradients of the batch's parts; return what all processes found."""
    num_tokens = sum(len(part.targets_N) for part in parts)
    tally = UpdateFigures(ledger.released)
    for part, counts in state.ranks.share(parts):
        given = (ledger, tally) if counts else (ledger.spare(), UpdateFigures(ledger.released))
        loss, fit = _forward(state, part, settings, *given)
        total = loss.sum() / num_tokens + fit * (len(part.targets_N) / num_tokens)
        (total * state.ranks.count if counts else total * 0).backward()  # processes' gradients are averaged
    ledger.gather(state.ranks)
    tally.gather(state.ranks)
    state.ranks.average_gradients(state.advantages.parameters())
    return ledger, tally


def _forget(state: LearnerState) -> None:
    state.optimizer.zero_grad(set_to_none=True)
    state.advantages.discard()


def _require_finite(state: LearnerState, tally: UpdateFigures) -> None:
    figures = {name: tally.sums[name] for name in ("loss", "value_loss", "gradient_norm")}
    if not all(map(math.isfinite, figures.values())):
        _forget(state)
        raise NonFiniteLoss(figures)


def steer(optimizer: torch.optim.Optimizer, settings: OptimizerSettings) -> None:
    """Set rate, betas and decay by the present settings, whatever they were when the optimizer's state was saved."""
    done = next((int(state["step"]) for state in optimizer.state.values()), 0)
    share = min(1.0, (done + 1) / settings.warmup_updates) if settings.warmup_updates else 1.0
    for group in optimizer.param_groups:
        group["lr"] = settings.learning_rate * share
        group["betas"], group["weight_decay"] = (settings.beta1, settings.beta2), settings.weight_decay


def _forward(
    state: LearnerState, part: MicroBatch, settings: LearnerSettings, ledger: BatchAdmission, tally: UpdateFigures
) -> tuple[Tensor, Tensor]:
    """Return (loss_N of the policy, fit of the baseline)."""
    hidden_ND, logprobs_N, entropy_N = state.policy.evaluate(part, computing_in(settings))
    anchor_N = _anchor_logprobs(state, part, logprobs_N, ledger, settings)
    credit = credited(part, ledger.batch)
    baseline_N, fit = state.advantages.tokens(hidden_ND, credit)
    drift = measure(logprobs_N.detach(), part.behaviour_N, part.turns_N, len(ledger.batch))
    advantage_N, keep_N = ledger.enter(part, credit, baseline_N, drift)
    given = TokenInputs(logprobs_N, entropy_N, part.behaviour_N, anchor_N, advantage_N, keep_N, part.turns_N)
    losses = token_losses(given, settings.objective, ledger.tokens_per_turn)
    tally.enter(part, losses, entropy_N, keep_N, fit)
    if ledger.has_kto:
        late_M, gain_M = ledger.late(part, logprobs_N.device)
        ratio_M = turn_ratios(logprobs_N, anchor_N, part.turns_N, len(late_M), settings.objective.kto_beta)
        ledger.compare(ratio_M)
        late = kto_loss(ratio_M, late_M, gain_M, ledger.whole.reference, settings.objective.kto_beta)
        tally.add(kto_loss=late.detach())
        return losses.loss_N.sum() + late, fit
    return losses.loss_N, fit


def _anchor_logprobs(
    state: LearnerState, part: MicroBatch, logprobs_N: Tensor, ledger: BatchAdmission, settings: LearnerSettings
) -> Tensor:
    if settings.objective.kl.coefficient == 0 and not ledger.has_kto:
        return logprobs_N.detach()
    with torch.no_grad():
        return state.anchor.evaluate(part, computing_in(settings))[1]
