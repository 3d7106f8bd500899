"""The reward spec: the file in which an operator says what counts as good.

Read by api (which outcomes exist, of which type) and scoring (what they are worth). Identified by the hash of its
meaning, not of its spelling: comments and order do not change it.
"""

import hashlib
import json
import tomllib
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from core.errors import ConfigError
from core.events import Purpose

OutcomeType = Literal["boolean", "number", "text"]
Aggregation = Literal["earliest", "last", "mean", "sum", "min", "max"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class OutcomeSpec(_Part):
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


class SuggestionSpec(_Part):
    """Inline suggestions (purpose `suggestion`)."""

    empty_reward: float = Field(default=0.0, allow_inf_nan=False)
    """The model stayed silent: decided at once."""
    ignored_reward: float = Field(default=-0.05, allow_inf_nan=False)
    """It was shown and nothing followed within `wait_s`."""
    wait_s: float = Field(default=30.0, ge=0, allow_inf_nan=False)


class SessionSpec(_Part):
    """How a session's outcomes reach its turns."""

    credit: Literal["equal", "last"] = "equal"
    """A session-level outcome counts for each of its turns, or for the last one alone."""
    purposes: tuple[Purpose, ...] = ("turn", "suggestion")
    """Turns of other purposes (side, summary, judge) live by their own outcomes alone."""
    end_wait_s: float = Field(default=30.0, ge=0, allow_inf_nan=False)
    """A session that was said to be over still waits so long for its outcomes; then its defaults apply."""
    idle_timeout_s: float = Field(default=1800.0, gt=0, allow_inf_nan=False)
    """A session without a turn for so long is over, and its defaults apply."""


class RewardSpec(_Part):
    """The whole file."""

    outcomes: dict[str, OutcomeSpec]
    suggestion: SuggestionSpec = SuggestionSpec()
    session: SessionSpec = SessionSpec()
    clip: tuple[FiniteFloat, FiniteFloat] = (-1.0, 1.0)
    """Bounds of the final value."""

    @model_validator(mode="after")
    def _ordered(self) -> "RewardSpec":
        if self.clip[0] >= self.clip[1]:
            raise ValueError("clip: the lower bound lies above the upper one")
        return self

    @property
    def digest(self) -> str:
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(canonical.encode(), digest_size=16).hexdigest()

    @property
    def longest_wait_s(self) -> float:
        return max((spec.wait_s for spec in self.outcomes.values()), default=0.0)


def load_reward_spec(path: Path) -> RewardSpec:
    """Raises ConfigError naming the file and the entry."""
    try:
        return RewardSpec.model_validate(tomllib.loads(path.read_text()))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from error
    except ValidationError as error:
        lines = (f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors())
        raise ConfigError(f"{path}: " + "; ".join(lines)) from error
