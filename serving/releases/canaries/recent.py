"""The most recent turns, with a bound on the share of one user.

However many turns one user has, they do not displace others' turns, by which guards and crowds are judged."""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from itertools import count
from typing import Final

from serving.releases.canaries.observations import ServedTurn

_USERS: Final = 20  # whose turns there is room for at least
_LEAST_OF_ONE: Final = 5


class RecentTurns:
    """At most `most` turns, in the order in which they came; of each user the newest."""

    def __init__(self, most: int) -> None:
        self._most, self._most_of_one = most, max(_LEAST_OF_ONE, most // _USERS)
        self._numbers = count()
        self._turns: OrderedDict[int, ServedTurn] = OrderedDict()
        self._of_user: defaultdict[str, deque[int]] = defaultdict(deque)

    def append(self, turn: ServedTurn) -> None:
        number, own = next(self._numbers), self._of_user[turn.unit]
        self._turns[number] = turn
        own.append(number)
        if len(own) > self._most_of_one:
            del self._turns[own.popleft()]
        if len(self._turns) > self._most:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, dropped = self._turns.popitem(last=False)
        own = self._of_user[dropped.unit]
        own.popleft()
        if not own:
            del self._of_user[dropped.unit]

    def clear(self) -> None:
        self._turns.clear()
        self._of_user.clear()

    def __iter__(self) -> Iterator[ServedTurn]:
        return iter(self._turns.values())

    def __len__(self) -> int:
        return len(self._turns)
