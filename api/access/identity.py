"""The identities of callers: API keys give namespaces, scopes and users, and users are known as keyed hashes."""

import hashlib
import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import get_args

from core.errors import ConfigError, Forbidden, StoreUnavailable, Unauthorized
from core.events import Completion, Outcome
from core.ids import Namespace, UserHash
from core.operations.fleet import GUARD
from core.operations.keys import Party, StoredKey, key_digest
from core.ports import Bucket
from core.reward_spec.roles import CONSENT_WITHDRAWN
from core.settings import ApiKey, ApiSettings, NamespaceSettings, Scope
from core.store.turns import Maker, SaidTurn

ALL_SCOPES: frozenset[Scope] = frozenset(get_args(Scope))
KEYLESS = "keyless"
"""The name of every caller where there are no keys."""
TAKEN = frozenset((GUARD, "gate", "start", KEYLESS))
"""Names that no key may have."""
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
    shares_prefixes: bool = False
    """Whether all of its namespace go on from what was computed for one another."""

    @property
    def by(self) -> str:
        """The name that its orders are recorded under."""
        return self.key_id or KEYLESS

    @property
    def caller(self) -> tuple[str | None, ...]:
        """Whose line its work waits in: one for each key, and each user that a key is bound to."""
        return self.namespace, self.key_id, self.user

    def require(self, scope: Scope) -> None:
        """Raise Forbidden when the key lacks the scope."""
        if scope not in self.scopes:
            raise Forbidden(f"this API key lacks the scope {scope}", code="missing_scope")

    def made(self, record: Completion | SaidTurn | Outcome) -> bool:
        """Return whether a record of its namespace is its own: of its user, if it is bound to one, else of its key."""
        if self.user is not None:
            return record.user_id == self.user
        return record.key_id == self.key_id

    @property
    def maker(self) -> Maker:
        """Whose turns are its own, as the store finds them: those that it `made`."""
        return Maker(self.user, self.key_id)

    def sees(self, record: Completion | Outcome) -> bool:
        """Return whether it may see a record of its namespace, or an outcome of a turn that it may see."""
        if "read" in self.scopes or self.made(record):
            return True
        return isinstance(record, Outcome) and _is_ours(record)

    def may_change(self, outcome: Outcome) -> bool:
        """Return whether it may withdraw or replace the outcome; what is ours is its turn's user's, but not by her.

        That consent was withdrawn nobody takes back: it is given again, for what comes."""
        if outcome.name == CONSENT_WITHDRAWN:
            return False
        return "admin" in self.scopes or (self.made(outcome) and not _is_ours(outcome))


def _is_ours(outcome: Outcome) -> bool:
    """Return whether the service concluded the outcome itself; clients report what their own judges say."""
    return outcome.key_id is None and outcome.source in _OUR_WORDS


@dataclass(frozen=True)
class _Known:
    """A key that is known, and when it ends."""

    identity: Identity
    ends_at: datetime | None = None
    key_id: str | None = None  # in the store; None: of the settings
    was_revoked: bool = False


def _utc_now() -> datetime:
    return datetime.now(UTC)


