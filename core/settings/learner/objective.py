"""The objective of an update: the policy loss, its off-policy correction, and the KL term towards the anchor."""

from typing import Literal, Self

from pydantic import Field, PositiveFloat, model_validator

from core.section import Section

Normaliser = Literal["token", "sequence", "constant"]


class CorrectionSettings(Section):
    method: Literal["tis", "tis_sequence", "icepop", "geometric", "none"] = "tis"
    """The use of the ratio between the policy and the one that sampled a token."""
    ratio_cap: float = Field(default=2.0, ge=1)
    """Truncated importance sampling: the ratio's upper bound."""
    icepop_band: tuple[PositiveFloat, PositiveFloat] = (0.5, 5.0)
    """Ratios of tokens that train, with `icepop`."""
    geometric_band: tuple[PositiveFloat, PositiveFloat] = (0.8, 1.25)
    """Geometric means of a turn's ratios with which it trains, with `geometric`."""

    @model_validator(mode="after")
    def _bands_hold_one(self) -> Self:
        for name, (low, high) in (("icepop_band", self.icepop_band), ("geometric_band", self.geometric_band)):
            if not low <= 1 <= high:
                raise ValueError(f"{name}: 1, the ratio of an unchanged policy, lies outside")
        return self


class KlSettings(Section):
    """See docs/decisions/0014-kl-placement.md."""

    coefficient: float = Field(default=0.2, ge=0)
    """Weight of the estimated KL divergence to the anchor."""
    anchor_versions: int | None = Field(default=None, ge=1)
    """After so many versions the live one becomes the anchor, so that the KL term bounds how fast the policy moves and
    not how far. None: the given model stays the anchor."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """The estimator of the KL divergence from the sampled tokens."""
    placement: Literal["loss", "reward"] = "loss"
    """The place of the KL term: in the loss, or subtracted from the reward."""
    normaliser: Normaliser = "token"
    """Over what the KL in the loss is averaged, as `objective.policy_normaliser`."""

    @model_validator(mode="after")
    def _has_a_gradient(self) -> Self:
        if self.placement == "loss" and self.estimator == "k1":
            raise ValueError(
                "estimator: k1 in the loss has no gradient in expectation; k2 or k3 has, or k1 in the reward"
            )
        if self.placement == "reward" and self.estimator != "k1":
            raise ValueError(f"estimator: {self.estimator} in the reward does not pull to the anchor; k1 does")
        return self


class ObjectiveSettings(Section):
    loss: Literal["policy_gradient", "ppo"] = "policy_gradient"
    """How an advantage moves the policy: by the policy gradient, or by PPO's clipped objective."""
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """PPO: how far below 1 the ratio to the policy that sampled still counts."""
    clip_high: float = Field(default=0.2, gt=0)
    """PPO: how far above 1."""
    dual_clip: float | None = Field(default=3.0, gt=1)
    """PPO: ratio from which a token with a negative advantage has no gradient; None: no bound."""
    entropy_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus in the loss."""
    kto_beta: float = Field(default=0.1, gt=0)
    """KTO's beta: how far it lets the policy go from the anchor."""
    policy_normaliser: Normaliser = "token"
    """Over what the policy's term of the loss is averaged: all sampled tokens, each turn's own and then the turns, or
    the turns times a constant."""
    entropy_normaliser: Normaliser = "token"
    """The same for the entropy."""
    normaliser_tokens: int = Field(default=32, ge=1)
    """The constant."""
    demonstration_weight: float = Field(default=0.0, ge=0, le=1)
    """The weight of the likelihood of what a user wrote in an answer's place, a token, beside an advantage of 1. 0: a
    user's text teaches nothing."""
    correction: CorrectionSettings = CorrectionSettings()
    """For the policy that sampled."""
    kl: KlSettings = KlSettings()
    """To the anchor."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        method = self.correction.method
        if self.loss == "ppo" and method in ("tis", "tis_sequence"):
            raise ValueError(f"correction.method: {method} would count the ratio twice: ppo uses it already")
        if self.kl.placement == "reward" and self.kl.normaliser != self.policy_normaliser:
            raise ValueError("kl.normaliser: in the reward the KL is averaged by policy_normaliser")
        return self
