"""Totals of a whole batch that an update must know before any part of it has a gradient."""

from dataclasses import dataclass


@dataclass(frozen=True)
class BatchTotals:
    """Totals that depend neither on how the batch was cut into micro-batches, nor on how many processes share them.

    `left_out`: turns, as indices into the batch, without which the effective sample size is large enough. `reference`:
    KTO's, of all turns."""

    left_out: frozenset[int] = frozenset()
    reference: float = 0.0


USUAL = BatchTotals()
"""The totals of nearly every batch: no turn is left out, and none trains by KTO."""
