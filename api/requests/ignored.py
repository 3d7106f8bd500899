"""Fields that clients send and that change nothing here.

They are taken out of a request as soon as it is read: they are neither shown to the model nor stored, but named to the
client in the header `x-onward-ignored`, and counted by client."""

from collections.abc import Container, Iterable
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from api.http.foreign import NOTHING, add_spelled

Ignored = Any | UnsetType
"""The type of a field that is ignored."""
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
        if value not in NOTHING:
            found.append(place + name)
    return found


def take_unknown(part: dict[str, Any], known: Container[str], place: str) -> list[str]:
    """Take unknown fields out of a part of a request, and return the names of those that said something."""
    found: list[str] = []
    for name in [each for each in part if each not in known]:
        if part.pop(name) not in NOTHING:
            add_spelled(found, name, place)
    return found


def named(names: Iterable[str]) -> tuple[str, ...]:
    """Return each name once, in the order in which they came."""
    return tuple(dict.fromkeys(names))
