"""The learner."""

from pathlib import Path
from typing import Final, Literal, Self

from pydantic import Field, FiniteFloat, PositiveFloat, model_validator

from core.section import Section

MOST_VERSIONS_BEHIND: Final = 255
_USUAL_AGE_S: Final = 86400.0


class LearnerSettings(Section):
    enabled: bool = True
    """False: serve and log only."""
    seed: int = 0
    """Seed of everything random in the learner."""
    device: str = "cpu"
    """Torch device."""
    peak_tflops: float | None = Field(default=None, gt=0)
    """What one device can do at most in `precision`, for the figure `mfu`; None: it is not told."""
    batch_turns: int = Field(default=64, ge=2)
    """Scored turns in an update."""
    max_wait_s: float = Field(default=2.0, gt=0)
    """A smaller batch of at least `min_turns` trains when its oldest turn has waited so long."""
    min_turns: int = Field(default=16, ge=2)
    """Fewest turns in an update."""
    backlog_turns: int = Field(default=192, ge=2)
    """Most turns that wait for an update; beyond it those are let go, and counted, whose reward is about the mean of
    their workload, then the oldest. It bounds how long feedback waits when it comes faster than it can be learned
    from."""
    micro_batch_tokens: int = Field(default=1024, ge=64)
    """Padded tokens in one forward pass; on a CPU, what fits its caches is fastest."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """What the policy computes in. Weights and optimizer are float32 in either."""
    gradient_checkpointing: bool = False
    """Whether activations are computed again on the way back, which costs a third of the time and saves memory."""
    packed: bool = False
    """Whether sequences of different length share a row instead of being padded: for attention kernels that skip what
    sequences do not see of each other, on a GPU."""
    lora_rank: int = Field(default=0, ge=0)
    """0: all weights train. Else adapters of that rank beside the model's matrices (LoRA): less memory, and nothing new
    for serving, which gets whole weights. They learn at a higher `learning_rate`."""
    lora_alpha: float = Field(default=32.0, gt=0)
    """What adapters add is scaled by `lora_alpha` / `lora_rank`."""
    lora_targets: tuple[str, ...] = ()
    """Names of the modules that get adapters, `q_proj` for example; none: all linear ones but the output matrix."""
    learning_rate: float = Field(default=4e-4, gt=0)
    """AdamW's."""
    warmup_updates: int = Field(default=0, ge=0)
    """Updates over which the learning rate rises to its value, after which it stays; again for a fresh optimizer."""
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
    channels: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Outcomes, by name, that have base rates of their own (thumbs, test runs), by the channel that they come by. What
    takes each other's place, as `accepted` and `rejected` do, belongs into one: else the baseline knows the outcome."""
    ema_decay: float = Field(default=0.95, ge=0, lt=1)
    """Decay of the moving average, a turn."""
    reward_range: tuple[FiniteFloat, FiniteFloat] = (-1.0, 1.0)
    """What `beta` maps onto failure and success, as the reward spec's `clip`; what lies outside counts as an end."""
    value_learning_rate: float = Field(default=2e-3, gt=0)
    """AdamW's, for the value head."""
    turn_discount: float = Field(default=0.0, ge=0, le=1)
    """What a turn earns of what the turns that continue it do, of those in the same update; 0: its own reward alone."""
    discount: float = Field(default=1.0, gt=0, le=1)
    """What a reward at a turn's end is worth a token earlier (GAE's gamma), with the value head."""
    gae_lambda: float = Field(default=1.0, ge=0, le=1)
    """How far GAE trusts rewards rather than the value head's word of the next token: 1: rewards alone."""
    loss: Literal["policy_gradient", "ppo"] = "policy_gradient"
    """How an advantage moves the policy: by the policy gradient, or by PPO's clipped objective."""
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """PPO: how far below 1 the ratio to the policy that sampled still counts."""
    clip_high: float = Field(default=0.2, gt=0)
    """PPO: how far above 1."""
    dual_clip: float | None = Field(default=3.0, gt=1)
    """PPO: ratio from which a token with a negative advantage has no gradient; None: no bound."""
    correction: Literal["tis", "tis_sequence", "icepop", "geometric", "none"] = "tis"
    """What is made of the ratio between the policy and the one that sampled a token."""
    ratio_cap: float = Field(default=2.0, ge=1)
    """Truncated importance sampling: the ratio's upper bound."""
    icepop_band: tuple[PositiveFloat, PositiveFloat] = (0.5, 5.0)
    """Ratios of tokens that train, with `icepop`."""
    geometric_band: tuple[PositiveFloat, PositiveFloat] = (0.8, 1.25)
    """Geometric means of a turn's ratios with which it trains, with `geometric`."""
    kl_coefficient: float = Field(default=0.2, ge=0)
    """Weight of the estimated KL divergence to the anchor."""
    anchor_versions: int | None = Field(default=None, ge=1)
    """After so many versions the live one becomes the anchor, so that the KL term bounds how fast the policy moves and
    not how far. None: the given model stays it."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """How it is estimated."""
    kl_placement: Literal["loss", "reward"] = "loss"
    """Where it stands."""
    entropy_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus in the loss."""
    policy_normaliser: Literal["token", "sequence", "constant"] = "token"
    """Over what the policy's term of the loss is averaged: all sampled tokens, each turn's own and then the turns, or
    the turns times a constant."""
    kl_normaliser: Literal["token", "sequence", "constant"] = "token"
    """The same for the KL in the loss."""
    entropy_normaliser: Literal["token", "sequence", "constant"] = "token"
    """The same for the entropy."""
    normaliser_tokens: int = Field(default=32, ge=1)
    """The constant."""
    max_divergence: float = Field(default=0.5, gt=0)
    """A turn whose mean k3 between behaviour and current policy is larger does not train."""
    min_ess: float = Field(default=0.3, ge=0, le=1)
    """Smallest effective sample size of a batch's turns, as a share; the most divergent are left out until it holds."""
    max_versions_behind: int | None = Field(default=None, ge=0, le=MOST_VERSIONS_BEHIND)
    """Tokens since whose version more versions than this were released do not train; None: no bound."""
    max_outcome_age_s: dict[str, float] = Field(default={})
    """Age, by name of outcome, past which a reward comes too late for importance weights: see `late`. What is not named
    has `default_max_age_s`."""
    default_max_age_s: float | None = Field(default=None, gt=0)
    """The same for outcomes not named above. None: a day; for an outcome that the reward spec waits for longer, or that
    comes no sooner, half as long again as that."""
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
    max_user_share: float = Field(default=0.05, gt=0, le=1)
    """Most of the last ten or so updates that one user's turns may be, as a share, or twice an even share where too few
    users were heard for that to be less; beyond it they count less each, and those of others up to twice as much. A
    turn that names no user counts by its session. 1: no bound."""
    distrust: bool = False
    """Whether a user counts less whose words keep going against what the value head expects of such answers: liars, but
    also who has a taste that nobody shares. Needs `advantage` value, `discount` 1 and `gae_lambda` 1."""
    share_repeats: bool = True
    """Whether turns of one user in an update with the same prompt and answer count as one together."""
    keep_out: Path | None = None
    """A suite of eval cases: turns whose answers resemble the solution of one do not train, and are counted. None: that
    of `release.evals.suite`, where there is one."""
    max_lead: int = Field(default=2, ge=1)
    """Most versions ahead of the live one; then turns accumulate."""
    keep_checkpoints: int = Field(default=8, ge=2)
    """Checkpoints kept besides the live version's."""

    @property
    def usual_max_age_s(self) -> float:
        """Of outcomes that nothing else is said of."""
        return _USUAL_AGE_S if self.default_max_age_s is None else self.default_max_age_s

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        low, high = self.reward_range
        if low >= high:
            raise ValueError("reward_range: the lower end does not lie below the upper one")
        self._bands_hold_one()
        self._channels_are_apart()
        for name in ("discount", "gae_lambda"):
            if getattr(self, name) != 1 and self.advantage != "value":
                raise ValueError(
                    f"{name}: advantage = {self.advantage} knows one baseline a turn; value has one a token"
                )
        if self.distrust and (self.advantage, self.discount, self.gae_lambda) != ("value", 1, 1):
            raise ValueError(
                "distrust: needs a value head that expects whole rewards (advantage = value, discount = 1)"
            )
        if self.loss == "ppo" and self.correction in ("tis", "tis_sequence"):
            raise ValueError(f"correction: {self.correction} would count the ratio twice: ppo has it in itself")
        self._kl_has_a_gradient()
        return self

    def _channels_are_apart(self) -> None:
        outcomes = [outcome for each in self.channels.values() for outcome in each]
        twice = sorted({outcome for outcome in outcomes if outcomes.count(outcome) > 1})
        if twice:
            raise ValueError(f"channels: {', '.join(twice)}: in more than one")

    def _bands_hold_one(self) -> None:
        for name, (low, high) in (("icepop_band", self.icepop_band), ("geometric_band", self.geometric_band)):
            if not low <= 1 <= high:
                raise ValueError(f"{name}: 1, the ratio of an unchanged policy, lies outside")

    def _kl_has_a_gradient(self) -> None:
        """See docs/decisions/0014-kl-placement.md."""
        if self.kl_placement == "loss" and self.kl_estimator == "k1":
            raise ValueError(
                "kl_estimator: k1 in the loss has no gradient in expectation; k2 or k3 has, or k1 in the reward"
            )
        if self.kl_placement == "reward" and self.kl_estimator != "k1":
            raise ValueError(f"kl_estimator: {self.kl_estimator} in the reward does not pull to the anchor; k1 does")
        if self.kl_placement == "reward" and self.kl_normaliser != self.policy_normaliser:
            raise ValueError("kl_normaliser: in the reward the KL is averaged by policy_normaliser")
