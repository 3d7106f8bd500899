"""Large request bodies: what reading them may cost."""

from pydantic import Field

from core.section import Section


class BodySettings(Section):
    large_bytes: int = Field(default=64 << 10, ge=1 << 10)
    """Larger ones are read by a process of their own, one after the other, while everybody else is served."""
    in_flight_bytes: int = Field(default=64 << 20, gt=0)
    """Of all large bodies that are being read; what exceeds it is refused with 503 and `Retry-After`."""
    values: int = Field(default=100_000, ge=1)
    """JSON values in one of them, its keys not counted; more are refused with 413."""
    work_s: float = Field(default=20.0, gt=0)
    """How long one step of reading one of them may take; refused with 413 then."""