class KeyRing:
    """The API keys of the settings, and those of the store as far as they were told (`learn`).

    Raises ConfigError for settings that would let strangers in: beyond loopback there must be keys and a hash key of
    one's own."""

    def __init__(
        self,
        settings: ApiSettings,
        stored: Sequence[StoredKey] | None = (),
        now: Callable[[], datetime] = _utc_now,
    ) -> None:
        """Know the settings' keys and `stored`; None: it does not answer, and nobody whom only it knows comes in."""
        _check_exposure(settings, has_stored=stored is None or bool(stored))
        _check_namespaces(settings, stored)
        _check_names(settings)
        self._settings, self._now = settings, now
        self._is_local = is_loopback(settings.host)
        self.namespaces = None if stored is None else _namespaces(settings, stored)
        """Those that it began with; None where the store, which may have more, did not answer."""
        self._user_key = hashlib.blake2b(settings.user_hash_key.encode(), digest_size=32).digest()
        self._configured: dict[str, _Known] = {}
        for key in settings.keys:
            digest = key.hash or key_digest((key.key or "").encode())
            if digest in self._configured:
                raise ConfigError("settings: api.keys: the same key is listed twice")
            self._configured[digest] = _Known(self._identity(key, digest), key.expires_at)
        self._stored: dict[str, _Known] | None = None
        self.used: set[str] = set()
        """Ids of stored keys that were used since it was last emptied."""
        if stored is not None:
            self.learn(stored)
        keyless = settings.advanced.default_namespace
        buckets = _namespace_bucket(settings, keyless)
        # Who needs no key reads everything as it is.
        self._keyless = Identity(Namespace(keyless), ALL_SCOPES, buckets, shares_prefixes=True)

    def learn(self, stored: Sequence[StoredKey]) -> None:
        """Know these keys of the store from now on, and no others of it."""
        self._stored = {
            key.digest: _Known(
                self._identity(key, key.digest), key.expires_at, key.key_id, was_revoked=key.revoked_at is not None
            )
            for key in stored
        }

    def parties(self) -> list[Party]:
        """Return whom the names of the settings' keys speak for."""
        return [
            Party(key.name, key.namespace, self.user_hash(Namespace(key.namespace), key.user))
            for key in self._settings.keys
            if key.name is not None
        ]

    def _identity(self, key: ApiKey | StoredKey, digest: str) -> Identity:
        namespace = Namespace(key.namespace)
        if isinstance(key, StoredKey):
            fingerprint, user = key.key_id, key.user
        else:
            fingerprint, user = self._fingerprint(key.key or digest), self.user_hash(namespace, key.user)
        limits = _bucket(f"key:{digest}", key.requests_per_minute, key.burst)
        return Identity(
            namespace,
            ALL_SCOPES if "admin" in key.scopes else frozenset(key.scopes),
            (*limits, *_namespace_bucket(self._settings, namespace)),
            key.name or fingerprint,
            user,
            fingerprint,
            self._settings.namespaces.get(namespace, NamespaceSettings()).shares_prefixes,
        )

    def identify(self, authorization: bytes | None, api_key: bytes | None = None) -> Identity:
        """Return the identity for an `Authorization` header, or an `x-api-key` header.

        Without any keys everybody on this machine is the default namespace, whatever they send: clients that insist on
        a key may send any. Raises Unauthorized, and StoreUnavailable while the store's keys are not known."""
        if not self.is_needed:
            return self._keyless
        scheme, _, token = (authorization or b"").partition(b" ")
        if scheme.lower() != b"bearer" or not token:
            token = b"" if authorization else api_key or b""
        if not token and self._stored is not None:
            message = "send an API key: Authorization: Bearer KEY, or x-api-key: KEY"
            raise Unauthorized(message, code="missing_api_key")
        digest = key_digest(token.strip())
        known = self._configured.get(digest) or (self._stored or {}).get(digest)
        if known is None:
            if self._stored is None:
                raise StoreUnavailable("the store does not answer, which may know this API key")
            raise Unauthorized("this API key is not known", code="invalid_api_key")
        self._check_is_in_force(known)
        if known.key_id is not None:
            self.used.add(known.key_id)
        return known.identity

    def _check_is_in_force(self, known: _Known) -> None:
        if known.was_revoked:
            raise Unauthorized("this API key was revoked", code="revoked_api_key")
        if known.ends_at is not None and self._now() >= known.ends_at:
            raise Unauthorized(f"this API key ended at {known.ends_at.isoformat()}", code="expired_api_key")

    @property
    def is_needed(self) -> bool:
        """True where only who has a key is known; once the store has had one, for good."""
        has_none = not self._configured and self._stored is not None and not self._stored
        return not (has_none and self._is_local)

    @property
    def is_shared(self) -> bool:
        """True where there are keys of several namespaces."""
        known = (*self._configured.values(), *(self._stored or {}).values())
        return len({each.identity.namespace for each in known}) > 1

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


def _namespace_bucket(settings: ApiSettings, name: str) -> tuple[Bucket, ...]:
    limit = settings.namespaces.get(name)
    return () if limit is None else _bucket(f"namespace:{name}", limit.requests_per_minute, limit.burst)


def _bucket(name: str, per_minute: float | None, burst: int | None) -> tuple[Bucket, ...]:
    if per_minute is None:
        return ()
    at_once = max(1, int(per_minute)) if burst is None else burst
    return (Bucket(name=name, rate_per_s=per_minute / 60, burst=at_once),)


def _check_namespaces(settings: ApiSettings, stored: Sequence[StoredKey] | None) -> None:
    """Raise ConfigError for a namespace without a key, as far as keys are known: a misspelt name would limit nobody."""
    if stored is None:
        return
    known = _namespaces(settings, stored)
    for name in settings.namespaces:
        if name not in known:
            raise ConfigError(f"settings: api.namespaces.{name}: no API key belongs to it")


def _namespaces(settings: ApiSettings, stored: Sequence[StoredKey]) -> set[str]:
    of_keys = {key.namespace for key in settings.keys} | {str(key.namespace) for key in stored}
    return of_keys or {settings.advanced.default_namespace}


def _check_names(settings: ApiSettings) -> None:
    """Raise ConfigError for a key's name that the service uses itself or that another namespace or user has."""
    parties: dict[str, tuple[str, str | None]] = {}
    for place, key in enumerate(settings.keys):
        if key.name is None:
            continue
        if key.name in TAKEN:
            raise ConfigError(
                f"settings: api.keys.{place}.name: {key.name} is reserved for the service: choose another"
            )
        party = key.namespace, key.user
        if parties.setdefault(key.name, party) != party:
            raise ConfigError(
                f"settings: api.keys.{place}.name: {key.name} is the name of a key of another namespace or user"
            )


def _check_exposure(settings: ApiSettings, *, has_stored: bool) -> None:
    if is_loopback(settings.host):
        return
    if not settings.keys and not has_stored:
        raise ConfigError(
            f"settings: api.keys: listening on {settings.host} needs API keys: here, or by `onward keys create`"
        )
    if settings.user_hash_key == ApiSettings().user_hash_key:
        raise ConfigError(f"settings: api.user_hash_key: listening on {settings.host} needs a key of your own")


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
