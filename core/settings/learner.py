"""The learner."""

from typing import Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from core.settings.section import Section


class LearnerSettings(Section):
    enabled: bool = True
    """False: serve and log only."""
    seed: int = 0
    """Seed of everything random in the learner."""
    device: str = "cpu"
    """Torch device."""
    batch_turns: int = Field(default=64, ge=2)
    """Scored turns in an update."""
    max_wait_s: float = Field(default=2.0, gt=0)
    """A smaller batch of at least `min_turns` trains when its oldest turn has waited so long."""
    min_turns: int = Field(default=16, ge=2)
    """Fewest turns in an update."""
    backlog_turns: int = Field(default=192, ge=2)
    """Most turns that wait for an update; beyond it the oldest are let go, and counted. It bounds how long feedback
    waits when it comes faster than it can be learned from."""
    micro_batch_tokens: int = Field(default=1024, ge=64)
    """Padded tokens in one forward pass; on a CPU, what fits its caches is fastest."""
    learning_rate: float = Field(default=4e-4, gt=0)
    """AdamW's."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """AdamW's."""
    beta2: float = Field(default=0.95, ge=0, lt=1)
    """AdamW's."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's."""
    gradient_clip: float = Field(default=1.0, gt=0)
    """Largest norm of the gradient."""
    advantage: Literal["value", "ema", "beta", "batch", "centre", "leave_one_out", "raw"] = "value"
    """What a reward is compared with: a value head on the hidden states; per stratum (namespace, workload, channel) a
    moving average or a decayed Beta tracker; the batch's mean, whitened (`batch`) or not (`centre`); the other answers
    to the same request, where there are any, else the stratum's moving average; nothing (`raw`: for comparisons)."""
    ema_decay: float = Field(default=0.95, ge=0, lt=1)
    """Decay of the moving average, a turn."""
    reward_range: tuple[FiniteFloat, FiniteFloat] = (-1.0, 1.0)
    """What `beta` maps onto failure and success, as the reward spec's `clip`; what lies outside counts as an end."""
    value_learning_rate: float = Field(default=2e-3, gt=0)
    """AdamW's, for the value head."""
    ratio_cap: float = Field(default=2.0, ge=1)
    """Truncated importance sampling: the ratio's upper bound."""
    kl_coefficient: float = Field(default=0.2, ge=0)
    """Weight of the k3 estimate of the KL divergence to the anchor, in the loss."""
    entropy_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus in the loss."""
    max_divergence: float = Field(default=0.5, gt=0)
    """A turn whose mean k3 between behaviour and current policy is larger does not train."""
    min_ess: float = Field(default=0.3, ge=0, le=1)
    """Smallest effective sample size of a batch's turns, as a share; the most divergent are left out until it holds."""
    max_outcome_age_s: dict[str, float] = Field(default={})
    """Age, by name of outcome, past which a reward comes too late for importance weights: see `late`."""
    default_max_age_s: float = Field(default=86400.0, gt=0)
    """The same for outcomes not named above."""
    late: Literal["baseline", "kto"] = "baseline"
    """What becomes of turns that are too old or too divergent for importance weights: they teach the baselines alone,
    or the policy by KTO too, which needs none."""
    kto_outcomes: tuple[str, ...] = ()
    """Outcomes, by name, that train by KTO at any age (a thumb, say): rewards that are made of these alone."""
    kto_beta: float = Field(default=0.1, gt=0)
    """KTO's beta: how far it lets the policy go from the anchor."""
    late_max_age_s: float = Field(default=14 * 86400.0, gt=0)
    """Age past which an outcome teaches the baselines alone, also where `late` is `kto`. So long the learner remembers
    what it has learned from a turn."""
    max_user_share: float | None = Field(default=None, gt=0, le=1)
    """Most of an update that one user's turns may be, as a share; beyond it they count less each. A turn that names no
    user counts by its session. None: no bound."""
    share_repeats: bool = False
    """Whether turns of one user in an update with the same prompt and answer count as one together."""
    max_lead: int = Field(default=2, ge=1)
    """Most versions ahead of the live one; then turns accumulate."""
    keep_checkpoints: int = Field(default=8, ge=2)
    """Checkpoints kept besides the live version's."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        low, high = self.reward_range
        if low >= high:
            raise ValueError("reward_range: the lower end does not lie below the upper one")
        return self
