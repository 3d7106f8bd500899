"""The learner."""

from typing import Self

from pydantic import model_validator

from core.section import Section
from core.settings.learner.advantage import AdvantageSettings
from core.settings.learner.batches import AdmissionSettings, BatchSettings, UserSettings
from core.settings.learner.mixture import MixtureSettings
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
    mixture: MixtureSettings = MixtureSettings()
    """How much of an update may be simulated, or of one workload."""
    optimizer: OptimizerSettings = OptimizerSettings()
    """How far an update goes."""
    advantage: AdvantageSettings = AdvantageSettings()
    """The baseline with which a reward is compared."""
    objective: ObjectiveSettings = ObjectiveSettings()
    """The loss that an update minimises."""
    admission: AdmissionSettings = AdmissionSettings()
    """The choice of turns that train."""
    users: UserSettings = UserSettings()
    """How much one user counts."""
    compute: ComputeSettings = ComputeSettings()
    """Time and memory of an update."""
    lora: LoraSettings = LoraSettings()
    """Adapters in the place of all weights."""
    checkpoints: CheckpointSettings = CheckpointSettings()
    """Checkpoints: how often they are written, and how many are kept."""

    @model_validator(mode="after")
    def _distrust_has_a_value_head(self) -> Self:
        if self.users.distrust and self.advantage.baseline != "value":
            raise ValueError("users.distrust: needs a value head (advantage.baseline = value)")
        return self
