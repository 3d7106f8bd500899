"""The log's past: copied into files, and deleted by age."""

from pydantic import Field

from core.section import Section


class ArchiveSettings(Section):
    enabled: bool = False
    """Whether turns and rewards are copied from the log into Parquet files."""
    url: str | None = None
    """The directory or URL that holds these files, under `archive/`, given like `blobs`; None: in `blobs`.
    An edge cluster's is its own."""
    interval_s: float = Field(default=3600.0, gt=0)
    """How often new records are copied from the log, and old ones deleted."""
    segment_bytes: int = Field(default=64 << 20, ge=1 << 16)
    """Bytes of a partition's records that are copied together: they are held in memory, compressed."""
    retention_days: float | None = Field(default=None, ge=0)
    """Age at which turns and rewards are deleted from the log, once everybody has read them and, where `enabled`, they
    are archived; None: they are kept."""

    @property
    def has_work(self) -> bool:
        return self.enabled or self.retention_days is not None
