"""The turns that one window holds: by id, oldest first, and so few of each user that others are heard as well."""

from collections import deque
from collections.abc import Iterator

from core.ids import InferenceId
from scoring.monitors import LEAST_UNITS, WatchedTurn
from scoring.watching.turns import WatchedTurns


class Held:
    """A window. It holds its turns in `turns`, and releases those that it drops."""

    def __init__(self, turns: WatchedTurns, most: int, *, of_one: int | None = None) -> None:
        """`most`: how many it holds; `of_one`: how many may be one user's, a fifth where it is not said."""
        self._turns, self._most = turns, most
        self._of_one = most // LEAST_UNITS if of_one is None else of_one
        self._ids: deque[InferenceId] = deque()
        self._of_user: dict[str, deque[InferenceId]] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[InferenceId]:
        return iter(self._ids)

    def add(self, turn: WatchedTurn) -> None:
        """Add the newest turn, and drop the user's oldest where the window holds too many of hers."""
        turn = self._turns.hold(turn)
        self._ids.append(turn.inference_id)
        own = self._of_user.setdefault(turn.unit, deque())
        own.append(turn.inference_id)
        if len(own) > self._of_one:
            self._ids.remove(own[0])
            self._turns.release(own.popleft())

    def shorten(self, before_s: float = float("-inf")) -> None:
        """Drop the oldest turns: those that are too many, and those from before a time."""
        while self._ids and (len(self._ids) > self._most or self._turns[self._ids[0]].at_s < before_s):
            oldest = self._ids.popleft()
            unit = self._turns[oldest].unit
            self._of_user[unit].popleft()
            if not self._of_user[unit]:
                del self._of_user[unit]
            self._turns.release(oldest)
