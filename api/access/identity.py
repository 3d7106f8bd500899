"""The identities of callers: API keys give namespaces, scopes and users, and users are known as keyed hashes."""

import hashlib
import ipaddress
from dataclasses import dataclass
from typing import get_args

from core.errors import ConfigError, Forbidden, Unauthorized
from core.events import Completion, Outcome
from core.ids import Namespace, UserHash
from core.operations.fleet import GUARD
from core.ports import Bucket
from core.settings import ApiKey, ApiSettings, RateLimit, Scope
from core.store.turns import SaidTurn

ALL_SCOPES: frozenset[Scope] = frozenset(get_args(Scope))
KEYLESS = "keyless"
"""The name of every caller where there are no keys."""
_TAKEN = frozenset((GUARD, "gate", "start", KEYLESS))
_OUR_WORDS = frozenset(("derived", "judge"))


@dataclass(frozen=True)
class Identity:
    namespace: Namespace
    scopes: frozenset[Scope]
    buckets: tuple[Bucket, ...] = ()
    """The rate limits that its requests count against."""
    key_id: str | None = None
    """The key's name, else its fingerprint; None where there is no key."""
    user: UserHash | None = None
    """The only user that the key may speak for, if it is bound to one."""
    fingerprint: str | None = None
    """The very key, for the audit trail: several may have one name. None where there is no key."""

    @property
    def by(self) -> str:
        """The name that its orders are recorded under."""
        return self.key_id or KEYLESS

    def require(self, scope: Scope) -> None:
        """Raise Forbidden when the key lacks the scope."""
        if scope not in self.scopes:
            raise Forbidden(f"this API key lacks the scope {scope}", code="missing_scope")

    def made(self, record: Completion | SaidTurn | Outcome) -> bool:
        """Return whether a record of its namespace is its own: of its user, if it is bound to one, else of its key."""
        if self.user is not None:
            return record.user_id == self.user
        return record.key_id == self.key_id

    def sees(self, record: Completion | Outcome) -> bool:
        """Return whether it may see a record of its namespace, or an outcome of a turn that it may see."""
        if "read" in self.scopes or self.made(record):
            return True
        return isinstance(record, Outcome) and record.key_id is None and record.source in _OUR_WORDS

    def may_change(self, outcome: Outcome) -> bool:
        return "admin" in self.scopes or self.made(outcome)


