"""What of a session's outcomes does not count, lest somebody teach by saying much."""

from pydantic import Field

from core.reward_spec.part import Part, Seconds


class DefenceSpec(Part):
    """Of outcomes that somebody said: what the scorer derived, and withdrawals, are never left out. A user is who
    feedback names as `user`; all who name nobody are one. None: no bound."""

    burst_outcomes: int | None = Field(default=None, ge=1)
    """Most outcomes of one user within any `burst_window_s`."""
    burst_window_s: Seconds = Field(default=60.0, gt=0)
    identical_outcomes: int | None = Field(default=None, ge=1)
    """Most outcomes of one user that say the same of the same turn, or of the session."""
