"""What outcomes are worth: of a turn, of a suggestion, of a session."""

import math
from typing import Literal

from pydantic import Field, FiniteFloat, model_validator

from core.events import Purpose
from core.reward_spec.part import Part

OutcomeType = Literal["boolean", "number", "text"]
Aggregation = Literal["earliest", "last", "mean", "sum", "min", "max"]


class OutcomeSpec(Part):
    """One outcome by name."""

    type: OutcomeType
    weight: float = Field(default=0.0, allow_inf_nan=False)
    """Added to the reward, times the value (a boolean true is 1, false is 0)."""
    false_weight: float = Field(default=0.0, allow_inf_nan=False)
    """Added when a boolean is false."""
    wait_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """How long a turn waits for this outcome before its default applies."""
    default: bool | float | None = None
    """The value that stands in when the wait is over; None: the outcome then adds nothing."""
    aggregation: Aggregation = "last"
    """Which of several outcomes of one name counts."""
    decides: bool = False
    """An arrival ends the wait for all other outcomes of the turn, without their defaults."""
    minimum: FiniteFloat | None = None
    maximum: FiniteFloat | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "OutcomeSpec":
        if self.type == "text" and (self.weight or self.false_weight or self.default is not None):
            raise ValueError("a text outcome has no weight and no default")
        if self.type == "boolean" and self.default is not None and not isinstance(self.default, bool):
            raise ValueError("the default of a boolean outcome is true or false")
        if self.type == "number" and isinstance(self.default, bool):
            raise ValueError("the default of a number outcome is a number")
        if self.type != "boolean" and self.false_weight:
            raise ValueError("false_weight belongs to boolean outcomes")
        bounds = [bound for bound in (self.minimum, self.default, self.maximum) if bound is not None]
        if self.type == "number" and bounds != sorted(bounds):
            raise ValueError("minimum, default and maximum of a number outcome do not ascend")
        if self.type != "number" and (self.minimum is not None or self.maximum is not None):
            raise ValueError("minimum and maximum belong to number outcomes")
        return self

    @property
    def reach(self) -> tuple[float, float]:
        """The least and the most that it adds to a reward; 0 is what it adds where nobody says it."""
        if self.type == "boolean":
            added = [self.weight, self.false_weight, 0.0]
        elif not self.weight:
            added = [0.0]
        else:
            low = -math.inf if self.minimum is None else self.minimum
            high = math.inf if self.maximum is None else self.maximum
            added = [self.weight * low, self.weight * high, 0.0]
        return min(added), max(added)

    @property
    def moves(self) -> bool:
        """Whether it can move a reward at all."""
        return bool(self.weight or self.false_weight)


class SuggestionSpec(Part):
    """Inline suggestions (purpose `suggestion`)."""

    show_threshold: float | None = Field(default=None, gt=0, lt=1)
    """What was accepted pays 1 - p, what was not costs p, silence is 0, so that to show pays where acceptance is
    likelier than p (Cursor Tab). It takes the place of the weights of `accepted`, `partially_accepted` and `rejected`,
    and of `ignored_reward`. None: those."""
    empty_reward: float = Field(default=0.0, allow_inf_nan=False)
    """The model stayed silent: decided at once."""
    ignored_reward: float = Field(default=-0.05, allow_inf_nan=False)
    """It was shown and nothing followed within `wait_s`."""
    wait_s: float = Field(default=30.0, ge=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _one_rule(self) -> "SuggestionSpec":
        both = {"ignored_reward", "empty_reward"} & self.model_fields_set
        if self.show_threshold is not None and both:
            raise ValueError(f"show_threshold says what {' and '.join(sorted(both))} would say")
        return self


class SessionSpec(Part):
    """How a session's outcomes reach its turns."""

    credit: Literal["equal", "last", "discounted"] = "equal"
    """A session-level outcome counts for each of its turns, for the last one alone, or for each the less the more turns
    came after it."""
    discount: float = Field(default=0.9, gt=0, le=1)
    """What each later turn leaves of it, where it is discounted."""
    purposes: tuple[Purpose, ...] = ("turn", "suggestion")
    """Turns of other purposes (side, summary, judge) live by their own outcomes alone."""
    end_wait_s: float = Field(default=30.0, ge=0, allow_inf_nan=False)
    """A session that was said to be over still waits so long for its outcomes; then its defaults apply."""
    idle_timeout_s: float = Field(default=1800.0, gt=0, allow_inf_nan=False)
    """A session without a turn for so long is over, and its defaults apply."""
