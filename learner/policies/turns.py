"""Turns: whose update is next, so that no policy's flood keeps another one waiting.

Deficit round robin (Shreedhar and Varghese, 1996), in the form that needs no sizes beforehand: a policy that has work
is given credit by its weight in each round, works while it has credit, and pays afterwards what its work was, perhaps
more than it had. One that has no work loses its credit: nobody saves up."""

from collections.abc import Collection, Mapping

from core.ids import PolicyName


class FairTurns:
    """The turns of policies by their weights; nothing of it depends on a clock."""

    def __init__(self, weights: Mapping[PolicyName, float]) -> None:
        self._weights = dict(weights)
        self._order = list(weights)
        self._credit = dict.fromkeys(weights, 0.0)
        self._place = 0

    def next_of(self, due: Collection[PolicyName]) -> PolicyName:
        """Return which of the policies that have work, of which there is one at least, is to do some."""
        for name in self._order:
            if name not in due:
                self._credit[name] = 0.0
        heaviest = max(self._weights[name] for name in due)
        while True:
            name = self._order[self._place]
            if name in due and self._credit[name] > 0:
                return name
            self._place = (self._place + 1) % len(self._order)
            name = self._order[self._place]
            if name in due:
                self._credit[name] += self._weights[name] / heaviest

    def paid(self, name: PolicyName, updates: float) -> None:
        """Take the credit for work that was done; `updates` may be a part of one."""
        self._credit[name] -= updates
