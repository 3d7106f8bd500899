"""The learner."""

from typing import Self

from pydantic import model_validator

from core.section import Section
from core.settings.learner.advantage import AdvantageSettings
from core.settings.learner.batches import AdmissionSettings, BatchSettings, UserSettings
from core.settings.learner.objective import ObjectiveSettings
from core.settings.learner.training import CheckpointSettings, ComputeSettings, LoraSettings, OptimizerSettings


class LearnerSettings(Section):
    enabled: bool = True
    """False: serve and log only."""
    device: str = "cpu"
    """Torch device."""
    seed: int = 0
    """Seed of everything random in the learner."""
    batch: BatchSettings = BatchSettings()
    """How many turns an update has, and when it begins."""
    optimizer: OptimizerSettings = OptimizerSettings()
    """How far an update goes."""
    advantage: AdvantageSettings = AdvantageSettings()
    """What a reward is compared with."""
    objective: ObjectiveSettings = ObjectiveSettings()
    """What an update minimises."""
    admission: AdmissionSettings = AdmissionSettings()
    """Which turns train."""
    users: UserSettings = UserSettings()
    """How much one user counts."""
    compute: ComputeSettings = ComputeSettings()
    """What an update costs in time and memory."""
    lora: LoraSettings = LoraSettings()
    """Adapters in the place of all weights."""
    checkpoints: CheckpointSettings = CheckpointSettings()
    """What is kept of the learner's past."""

    @model_validator(mode="after")
    def _distrust_has_a_value_head(self) -> Self:
        if self.users.distrust and self.advantage.baseline != "value":
            raise ValueError("users.distrust: needs a value head (advantage.baseline = value)")
        return self
