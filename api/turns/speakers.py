"""Who speaks in a turn, as far as is known: its user, or where it names none the API key that it came with.

Turns without user and key come to services without keys, which listen to their own machine alone (`api.access`)."""

from core.ids import UserHash


def speaker_of(user_id: UserHash | None, key_id: str | None) -> str | None:
    """Return what no two speakers of a namespace share: a user's hash, or a key's id behind a sign that no hash has."""
    if user_id is not None:
        return user_id
    return None if key_id is None else f"key:{key_id}"
