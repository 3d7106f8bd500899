"""The baseline that a reward is compared with."""

from typing import Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from core.section import Section


class AdvantageSettings(Section):
    baseline: Literal["value", "ema", "beta", "batch", "centre", "leave_one_out", "raw"] = "value"
    """The baseline with which a reward is compared: a value head on the hidden states; per stratum (namespace,
    workload, channel) a moving average or a decayed Beta tracker; the batch's mean, whitened (`batch`) or not
    (`centre`); the other answers to the same request, where there are any, else the stratum's moving average; nothing
    (`raw`: for comparisons)."""
    channels: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Outcomes, by name, that have base rates of their own (thumbs, test runs), by the channel that they come by.
    Outcomes that replace each other, as `accepted` and `rejected` do, belong in one channel: otherwise the baseline
    knows the outcome."""
    value_learning_rate: float = Field(default=2e-3, gt=0)
    """AdamW's, for the value head."""
    ema_decay: float = Field(default=0.95, ge=0, lt=1)
    """Decay of the moving average, a turn."""
    reward_range: tuple[FiniteFloat, FiniteFloat] = (-1.0, 1.0)
    """Rewards that `beta` maps onto failure and success, as the spec's `clip`; those outside count as its ends."""
    turn_discount: float = Field(default=0.0, ge=0, le=1)
    """The share that a turn earns of the rewards of the turns in the same update that continue it; 0: none."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        low, high = self.reward_range
        if low >= high:
            raise ValueError("reward_range: the lower end does not lie below the upper one")
        self._channels_are_apart()
        return self

    def _channels_are_apart(self) -> None:
        outcomes = [outcome for each in self.channels.values() for outcome in each]
        twice = sorted({outcome for outcome in outcomes if outcomes.count(outcome) > 1})
        if twice:
            raise ValueError(f"channels: {', '.join(twice)}: in more than one")
