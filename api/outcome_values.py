"""Does a value fit its metric?"""

import math

from core.errors import InvalidRequest
from core.reward_spec import OutcomeSpec, RewardSpec


def check_value(spec: RewardSpec, metric: str, value: bool | float | str) -> None:
    """Raises InvalidRequest naming `metric_name` or `value`."""
    outcome = spec.outcomes.get(metric)
    if outcome is None:
        known = ", ".join(sorted(spec.outcomes))
        raise InvalidRequest(f"metric_name: {metric!r} is none of {known}", param="metric_name", code="unknown_metric")
    match outcome.type:
        case "boolean" if not isinstance(value, bool):
            raise _invalid(metric, "true or false")
        case "text" if not isinstance(value, str):
            raise _invalid(metric, "text")
        case "number":
            _check_number(metric, outcome, value)


def _check_number(metric: str, outcome: OutcomeSpec, value: bool | float | str) -> None:
    if isinstance(value, bool | str) or not math.isfinite(value):
        raise _invalid(metric, "a finite number")
    if outcome.minimum is not None and value < outcome.minimum:
        raise _invalid(metric, f"at least {outcome.minimum:g}")
    if outcome.maximum is not None and value > outcome.maximum:
        raise _invalid(metric, f"at most {outcome.maximum:g}")


def _invalid(metric: str, wanted: str) -> InvalidRequest:
    return InvalidRequest(f"value: {metric} takes {wanted}", param="value", code="invalid_value")
