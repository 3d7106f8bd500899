"""Exclusions from learning, for whoever foresees and orders them over HTTP."""

from collections.abc import Callable, Mapping
from typing import Protocol

from core.operations.exclusions import Foreseen, Wish
from core.store.work import Work

Written = Callable[[Work, Mapping[str, str]], None]
"""Writes the line of the audit trail as the last thing in the transaction, with the numbers of what was ordered."""


class ExclusionOrders(Protocol):
    """Both methods block. They raise NotFound, InvalidRequest or Conflict if nothing is excluded, or it cannot be."""

    def foresee(self, wish: Wish) -> Foreseen:
        """Return what an exclusion would change, and change nothing."""
        ...

    def order(self, wish: Wish, why: str, by: str, written: Written) -> tuple[int, Foreseen]:
        """Exclude turns and order the way back; return the exclusion's number, and what changes.

        All of it is written in one transaction."""
        ...
