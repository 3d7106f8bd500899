"""People who signed in: a signed cookie says who, and the settings say what their roles may do.

A cookie goes with every request of a browser, also with those that another site's page makes. So it counts only where
the browser says that our own page asked (`Sec-Fetch-Site`, `Origin`), and browsers are told to send it for no other
(`SameSite=Strict`). Scripts cannot read it (`HttpOnly`)."""

from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Final, TypeVar

import msgspec
from itsdangerous import BadSignature, URLSafeTimedSerializer

from api.access.identity import ALL_SCOPES, Identity, KeyRing
from api.http.asgi import Headers
from core.errors import Forbidden
from core.ids import Namespace
from core.settings import RoleSettings, Scope, SignInSettings

COOKIE: Final = "onward-session"
BEGUN: Final = "onward-signin"
"""The cookie that lives from the way to the provider until the way back."""
BY: Final = "oidc:"
"""The beginning of the names of those who signed in: no key has a colon in its own."""
BEGUN_S: Final = 600.0


T = TypeVar("T")


class Session(msgspec.Struct, frozen=True):
    by: str
    roles: tuple[str, ...]


class Begun(msgspec.Struct, frozen=True):
    """What is compared when the browser comes back from the provider."""

    state: str
    nonce: str
    verifier: str


class Sessions:
    """The sessions of all replicas: a cookie holds all that there is of one."""

    def __init__(self, settings: SignInSettings, keys: KeyRing) -> None:
        self._settings, self._keys = settings, keys
        self._is_secure = settings.public_url.startswith("https:")

    @property
    def are_on(self) -> bool:
        return self._settings.issuer is not None

    def identify(self, headers: Headers, *, changes: bool) -> Identity | None:
        """Return who is signed in, or None. Raises Forbidden where it is not our own page that wants a change."""
        if not self.are_on or b"authorization" in headers or b"x-api-key" in headers:
            return None
        session = self._read(headers, COOKIE, Session, self._settings.session_s)
        if session is None:
            return None
        is_own = _is_of_own_page(headers)
        if changes and not is_own:
            raise Forbidden(
                "this request changes something by a session, and does not say that the console sent it",
                param="origin",
                code="origin_not_allowed",
            )
        return self._identity(session) if is_own or b"sec-fetch-site" not in headers else None

    def _identity(self, session: Session) -> Identity | None:
        roles = [self._settings.roles[name] for name in session.roles if name in self._settings.roles]
        if not roles:
            return None
        namespace = Namespace(roles[0].namespace)
        return Identity(namespace, scopes_of(roles), self._keys.limits_of(namespace), session.by, None, "oidc")

    def begun(self, headers: Headers) -> Begun | None:
        return self._read(headers, BEGUN, Begun, BEGUN_S)

    def cookie_of(self, session: Session) -> str:
        return self._cookie(COOKIE, self._signed(session, COOKIE), self._settings.session_s, "Strict", "/")

    def cookie_of_begun(self, begun: Begun) -> str:
        """`Lax`: it must come back with a way that the provider's page leads."""
        return self._cookie(BEGUN, self._signed(begun, BEGUN), BEGUN_S, "Lax", "/signin")

    def without(self, name: str) -> str:
        """Return the header that makes a browser forget a cookie."""
        return self._cookie(name, "", 0, "Strict", "/" if name == COOKIE else "/signin")

    def _cookie(self, name: str, value: str, life_s: float, same_site: str, path: str) -> str:
        parts = [f"{name}={value}", f"Path={path}", f"Max-Age={life_s:.0f}", "HttpOnly", f"SameSite={same_site}"]
        return "; ".join([*parts, *(["Secure"] if self._is_secure else [])])

    def _signed(self, content: msgspec.Struct, salt: str) -> str:
        return str(self._serializer(salt).dumps(msgspec.to_builtins(content)))

    def _read(self, headers: Headers, name: str, kind: type[T], life_s: float) -> T | None:
        text = _cookies(headers).get(name)
        if text is None:
            return None
        try:
            return msgspec.convert(self._serializer(name).loads(text, max_age=int(life_s)), kind)
        except (BadSignature, msgspec.ValidationError):  # forged, too old, or of another build
            return None

    def _serializer(self, salt: str) -> URLSafeTimedSerializer:
        return URLSafeTimedSerializer(self._settings.session_key, salt=salt)


def scopes_of(roles: list[RoleSettings]) -> frozenset[Scope]:
    found = frozenset(scope for role in roles for scope in role.scopes)
    return ALL_SCOPES if "admin" in found else found


def _is_of_own_page(headers: Headers) -> bool:
    site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
    if site is not None:
        return site == b"same-origin"
    return origin is not None and origin.partition(b"://")[2] == headers.get(b"host")


def _cookies(headers: Headers) -> Mapping[str, str]:
    try:
        return {name: each.value for name, each in SimpleCookie(headers.get(b"cookie", b"").decode("latin-1")).items()}
    except CookieError:
        return {}
