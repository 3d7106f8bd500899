"""The state that an update changes, and that a checkpoint keeps."""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from core.errors import ConfigError
from core.ids import BASE, PolicyName
from core.ports import AdapterConfig
from core.settings import LearnerSettings, LoraSettings, OptimizerSettings, UserSettings
from learner.model.anchor import Anchor
from learner.model.policy_model import PolicyModel
from learner.model.ranks import ALONE, Ranks
from learner.model.sharded_files import Saving
from learner.objective.advantages import Advantages, make_advantages
from learner.objective.influence import Influence
from learner.objective.testimony import Testimony
from learner.sequences.packable import require_packable
from learner.sequences.shared_prompt import require_shareable
from learner.updates.teacher import Teacher


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
    saving: Saving | None = None  # the checkpoint that this process is writing its part of
    teacher: Teacher | None = None  # of words, while they train; its weights begin as the policy's
    testimony: Testimony = field(default_factory=Testimony)
    name: PolicyName = BASE

    @property
    def adapter(self) -> AdapterConfig | None:
        """The adapter upon the given model as which the policy is published; None where whole weights are published."""
        if not (self.lora.rank and self.policy.is_given):
            return None
        return AdapterConfig(base_digest=self.policy.base_digest, rank=self.lora.rank, alpha=self.lora.alpha)

    def memory(self) -> dict[str, Any]:
        """Return the small state that is learned beside the weights: baseline, influence, testimony, random state."""
        return {
            "advantages": self.advantages.state_dict(),
            "influence": self.influence.state_dict(),
            "rng": torch.get_rng_state(),
            "testimony": self.testimony.state_dict(),
        }

    def load_memory(self, state: dict[str, Any]) -> None:
        self.advantages.load_state_dict(state["advantages"])
        if "influence" in state:  # of builds before there was one
            self.influence.load_state_dict(state["influence"])
        self.testimony.load_state_dict(state.get("testimony", {}))
        torch.set_rng_state(state["rng"])

    def forget(self, settings: LearnerSettings) -> None:
        """Start afresh: a new optimizer, and nothing learned beside the weights."""
        torch.manual_seed(settings.seed)
        self.optimizer = make_optimizer(self.policy, settings.optimizer)
        self.advantages = make_advantages(settings.advantage, self.policy.hidden_size, settings.seed, settings.device)
        self.influence = Influence(settings.users)
        self.teacher, self.testimony = None, Testimony()


def make_state(
    model: Path,
    settings: LearnerSettings,
    ranks: Ranks = ALONE,
    name: PolicyName = BASE,
    shared: PolicyModel | None = None,
) -> LearnerState:
    """Make a state of the policy `name` with the anchor's weights and a fresh optimizer.

    `shared`: the model with adapters that it takes, in the place of one of its own."""
    torch.set_num_threads(1)
    torch.manual_seed(settings.seed)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # a guard against reading it, which costs a tenth
    adapters = (settings.lora, settings.seed) if settings.lora.rank else None
    make = partial(
        PolicyModel, model, settings.device, precision=settings.compute.precision, mesh=ranks.mesh, adapters=adapters
    )
    if shared is not None:
        shared.begin_again(settings.seed)
    policy = make() if shared is None else shared
    anchor = Anchor(policy, partial(make, frozen=True))
    if settings.compute.packed:
        policy.inside(partial(require_packable, policy.model))
    if settings.compute.shared_prompts:
        policy.inside(partial(require_shareable, policy.model))
    if not policy.has_adapters and (settings.objective.kl.coefficient or settings.admission.late == "kto"):
        anchor.apart()
    if settings.words.weight:
        _require_words(policy, ranks)
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
        name=name,
    )


def _require_words(policy: PolicyModel, ranks: Ranks) -> None:
    if ranks.count > 1:
        raise ConfigError("learner.words.weight: words train in a learner of one process, and this one has several")
    policy.prompts.require()


def make_optimizer(policy: PolicyModel, settings: OptimizerSettings) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        policy.parameters(),
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        weight_decay=settings.weight_decay,
        fused=True,
    )
