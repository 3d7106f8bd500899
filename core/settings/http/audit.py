"""The audit trail."""

from pydantic import Field

from core.section import Section


class AuditSettings(Section):
    key: str = Field(default="", repr=False)
    """The key that seals the trail's heads, so that nobody makes one who can only write to the disk; "": no seals."""
    repeat_s: float = Field(default=60.0, ge=0)
    """How long the same read by the same key is not written again: an open console asks every few seconds."""
