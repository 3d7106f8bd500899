"""The turns whose feedback decides nothing about versions: those that orders exclude from learning."""

from datetime import datetime
from typing import NamedTuple

import msgspec

from core.ids import InferenceId
from core.operations.exclusions import Exclusion, Selection, SpokenTurn
from core.ports import Store


class _Order(NamedTuple):
    """An order, with the turns that it names as a set, for they may be many, and what else it asks."""

    given: Exclusion
    names: frozenset[InferenceId]
    rest: Selection


class ExcludedTurns:
    """The orders of a store, as far as they are known; used by one thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stamp = (0, 0)
        self._orders: tuple[_Order, ...] = ()

    def look(self) -> bool:
        """Read the orders again if there is news; return whether there was any."""
        with self._store.look() as view:
            stamp = view.exclusions.stamp()
            if stamp == self._stamp:
                return False
            self._stamp, given = stamp, view.exclusions.in_order()
        self._orders = tuple(
            _Order(each, frozenset(each.selection.turns), msgspec.structs.replace(each.selection, turns=()))
            for each in given
        )
        return True

    def covers(self, turn: SpokenTurn, decided_at: datetime) -> bool:
        """Return whether an order rules a turn's reward that was decided then."""
        return any(
            each.given.covers(decided_at)
            and (not each.names or turn.inference_id in each.names)
            and each.rest.selects(turn)
            for each in self._orders
        )
