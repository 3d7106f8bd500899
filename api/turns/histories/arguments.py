"""The arguments of a call, which clients parse and write anew in their own way."""

import json

_MOST_CHARACTERS = 64 << 10  # longer ones count as they are written


def normal_arguments(arguments: str) -> str:
    """Return a call's arguments in one spelling of the JSON that they mean; what is no JSON, or too long, as it is."""
    if len(arguments) > _MOST_CHARACTERS:
        return arguments
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments
