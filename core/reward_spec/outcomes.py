"""The values of outcomes: of a turn, of a suggestion, of a session."""

import math
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from core.events import Purpose
from core.reward_spec.part import LARGEST, Number, Part, Seconds
from core.reward_spec.roles import BLAME, NUMBERS, PRAISE, TEXTS, USUAL, Role

OutcomeType = Literal["boolean", "number", "text"]
_OTHER_NAMES: Final = {"float": "number", "comment": "text", "demonstration": "text"}
Measure = Literal["kept", "distance", "survived"]
Aggregation = Literal["earliest", "last", "mean", "sum", "min", "max"]


class OutcomeSpec(Part):
    """One outcome by name."""

    type: Annotated[OutcomeType, BeforeValidator(lambda name: _OTHER_NAMES.get(name, name))]
    meaning: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)] | None = None
    """The outcome in words, for those who send it: what it says, and when to send it (`GET /v1/outcomes`). No part of
    what the spec means: it does not change the digest."""
    role: Role | None = None
    """The meaning of the outcome for an answer, by which monitors, the judge's agreement and contradictions count it.
    None: the usual role for that name (`USUAL`), where the type fits, else no role."""
    level: Literal["inference", "session"] | None = None
    """The outcome is about one answer or about a whole session; None: about either."""
    optimize: Literal["max", "min"] = "max"
    """`min`: less of it is better, and its weights are subtracted."""
    measure: Measure | None = None
    """The value that the API computes where feedback has a text instead: by edit distance, the share that was `kept`
    or the `distance`, or the share of lines that `survived`."""
    weight: Number = 0.0
    """Added to the reward, times the value (a boolean true is 1, false is 0)."""
    neutral: Number = 0.0
    """The value of a number that adds nothing: `weight` is times what the value is above it, or below. What is to lower
    a reward by its absence (the share that survived) has it at the best value."""
    false_weight: Number = 0.0
    """Added when a boolean is false."""
    wait_s: Seconds = 0.0
    """How long a turn waits for this outcome before its default applies."""
    after_s: Seconds | None = None
    """The soonest that it comes after its turn; an outcome of that age, and more, is not too old to train. None: it may
    come at once, but for `survived_1h`, `survived_1d` and `survived_1w`, whose names say it."""
    default: bool | Number | None = None
    """The value that stands in when the wait is over; None: the outcome then adds nothing."""
    default_reward: Number | None = None
    """The reward that is added when the wait is over, instead of a `default`."""
    aggregation: Aggregation = "last"
    """The rule by which several outcomes of one name become one value."""
    trim: float = Field(default=0.0, ge=0, lt=0.5)
    """Share of the values that a mean leaves out at either end."""
    decides: bool = False
    """An arrival ends the wait for all other outcomes of the turn, without their defaults."""
    minimum: Number | None = None
    maximum: Number | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "OutcomeSpec":
        given = (self.weight or None, self.false_weight or None, self.default, self.default_reward, self.measure)
        if self.type == "text" and any(value is not None for value in given):
            raise ValueError("a text outcome has no weight, no default and no measure")
        if self.type == "boolean" and self.default is not None and not isinstance(self.default, bool):
            raise ValueError("the default of a boolean outcome is true or false")
        if self.type == "number" and isinstance(self.default, bool):
            raise ValueError("the default of a number outcome is a number")
        if self.type != "boolean" and self.false_weight:
            raise ValueError("false_weight belongs to boolean outcomes")
        bounds = [bound for bound in (self.minimum, self.default, self.maximum) if bound is not None]
        if self.type == "number" and bounds != sorted(bounds):
            raise ValueError("minimum, default and maximum of a number outcome do not ascend")
        if self.neutral and not self._bounds[0] <= self.neutral <= self._bounds[1]:
            raise ValueError("neutral lies outside minimum and maximum")
        if self.type != "number" and (self.minimum is not None or self.maximum is not None):
            raise ValueError("minimum and maximum belong to number outcomes")
        if self.type != "number" and self.neutral:
            raise ValueError("neutral belongs to number outcomes")
        self._other_entries_fit()
        self._role_fits()
        return self

    def _role_fits(self) -> None:
        role = self.role
        if role in (None, "none"):
            return
        if not self._may_be(role):
            wanted = "text" if role in TEXTS else "number" if role in NUMBERS else "boolean or a number"
            raise ValueError(f"role {role}: it is a {wanted}, and this is a {self.type}")
        if role in ("shown", "void") and self.type != "boolean":
            raise ValueError(f"role {role}: it is a boolean, and this is a {self.type}")
        if role == "void" and (self.moves or self.wait_s or self.default is not None):
            raise ValueError(f"role {role}: it takes rewards away, and has no weight, no wait and no default")
        least = self.optimize == "min"
        if role in PRAISE and (least or self.weight < 0 or self.false_weight > 0):
            raise ValueError(f"role {role}: it says that an answer is good, and the weights take it for bad")
        if role in BLAME and (self.weight < 0 if least else self.weight > 0):
            raise ValueError(f"role {role}: it says that an answer is bad, and the weights take it for good")

    def _may_be(self, role: str) -> bool:
        if self.type == "text" or role in TEXTS:
            return self.type == "text" and role in TEXTS
        return self.type == "number" or role not in NUMBERS

    def role_as(self, name: str) -> Role | None:
        """Return the role that the outcome has under that name."""
        usual = USUAL.get(name)
        role = self.role or (usual if usual is not None and self._may_be(usual) else None)
        return None if role == "none" else role

    def _other_entries_fit(self) -> None:
        if self.optimize == "min" and min(self.weight, self.false_weight) < 0:
            raise ValueError("optimize min subtracts weights: they must not be negative")
        if self.default is not None and self.default_reward is not None:
            raise ValueError("default and default_reward say the same thing twice")
        if self.measure is not None and self.type != "number":
            raise ValueError("measure belongs to number outcomes")
        if self.trim and self.aggregation != "mean":
            raise ValueError("trim belongs to the aggregation mean")

    def wanted(self, value: bool | float | str | None) -> str | None:
        """Return what kind of value the outcome takes instead of this one; None when it takes it."""
        if self.type != "number":
            takes: tuple[type, str] = (bool, "true or false") if self.type == "boolean" else (str, "text")
            return None if isinstance(value, takes[0]) else takes[1]
        if value is None or isinstance(value, bool | str) or not -math.inf < value < math.inf:
            return "a finite number"
        low, high = self._bounds
        if low <= value <= high:
            return None
        if self.minimum is None and self.maximum is None:
            return f"a number from {low:g} to {high:g}"
        return f"at least {low:g}" if value < low else f"at most {high:g}"

    @property
    def _bounds(self) -> tuple[float, float]:
        return (
            -LARGEST if self.minimum is None else self.minimum,
            LARGEST if self.maximum is None else self.maximum,
        )

    def worth(self, true: float, false: float) -> float:
        """Return the reward for so many true values, or a number so far above `neutral`, and so many false values."""
        worth = self.weight * true + self.false_weight * false
        return -worth if self.optimize == "min" else worth

    def amounts(self, value: bool | float) -> tuple[float, float]:
        """Return what `weight` and what `false_weight` are multiplied by for one value."""
        return (0.0, 1.0) if value is False else (value - self.neutral, 0.0)

    @property
    def of_silence(self) -> float | None:
        """The reward that is added when the wait is over and nobody said anything; None: the outcome adds nothing."""
        return self.default_reward if self.default is None else self.worth(*self.amounts(self.default))

    @property
    def reach(self) -> tuple[float, float]:
        """The least and the most that it adds to a reward; 0 is what it adds where nobody says it."""
        added = [0.0, self.default_reward or 0.0]
        if self.type == "boolean":
            added += [self.worth(1, 0), self.worth(0, 1)]
        elif self.weight:
            added += [self.worth(bound - self.neutral, 0) for bound in self._bounds]
        return min(added), max(added)

    @property
    def moves(self) -> bool:
        """True when the outcome can move a reward at all."""
        return bool(self.weight or self.false_weight or self.default_reward)


