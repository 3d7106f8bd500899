"""Erasure as the stages share it: the places that keep what users say, and what readers of the log may still use."""

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec
from blake3 import blake3

from core.errors import Unavailable
from core.events import Outcome, Reward
from core.ids import InferenceId
from core.operations.erasures import Erasure, Step, Subjects, tombstone
from core.ports import Record, Store
from core.store.work import View


class NotYet(Unavailable):
    """A place cannot be done now; the message says what it waits for."""


class Place(Protocol):
    """A place. Doing it again changes nothing that was done, and tells the same."""

    name: str

    def erase(self, order: Erasure) -> Step:
        """Remove what the order means; return what that was. Raises NotYet and Unavailable: try again then."""
        ...


def digest_of(lines: Iterable[object]) -> str:
    """Return the digest of a list of what was removed: BLAKE3 of its lines, sorted."""
    return blake3("\n".join(sorted(map(str, lines))).encode()).hexdigest()


def subjects_of(store: Store, order: Erasure) -> Subjects:
    """Return what an order erases, with the ids of all its turns that the store knows."""
    return Subjects([order], turns_of(store, order))


def turns_of(store: Store, order: Erasure) -> list[InferenceId]:
    """Return the turns of an order's sessions that the store has, tombstones or not."""
    with store.look() as view:
        return view.sweeps.turns_in(order.namespace, order.sessions, order.ordered_at)


def left(view: View, records: Sequence[Record]) -> Sequence[Record]:
    """Return records as they may be used: those that orders in force erase are tombstones, whatever the log still has.

    For who reads the log and writes to the store, in the transaction of its writing."""
    orders = view.erasures.in_force()
    if not orders:
        return records
    subjects = Subjects(orders)
    named = {record.event.inference_id for record in records if isinstance(record.event, Outcome | Reward)}
    for turn in view.sweeps.places_of(each for each in named if each is not None):
        subjects.add_turn(*turn)
    return [_left(record, subjects) for record in records]


def _left(record: Record, subjects: Subjects) -> Record:
    if record.event is None or not subjects.are_of(record.event):
        return record
    return msgspec.structs.replace(record, event=tombstone(record.event), raw=b"")