class KeyRing:
    """The API keys of the settings.

    Raises ConfigError for settings that would let strangers in: beyond loopback there must be keys and a hash key of
    one's own."""

    def __init__(self, settings: ApiSettings) -> None:
        _check_exposure(settings)
        _check_namespaces(settings)
        _check_names(settings)
        self._user_key = hashlib.blake2b(settings.user_hash_key.encode(), digest_size=32).digest()
        identities: dict[bytes, Identity] = {}
        for key in settings.keys:
            digest = _digest(key.key.encode())
            if digest in identities:
                raise ConfigError("settings: api.keys: the same key is listed twice")
            identities[digest] = self._identity(settings, key, digest)
        self._identities = identities
        self._users = frozenset(identity.namespace for identity in identities.values())
        keyless = settings.advanced.default_namespace
        self._keyless = Identity(Namespace(keyless), ALL_SCOPES, _namespace_bucket(settings, keyless))

    def _identity(self, settings: ApiSettings, key: ApiKey, digest: bytes) -> Identity:
        namespace, fingerprint = Namespace(key.namespace), self._fingerprint(key.key)
        return Identity(
            namespace,
            ALL_SCOPES if "admin" in key.scopes else frozenset(key.scopes),
            (*_bucket(f"key:{digest.hex()}", key), *_namespace_bucket(settings, namespace)),
            fingerprint if key.name is None else key.name,
            self.user_hash(namespace, key.user),
            fingerprint,
        )

    def identify(self, authorization: bytes | None, api_key: bytes | None = None) -> Identity:
        """Return the identity for an `Authorization` header, or an `x-api-key` header. Raises Unauthorized.

        Without keys in the settings everybody is the default namespace, whatever they send: clients that insist on a
        key may send any."""
        if not self._identities:
            return self._keyless
        scheme, _, token = (authorization or b"").partition(b" ")
        if scheme.lower() != b"bearer" or not token:
            token = b"" if authorization else api_key or b""
        if not token:
            message = "send an API key: Authorization: Bearer KEY, or x-api-key: KEY"
            raise Unauthorized(message, code="missing_api_key")
        identity = self._identities.get(_digest(token.strip()))
        if identity is None:
            raise Unauthorized("this API key is not known", code="invalid_api_key")
        return identity

    @property
    def is_needed(self) -> bool:
        """True where only who has a key is known."""
        return bool(self._identities)

    @property
    def is_shared(self) -> bool:
        """True where there are keys of several namespaces."""
        return len(self._users) > 1

    def sees_all(self, identity: Identity) -> bool:
        """Return whether a caller may see what all namespaces do together, such as how many turns were answered.

        It may with the scope admin, and where its namespace has the service to itself: else the rest of a sum would
        tell what others do."""
        return "admin" in identity.scopes or not self.is_shared

    def user_of(self, identity: Identity, named: str | None) -> UserHash | None:
        """Return the user of a request that names this user. Raises Forbidden where the key speaks for another."""
        user = self.user_hash(identity.namespace, named)
        if identity.user is None:
            return user
        if user not in (identity.user, None):
            raise Forbidden("user: this API key speaks for another user", param="user", code="another_user")
        return identity.user

    def user_hash(self, namespace: Namespace, user: str | None) -> UserHash | None:
        """Return the user's hash, which differs between namespaces."""
        if user is None:
            return None
        subject = f"{namespace}\0{user}".encode()
        return UserHash(hashlib.blake2b(subject, key=self._user_key, digest_size=16).hexdigest())

    def _fingerprint(self, key: str) -> str:
        """Return a keyed hash, so that it helps nobody to find the key, after a sign that no name has."""
        return "#" + hashlib.blake2b(key.encode(), key=self._user_key, digest_size=6, person=b"api key").hexdigest()


def _digest(token: bytes) -> bytes:
    """Return the digest by which a key is looked up, so that the time it takes tells nothing about the key."""
    return hashlib.blake2b(token, digest_size=16).digest()


def _namespace_bucket(settings: ApiSettings, name: str) -> tuple[Bucket, ...]:
    limit = settings.namespaces.get(name)
    return () if limit is None else _bucket(f"namespace:{name}", limit)


def _bucket(name: str, limit: RateLimit) -> tuple[Bucket, ...]:
    per_minute = limit.requests_per_minute
    if per_minute is None:
        return ()
    burst = max(1, int(per_minute)) if limit.burst is None else limit.burst
    return (Bucket(name=name, rate_per_s=per_minute / 60, burst=burst),)


def _check_namespaces(settings: ApiSettings) -> None:
    """Raise ConfigError for a namespace without a key: a misspelt name would limit nobody."""
    known = {key.namespace for key in settings.keys} or {settings.advanced.default_namespace}
    for name in settings.namespaces:
        if name not in known:
            raise ConfigError(f"settings: api.namespaces.{name}: no API key belongs to it")


def _check_names(settings: ApiSettings) -> None:
    """Raise ConfigError for a key's name that the service uses itself or that another namespace or user has."""
    parties: dict[str, tuple[str, str | None]] = {}
    for place, key in enumerate(settings.keys):
        if key.name is None:
            continue
        if key.name in _TAKEN:
            raise ConfigError(
                f"settings: api.keys.{place}.name: {key.name} is reserved for the service: choose another"
            )
        party = key.namespace, key.user
        if parties.setdefault(key.name, party) != party:
            raise ConfigError(
                f"settings: api.keys.{place}.name: {key.name} is the name of a key of another namespace or user"
            )


def _check_exposure(settings: ApiSettings) -> None:
    if is_loopback(settings.host):
        return
    if not settings.keys:
        raise ConfigError(f"settings: api.keys: listening on {settings.host} needs API keys")
    if settings.user_hash_key == ApiSettings().user_hash_key:
        raise ConfigError(f"settings: api.user_hash_key: listening on {settings.host} needs a key of your own")


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