class SuggestionSpec(Part):
    """Inline suggestions (purpose `suggestion`)."""

    show_threshold: float | None = Field(default=None, gt=0, lt=1)
    """The probability p of acceptance from which showing a suggestion pays (Cursor Tab): an accepted one earns 1 - p,
    one that was not costs p, and silence is 0. It takes the place of the weights of `accepted`, `partially_accepted`
    and `rejected`, and of `ignored_reward`. None: those."""
    empty_reward: Number = 0.0
    """The model stayed silent: decided at once."""
    ignored_reward: Number = -0.05
    """It was shown and nothing followed within `wait_s`."""
    wait_s: Seconds = 30.0
    """How long it may be ignored: from its request on or, where it was shown later, from then on."""
    ignored_if_shown: bool = False
    """Only what an outcome of role `shown` says was shown counts as ignored. False: so it is for the turns of clients
    that report what they show (tag `reports`: `shown`) alone; of others, whatever was asked for counts as shown."""

    @model_validator(mode="after")
    def _one_rule(self) -> "SuggestionSpec":
        both = {"ignored_reward", "empty_reward"} & self.model_fields_set
        if self.show_threshold is not None and both:
            raise ValueError(f"show_threshold takes the place of {' and '.join(sorted(both))}: remove one or the other")
        return self


class SessionSpec(Part):
    """The rules by which a session's outcomes are shared among its turns."""

    credit: Literal["equal", "last", "discounted"] = "equal"
    """A session-level outcome counts for each of its turns, for the last one alone, or for each the less the more turns
    came after it."""
    discount: float = Field(default=0.9, gt=0, le=1)
    """The factor for each later turn, with credit `discounted`."""
    purposes: tuple[Purpose, ...] = ("turn", "suggestion")
    """Turns of other purposes (side, summary, judge) live by their own outcomes alone. The shipped spec adds summaries:
    one is what all later turns know of the session, and shares in what became of it (SUPO, arXiv 2510.06727)."""
    end_wait_s: Seconds = 30.0
    """A session that was said to be over still waits so long for its outcomes; then its defaults apply."""
    idle_timeout_s: Seconds = Field(default=1800.0, gt=0)
    """A session without a turn for so long is over, and its defaults apply."""
