"""Fields that clients send and that change nothing here.

They are taken out of a request as soon as it is read: they are neither shown to the model nor stored, but named to the
client in the header `x-onward-ignored`, and counted by client."""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

Ignored = Any | UnsetType
"""The type of a field that is ignored."""
_NOTHING: tuple[Any, ...] = (None, False, "", [], {})
"""Values with which a client says no more than by leaving the field out."""
_FIELDS: dict[type, tuple[str, ...]] = {}


def take_ignored(struct: msgspec.Struct, place: str = "") -> list[str]:
    """Take the ignored fields out of a struct, and return the names of those that said something."""
    kind = type(struct)
    names = _FIELDS.get(kind)
    if names is None:
        fields = msgspec.structs.fields(kind)
        names = _FIELDS[kind] = tuple(field.name for field in fields if field.type == Ignored)
    found = []
    for name in names:
        value = getattr(struct, name)
        if value is UNSET:
            continue
        setattr(struct, name, UNSET)
        if value not in _NOTHING:
            found.append(place + name)
    return found


def named(names: Iterable[str]) -> tuple[str, ...]:
    """Return each name once, in the order in which they came."""
    return tuple(dict.fromkeys(names))
