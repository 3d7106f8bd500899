"""Drafts of eval cases, which people accept or reject."""

from typing import Protocol

from core.operations.drafts import Acceptance, Decider, SuiteDrafts, WholeDraft


class Drafts(Protocol):
    """The drafts of the suites that a service keeps out of training. All of it blocks.

    A namespace sees and decides on the drafts of its own sessions; others' do not exist for it."""

    def listed(self, namespace: str) -> SuiteDrafts:
        """Return what waits, and what was decided."""
        ...

    def get(self, suite: str, name: str, namespace: str) -> WholeDraft:
        """Return one. Raises NotFound."""
        ...

    def accept(self, suite: str, name: str, given: Acceptance, who: Decider) -> WholeDraft:
        """Make it a case. Raises NotFound, InvalidRequest naming the field, Conflict if somebody else was faster.

        Also raises Conflict if the session may no longer be used, or nobody knows from what state an agent began."""
        ...

    def reject(self, suite: str, name: str, why: str, who: Decider) -> WholeDraft:
        """Put it aside. Raises NotFound, InvalidRequest for the reason, Conflict where somebody was faster."""
        ...

    def undo(self, suite: str, name: str, who: Decider) -> WholeDraft:
        """Make it a draft again. Raises NotFound, Conflict where the decision does not stand as it was looked at."""
        ...
