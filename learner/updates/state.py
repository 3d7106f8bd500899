"""The state that an update changes, and that a checkpoint keeps."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from core.ports import AdapterConfig
from core.settings import HintSettings, LearnerSettings, LoraSettings, OptimizerSettings, UserSettings
from learner.model.anchor import Anchor
from learner.model.policy_model import PolicyModel
from learner.model.ranks import ALONE, Ranks
from learner.model.sharded_files import Saving
from learner.model.teacher import Teacher
from learner.objective.advantages import Advantages, make_advantages
from learner.objective.influence import Influence
from learner.sequences.packable import require_packable
from learner.sequences.shared_prompt import require_shareable


@dataclass
class LearnerState:
    """The policy, the optimizer and what is learned beside the weights.

    Each of several processes has its shards of policy and anchor, and of the optimizer's moments."""

    policy: PolicyModel
    anchor: Anchor
    optimizer: torch.optim.Optimizer
    advantages: Advantages
    ranks: Ranks = field(default=ALONE)
    lora: LoraSettings = field(default_factory=LoraSettings)
    influence: Influence = field(default_factory=lambda: Influence(UserSettings()))
    teacher: Teacher | None = None  # where words teach
    saving: Saving | None = None  # the checkpoint that this process is writing its part of

    @property
    def adapter(self) -> AdapterConfig | None:
        """The adapter upon the given model as which the policy is published; None where whole weights are published."""
        if not (self.lora.rank and self.policy.is_given):
            return None
        return AdapterConfig(base_digest=self.policy.base_digest, rank=self.lora.rank, alpha=self.lora.alpha)

    def memory(self) -> dict[str, Any]:
        """Return the small state that is learned beside the weights: baseline, influence, random state."""
        return {
            "advantages": self.advantages.state_dict(),
            "influence": self.influence.state_dict(),
            "rng": torch.get_rng_state(),
        }

    def load_memory(self, state: dict[str, Any]) -> None:
        self.advantages.load_state_dict(state["advantages"])
        if "influence" in state:  # earlier builds had none
            self.influence.load_state_dict(state["influence"])
        torch.set_rng_state(state["rng"])

    def forget(self, settings: LearnerSettings) -> None:
        """Start afresh: a new optimizer, and nothing learned beside the weights."""
        torch.manual_seed(settings.seed)
        self.optimizer = make_optimizer(self.policy, settings.optimizer)
        self.advantages = make_advantages(settings.advantage, self.policy.hidden_size, settings.seed, settings.device)
        self.influence = Influence(settings.users)
        self.teacher = None

    def teach_by(self, settings: HintSettings) -> None:
        """Keep a teacher while hints are taught; a new one begins with the policy's weights."""
        if not settings.weight:
            self.teacher = None
        elif self.teacher is None:
            self.teacher = Teacher(self.policy.parameters())


def make_state(model: Path, settings: LearnerSettings, ranks: Ranks = ALONE) -> LearnerState:
    """Make a state with the anchor's weights and a fresh optimizer."""
    torch.set_num_threads(1)
    torch.manual_seed(settings.seed)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # a guard against reading it, which costs a tenth
    adapters = (settings.lora, settings.seed) if settings.lora.rank else None
    make = partial(
        PolicyModel, model, settings.device, precision=settings.compute.precision, mesh=ranks.mesh, adapters=adapters
    )
    policy = make()
    anchor = Anchor(policy, partial(make, frozen=True))
    if settings.compute.packed:
        policy.inside(partial(require_packable, policy.model))
    if settings.compute.shared_prompts:
        policy.inside(partial(require_shareable, policy.model))
    if not policy.has_adapters and (settings.objective.kl.coefficient or settings.admission.late == "kto"):
        anchor.apart()
    if settings.compute.gradient_checkpointing:
        policy.model.gradient_checkpointing_enable({"use_reentrant": False})
    advantages = make_advantages(settings.advantage, policy.hidden_size, settings.seed, settings.device)
    return LearnerState(
        policy,
        anchor,
        make_optimizer(policy, settings.optimizer),
        advantages,
        ranks,
        settings.lora,
        Influence(settings.users),
    )


def make_optimizer(policy: PolicyModel, settings: OptimizerSettings) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        policy.parameters(),
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        weight_decay=settings.weight_decay,
        fused=True,
    )


def computing_in(settings: LearnerSettings) -> AbstractContextManager[object]:
    """Return a context for matrix products in low precision, over float32 weights; log-probabilities stay float32."""
    if settings.compute.precision == "float32":
        return nullcontext()
    return torch.autocast(settings.device.split(":")[0], dtype=torch.bfloat16)
