"""Outcomes to rewards."""

from pathlib import Path

from pydantic import Field

from core.section import Section


class ScoringSettings(Section):
    spec: Path | None = None
    """Reward spec; None: `rewards.toml` in the directory, else the shipped one."""
    tick_s: float = Field(default=0.1, gt=0)
    """How often waits are checked."""
    batch_records: int = Field(default=2048, ge=1)
    """Most records taken into the ledger in one transaction; fewer while they take long, or few are behind."""
    early_outcome_s: float = Field(default=86400.0, gt=0)
    """How long an outcome that reached the log before its turn waits for it, before it is set aside."""
