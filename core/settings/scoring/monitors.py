"""Monitors of the signal: what they look at, how often, and what their alarms hold."""

from pydantic import Field

from core.section import Section


class MonitorSettings(Section):
    enabled: bool = True
    """Whether monitors run."""
    off: tuple[str, ...] = ()
    """Monitors that are turned off, by name; their open alarms are closed."""
    hold_releases: bool = True
    """Whether releases wait while a critical alarm is open that nobody has acknowledged; False: alarms hold nothing."""
    every_s: float = Field(default=5.0, gt=0)
    """How often they look."""
    window_turns: int = Field(default=300, ge=50)
    """Latest turns of a workload that they look at."""
    window_s: float = Field(default=21600.0, gt=0)
    """Age beyond which a turn is no longer looked at, however few there are."""
    reference_turns: int = Field(default=300, ge=50)
    """First turns of a workload, with which all later ones are compared."""
    maturity_s: float | None = Field(default=None, ge=0)
    """Age at which a turn is looked at by monitors of outcomes and rewards; None: the longest wait of its reward spec,
    at most an hour."""
    close_after_s: float = Field(default=300.0, ge=0)
    """How long a monitor must have been content before its alarm is closed."""
