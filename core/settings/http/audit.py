"""The audit trail."""

from pydantic import Field

from core.section import Section


class AuditSettings(Section):
    key: str | None = Field(default=None, min_length=8, repr=False)
    """The key that seals the trail's heads, so that nobody can make one who can only write to the disk; None: they have
    no seals."""
    repeat_s: float = Field(default=60.0, ge=0)
    """How long the same read by the same key is not written again: an open console asks every few seconds."""
