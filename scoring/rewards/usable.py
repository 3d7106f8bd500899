"""A check of outcomes against the spec.

The API refuses unusable ones; a log that is scored under another spec may hold some."""

from typing import Final

from core.events import Outcome
from core.reward_spec import OutcomeSpec
from core.reward_spec.roles import CONSENT_WITHDRAWN

_SHOWN: Final = 60  # characters of a value, in a reason


def fault_of(outcome: Outcome, spec: OutcomeSpec | None) -> str | None:
    """Return why an outcome cannot be used; None when it can.

    `spec`: that of its name, None if the reward spec has none. A withdrawal has no value, and withdraws any outcome."""
    if outcome.withdrawn or outcome.name == CONSENT_WITHDRAWN:  # the service's own, under every spec
        return None
    if spec is None:
        return f"{outcome.name!r} is no outcome of the reward spec"
    if spec.level == ("session" if outcome.session_id is None else "inference"):
        return f"{outcome.name} is said of {'a session' if spec.level == 'session' else 'an inference'}"
    wanted = spec.wanted(outcome.value)
    return None if wanted is None else f"{outcome.name} takes {wanted}, and this is {repr(outcome.value)[:_SHOWN]}"
