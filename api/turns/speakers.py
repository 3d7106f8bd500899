"""Who speaks in a turn, as far as is known: its user, or where it names none the API key that it came with.

Turns without user and key come to services without keys, which listen to their own machine alone (`api.access`)."""

import hashlib

from core.ids import Namespace, UserHash


def speaker_of(user_id: UserHash | None, key_id: str | None) -> str | None:
    """Return what no two speakers of a namespace share: a user's hash, or a key's id behind a sign that no hash has."""
    if user_id is not None:
        return user_id
    return None if key_id is None else f"key:{key_id}"


def cache_scope(namespace: Namespace, speaker: str | None) -> str:
    """Return the scope within which prefixes are shared; without a speaker, all of the namespace.

    It is a digest, since engines log it."""
    return hashlib.blake2b(f"{namespace}\0{speaker or ''}".encode(), digest_size=16).hexdigest()
