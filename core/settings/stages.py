"""How stages go on at what fails them."""

from typing import Final

from pydantic import Field

from core.settings.section import Section

RECORD_ATTEMPTS: Final = 3


class StageSettings(Section):
    record_attempts: int = Field(default=RECORD_ATTEMPTS, ge=1, le=100)
    """How often a record is tried that its reader cannot take, before it is set aside as a dead letter."""
    restart_s: float = Field(default=1.0, gt=0)
    """How long a stage that ended waits before it is started again; twice as long each time that it ends again."""
    most_restart_s: float = Field(default=60.0, gt=0)
    """The longest of these waits."""
    well_s: float = Field(default=120.0, gt=0)
    """How long a stage must have gone on for its next end to count as its first."""
