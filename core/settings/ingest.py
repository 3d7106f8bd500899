"""The log and its writer."""

from pydantic import Field

from core.section import Section


class IngestSettings(Section):
    partitions: int = Field(default=4, ge=1, le=1024)
    """Partitions of each topic; fixed when a log is made."""
    batch_records: int = Field(default=512, ge=1)
    """Most records that the writer puts into the store in one transaction."""
    poll_s: float = Field(default=0.05, gt=0)
    """How often a reader of the embedded log looks for new records while few come at a time, or nothing announces
    them."""
    spool_bytes: int = Field(default=256 << 20, ge=0)
    """Limit on the disk spool that keeps turns while the log is unavailable."""
