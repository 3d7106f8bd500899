"""Checks that a value fits its metric."""

from core.errors import InvalidRequest
from core.reward_spec import OutcomeSpec, RewardSpec


def spec_of(spec: RewardSpec, metric: str) -> OutcomeSpec:
    """Return the spec of the metric. Raises InvalidRequest naming `metric_name`."""
    outcome = spec.outcomes.get(metric)
    if outcome is None:
        known = ", ".join(sorted(spec.outcomes))
        raise InvalidRequest(
            f"metric_name: {metric!r} is not one of {known}", param="metric_name", code="unknown_metric"
        )
    return outcome


def check_level(spec: RewardSpec, metric: str, *, of_session: bool) -> None:
    """Raise InvalidRequest naming `metric_name`, `inference_id` or `session_id` when the level is wrong."""
    level = spec_of(spec, metric).level
    if level == "inference" and of_session:
        raise InvalidRequest(f"session_id: {metric} is about an inference", param="session_id", code="wrong_level")
    if level == "session" and not of_session:
        raise InvalidRequest(f"inference_id: {metric} is about a session", param="inference_id", code="wrong_level")


def check_value(spec: RewardSpec, metric: str, value: bool | float | str) -> None:
    """Raise InvalidRequest naming `metric_name` or `value` when the value does not fit."""
    wanted = spec_of(spec, metric).wanted(value)
    if wanted is not None:
        raise InvalidRequest(f"value: {metric} takes {wanted}", param="value", code="invalid_value")
