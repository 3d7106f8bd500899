"""Values of a world with one policy, whose versions are shown by their numbers."""

from typing import Any

import msgspec

from core.ids import PolicyRef


def numbered(value: Any) -> Any:
    """Replace every version of the base policy by its number, however deeply nested."""
    match value:
        case PolicyRef(policy="base", version=number):
            return number
        case msgspec.Struct():
            changed = {name: numbered(getattr(value, name)) for name in value.__struct_fields__}
            return msgspec.structs.replace(value, **changed)
        case dict():
            return {numbered(key): numbered(each) for key, each in value.items()}
        case tuple() | list() | set() | frozenset():
            return type(value)(numbered(each) for each in value)
    return value
