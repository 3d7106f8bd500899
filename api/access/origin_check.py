"""The check of every request before any route, key or body: web pages that may not use this API are refused.

A browser lets any page send requests to any address, a developer's own machine among them. It says in `Origin` and
`Sec-Fetch-Site` whose page it was, and in `Host` by which name the page knew us. Programs other than browsers send
neither `Origin` nor `Sec-Fetch-Site`."""

import ipaddress
from collections.abc import Callable
from functools import lru_cache

from api.access.identity import is_loopback
from api.http.asgi import Message, Receive, Scope, Send, send_error
from api.http.errors import shape_of
from core.errors import Forbidden, RequestError, UnsupportedMediaType
from core.settings import ApiSettings

_SAFE = frozenset(("GET", "HEAD", "OPTIONS"))
_ELSEWHERE = frozenset((b"same-site", b"cross-site"))
_KEPT_S = b"600"
_JSON = b"application/json"
_PROTOBUF = b"application/x-protobuf"
_EXPORTS = frozenset(("/v1/logs", "/v1/traces"))  # of OpenTelemetry
_POLICY_VIOLATION = 1008  # of RFC 6455


class OriginCheck:
    def __init__(self, settings: ApiSettings) -> None:
        self._is_ours: Callable[[bytes], bool] = lru_cache(maxsize=256)(_host_check(settings))
        self._origins = frozenset(origin.encode() for origin in settings.web.allowed_origins)

    async def admit(self, scope: Scope, receive: Receive, send: Send) -> Send | None:
        """Return the function that sends the answer, or None if the request has been answered."""
        headers = dict(scope["headers"])
        is_http = scope["type"] == "http"
        try:
            self._check_host(headers)
            origin = self._check_origin(headers, changes=not is_http or scope["method"] not in _SAFE)
            if is_http:
                _check_content(scope["method"], scope["path"], headers)
        except RequestError as error:
            if is_http:
                await send_error(send, error, shape_of(scope))
            else:
                await receive()
                await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": error.message})
            return None
        if origin is None:
            return send
        if is_http and scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            await send({"type": "http.response.start", "status": 204, "headers": _preflight(origin, headers)})
            await send({"type": "http.response.body", "body": b""})
            return None
        return _shared(send, origin)

    def _check_host(self, headers: dict[bytes, bytes]) -> None:
        """Raise Forbidden for a foreign host: a page whose name resolves to this machine would else have our origin."""
        host = headers.get(b"host")
        if host is not None and not self._is_ours(host):
            name = host.decode("latin-1")
            raise Forbidden(f"host: {name!r} is not among api.web.allowed_hosts", param="host", code="host_not_allowed")

    def _check_origin(self, headers: dict[bytes, bytes], *, changes: bool) -> bytes | None:
        """Return the other origin whose page sent the request, or None if it is ours or no page. Raises Forbidden."""
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
        if origin is None:
            if changes and site in _ELSEWHERE:
                raise _foreign("of another site")
            return None
        if site == b"same-origin" or (site is None and origin.partition(b"://")[2] == headers.get(b"host")):
            return None
        if origin not in self._origins:
            raise _foreign(repr(origin.decode("latin-1")))
        return origin


def _host_check(settings: ApiSettings) -> Callable[[bytes], bool]:
    """Return the check whether a host is ours.

    Names are checked only where the server listens on loopback alone, or where some are given. Addresses always
    pass, since nobody else's name server can make them lead here."""
    names = {"localhost", settings.host, *settings.web.allowed_hosts}
    checked = is_loopback(settings.host) or bool(settings.web.allowed_hosts)

    def is_ours(host: bytes) -> bool:
        name = host.decode("latin-1").lower()
        name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
        return not checked or name in names or _is_address(name)

    return is_ours


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _foreign(whose: str) -> Forbidden:
    return Forbidden(
        f"origin: a page {whose} may not use this API; add its origin to api.web.allowed_origins if it should",
        param="origin",
        code="origin_not_allowed",
    )


def _check_content(method: str, path: str, headers: dict[bytes, bytes]) -> None:
    """Raise UnsupportedMediaType for anything but JSON, since pages may send other types without a preflight.

    Protobuf, which they may not, is for the paths that read it."""
    kind = headers.get(b"content-type")
    if kind == _JSON or method in _SAFE:
        return
    if headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers:
        return
    media = (kind or b"").partition(b";")[0].strip().lower()
    if media == _PROTOBUF and path in _EXPORTS:
        return
    if media != _JSON and not (media.startswith(b"application/") and media.endswith(b"+json")):
        raise UnsupportedMediaType(
            "send JSON: Content-Type: application/json", param="content-type", code="unsupported_media_type"
        )


def _preflight(origin: bytes, headers: dict[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    answer = [
        (b"access-control-allow-origin", origin),
        (b"access-control-allow-methods", b"GET, POST, DELETE"),
        (b"access-control-max-age", _KEPT_S),
        (b"vary", b"origin"),
    ]
    wanted = headers.get(b"access-control-request-headers")
    if wanted is not None:
        answer.append((b"access-control-allow-headers", wanted))
    if headers.get(b"access-control-request-private-network") == b"true":
        answer.append((b"access-control-allow-private-network", b"true"))
    return answer


def _shared(send: Send, origin: bytes) -> Send:
    """Let pages of `origin` read the answer, but never with credentials: a page sends its key as a header."""
    added = [(b"access-control-allow-origin", origin), (b"access-control-expose-headers", b"*"), (b"vary", b"origin")]

    async def sharing(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *added]}
        await send(message)

    return sharing
