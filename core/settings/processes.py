"""The number of processes of each stage that `onward run` starts; in mode `embedded` only `api` counts."""

from pydantic import Field

from core.section import Section


class ProcessSettings(Section):
    api: int = Field(default=1, ge=0, le=64)
    """Replicas of the API. With a port given, the first has it and the others those after it. In mode `embedded` the
    first is the service itself, with whose engine the others answer; there it is at least 1."""
    ingest: int = Field(default=1, ge=0, le=64)
    """Writers from the log to the store; more than partitions stand by."""
    score: int = Field(default=1, ge=0, le=64)
    """Scorers; more than partitions stand by."""
    release: int = Field(default=1, ge=0, le=8)
    """Release controllers; one decides, the others stand by."""
