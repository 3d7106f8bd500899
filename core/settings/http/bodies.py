"""Request bodies: how large they may be, and what reading large ones may cost."""

from typing import Self

from pydantic import Field, model_validator

from core.section import Section


class BodySettings(Section):
    max_bytes: int = Field(default=4 << 20, gt=0)
    """Larger request bodies are refused with 413; and those that are larger times `n`: each choice keeps all of one."""
    large_bytes: int = Field(default=64 << 10, ge=1 << 10)
    """Larger ones are read by a process of their own, one after the other, while everybody else is served."""
    in_flight_bytes: int = Field(default=64 << 20, gt=0)
    """Total size of the large bodies that are being read; more is refused with 503 and `Retry-After`."""
    under_way_bytes: int = Field(default=256 << 20, gt=0)
    """Total size of the requests that wait for the engine or are being answered, each counted once for every choice;
    more are refused with 503 and `Retry-After`. A single key's may be three quarters of them."""
    under_way_user_bytes: int = Field(default=64 << 20, gt=0)
    """The same of one user; of requests that name none, of one key."""
    values: int = Field(default=100_000, ge=1)
    """JSON values in one of them, its keys not counted, or fields in an export by protobuf, however large; more are
    refused with 413."""
    work_s: float = Field(default=20.0, gt=0)
    """How long one step of reading one of them may take; refused with 413 then."""

    @model_validator(mode="after")
    def _reads_the_largest(self) -> Self:
        if self.in_flight_bytes < self.max_bytes:
            raise ValueError("in_flight_bytes: less than max_bytes, so that the largest would never be read")
        for name in ("under_way_bytes", "under_way_user_bytes"):
            if getattr(self, name) < self.max_bytes:
                raise ValueError(f"{name}: less than max_bytes, so that the largest would never be answered")
        return self
