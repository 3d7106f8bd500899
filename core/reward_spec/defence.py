"""Limits on a session's outcomes, so that nobody steers the model by repeating feedback."""

from pydantic import Field

from core.reward_spec.part import Part, Seconds


class DefenceSpec(Part):
    """The limits on reported outcomes; outcomes that the scorer derived, and withdrawals, are never left out.

    A user is the `user` that feedback names; those who name nobody count as one. None: no bound."""

    burst_outcomes: int | None = Field(default=None, ge=1)
    """Most outcomes of one user within any `burst_window_s`."""
    burst_window_s: Seconds = Field(default=60.0, gt=0)
    identical_outcomes: int | None = Field(default=None, ge=1)
    """Most outcomes of one user that say the same of the same turn, or of the session."""
