"""The handling of failing records and of restarts by stages."""

from typing import Final

from pydantic import Field

from core.section import Section

RECORD_ATTEMPTS: Final = 3


class StageSettings(Section):
    record_attempts: int = Field(default=RECORD_ATTEMPTS, ge=1, le=100)
    """How often a record is tried that its reader cannot take, before it is set aside as a dead letter."""
    restart_s: float = Field(default=1.0, gt=0)
    """How long a stage that ended waits before it is started again; twice as long each time that it ends again.
    Each wait is somewhat shorter, by chance."""
    most_restart_s: float = Field(default=60.0, gt=0)
    """The longest of these waits."""
    well_s: float = Field(default=60.0, gt=0)
    """How long a stage must have gone on to be well again: its alarm is closed, and its next end counts as its
    first."""
    end_s: float = Field(default=45.0, gt=0)
    """How long a process that was told to end may take, before it is ended by force; what it had acknowledged or
    published stays. It must be more than `serving.sglang.timeouts.drain_s`."""
