"""API keys that the store holds: made, rotated and revoked while the service runs.

A key is 256 random bits, shown once; what rests is its BLAKE2b digest. A slow hash such as scrypt makes guesses of
words dear, and nobody guesses 256 bits; a fast one can be computed for every request."""

import hashlib
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from core.errors import InvalidRequest
from core.ids import Namespace, UserHash
from core.settings import Scope

PREFIX: Final = "onw_"
"""The beginning of every key that is made here: scanners for secrets know it by that."""
_BYTES: Final = 32


class KeyWish(msgspec.Struct, frozen=True, kw_only=True):
    """What a key is to be."""

    namespace: Namespace
    name: str  # keys of one name own together what they make
    user: UserHash | None = None  # the only one that it speaks for
    scopes: tuple[Scope, ...] = ("chat", "feedback")
    requests_per_minute: float | None = None
    burst: int | None = None
    expires_at: datetime | None = None  # None: never


class StoredKey(KeyWish, frozen=True, kw_only=True):
    """A key as the store has it."""

    key_id: str
    digest: str
    created_at: datetime
    created_by: str
    revoked_at: datetime | None = None
    revoked_by: str | None = None
    revoked_why: str | None = None
    used_at: datetime | None = None  # the hour of its latest use

    def is_over(self, now: datetime) -> bool:
        return self.revoked_at is not None or (self.expires_at is not None and self.expires_at <= now)


class Party(msgspec.Struct, frozen=True):
    """Whom keys of one name speak for."""

    name: str
    namespace: str
    user: UserHash | None


def key_digest(key: bytes) -> str:
    """Return the digest by which a key is looked up: the time it takes tells nothing about the key."""
    return hashlib.blake2b(key, digest_size=32).hexdigest()


def make_key(wish: KeyWish, by: str, now: datetime) -> tuple[str, StoredKey]:
    """Return (the key, what is kept of it)."""
    key = PREFIX + secrets.token_urlsafe(_BYTES)
    fields = {name: getattr(wish, name) for name in KeyWish.__struct_fields__}
    key_id = f"key-{secrets.token_hex(6)}"
    return key, StoredKey(**fields, key_id=key_id, digest=key_digest(key.encode()), created_at=now, created_by=by)


def rotated(old: StoredKey, by: str, now: datetime, overlap_s: float) -> tuple[str, StoredKey, StoredKey]:
    """Return (the new key, what is kept of it, the old one as it is from now on).

    The old one ends after `overlap_s`, or earlier where it would have. A life that had an end begins anew."""
    life = None if old.expires_at is None else _again(old.expires_at, old.created_at, now)
    fields = {name: getattr(old, name) for name in KeyWish.__struct_fields__}
    key, new = make_key(KeyWish(**{**fields, "expires_at": life}), by, now)
    ends = now + timedelta(seconds=overlap_s)
    return key, new, msgspec.structs.replace(old, expires_at=min(old.expires_at or ends, ends))


def _again(ends: datetime, created: datetime, now: datetime) -> datetime:
    """Return the end of a life as long as that one, from now on; one beyond the calendar ends when that one did."""
    try:
        return now + (ends - created)
    except OverflowError:
        return ends


def revoked(key: StoredKey, by: str, now: datetime, why: str | None = None) -> StoredKey:
    return msgspec.structs.replace(key, revoked_at=now, revoked_by=by, revoked_why=why)


def check_wish(wish: KeyWish, parties: Iterable[Party], taken: Iterable[str], now: datetime) -> None:
    """Raise InvalidRequest naming the field: a name tells one party from others, and a life ends later than now."""
    if wish.name in taken:
        raise InvalidRequest(f"name: {wish.name} is reserved for the service: choose another", param="name")
    for party in parties:
        if party.name == wish.name and (party.namespace, party.user) != (wish.namespace, wish.user):
            raise InvalidRequest(
                f"name: {wish.name} is the name of a key of another namespace or user", param="name", code="name_taken"
            )
    if wish.expires_at is not None:
        _check_end(wish.expires_at, now)
    if wish.burst is not None and wish.requests_per_minute is None:
        raise InvalidRequest("burst: only with requests_per_minute", param="burst")


def _check_end(at: datetime, now: datetime) -> None:
    if at <= now:
        raise InvalidRequest("expires_at: is over already", param="expires_at")
    try:
        at.astimezone(UTC)
    except OverflowError:
        raise InvalidRequest("expires_at: after the last year of UTC", param="expires_at") from None
