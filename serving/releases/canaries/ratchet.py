"""A guard against a ratchet: many steps down, each too small to be noticed alone.

A canary that is slightly worse is mostly undecided when its time is over, and then promoted. So each promotion stores
what its experiment measured, and the next canary is also compared with earlier versions, by the sum of the steps since;
the errors of experiments are independent, since each has its own arms. docs/decisions/0021-the-ratchet.md has figures.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from core.ids import PolicyRef
from core.operations.fleet import Experiment

LEAST_STEPS = 2
"""One step is what the experiment itself decides on."""
MOST_STEPS = 12
LIKELY_STEP = 0.07
"""The size of steps, in reward, that is assumed before anything is known. A large step that is found early is mostly
luck, and would hide the steps around it."""
REFUSED_AT = 1.3
"""Standard errors by which a canary must be behind an earlier version to be refused for that: one look, at its end."""
RETURNED_AT = 0.0
"""The same for going back from the live version to the best so far, once its successor was found worse, too."""


@dataclass(frozen=True)
class PromotionStep:
    """One promotion, as it is thought of after its experiment: the mean of a normal posterior, and its variance."""

    before: PolicyRef
    difference: float
    squared_error: float

    @classmethod
    def measured(cls, before: PolicyRef, difference: float, error: float) -> "PromotionStep":
        """Make a step from a measurement. An infinite error is that of too few users."""
        likely = LIKELY_STEP**2
        trust = 0.0 if math.isinf(error) else likely / (likely + error**2)
        return cls(before, trust * difference, (1 - trust) * likely)


@dataclass(frozen=True)
class Behind:
    """The distance by which a version is behind an earlier one."""

    version: PolicyRef  # the earlier one
    steps: int
    difference: float
    error: float

    def __str__(self) -> str:
        return f"reward {self.difference:+.3f} with an error of {self.error:.3f} in {self.steps} steps"


def steps_to(version: PolicyRef, experiments: Iterable[Experiment]) -> tuple[PromotionStep, ...]:
    """Return the steps that led to `version`, the newest first, up to an unmeasured one.

    `experiments`: the newest first, as the store lists them."""
    measured: dict[PolicyRef, PromotionStep] = {}
    for each in experiments:
        promoted = each.promoted
        if promoted is not None and promoted not in measured and "error" in each.figures:
            measured[promoted] = PromotionStep.measured(each.control, each.figures["difference"], each.figures["error"])
    steps: list[PromotionStep] = []
    while version in measured and len(steps) < MOST_STEPS:
        steps.append(measured.pop(version))  # once: an operator may have made an earlier version live again
        version = steps[-1].before
    return tuple(steps)


def behind(steps: Sequence[PromotionStep], errors: float, least_steps: int = LEAST_STEPS) -> Behind | None:
    """Return the earlier version that the newest is furthest behind, or None.

    The distance is the sum of the steps since, and at least so many standard errors. `steps`: the newest first."""
    found: Behind | None = None
    difference = squared_error = 0.0
    for count, step in enumerate(steps, start=1):
        difference += step.difference
        squared_error += step.squared_error
        error = math.sqrt(squared_error)
        is_behind = count >= least_steps and difference < -errors * error
        if is_behind and (found is None or difference < found.difference):
            found = Behind(step.before, count, difference, error)
    return found
