"""Secrets that this process knows, kept out of what it says: log lines, errors, states, reports."""

import string
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import quote, unquote

import re2  # type: ignore[import-untyped]

SHOWN: Final = "***"
_LEAST: Final = 8
"""Characters: what is shorter may be an ordinary word, of which the rest of a line would not be readable."""
_known: set[str] = set()
_IN_URL: Final = re2.compile(r"(://[^\s/@:]*):[^\s/@]+@")
_BY_NAME: Final = re2.compile(r"(?i)\b(password|passwd|sslpassword)=('[^']*'|[^\s&;,'\")]+)")
_BEARER: Final = re2.compile(r"(?i)\bBearer\s+([!-~]+)")
_PORT: Final = re2.compile(r"\d*(,.*)?")  # libpq takes several hosts
_OPTION: Final = re2.compile(r"\w+=")
PLACEHOLDER: Final = "KEY"  # which stands for a key where we say how one is sent


def keep(secrets: Iterable[str]) -> None:
    """Remember secrets: from now on `redacted` hides them."""
    _known.update(secret for secret in secrets if len(secret) >= _LEAST)


def redacted(text: str) -> str:
    """Return the text without known secrets, passwords of URLs and of libpq's conninfo, and bearer tokens."""
    for secret in sorted(_known, key=len, reverse=True):
        text = text.replace(secret, SHOWN)
    text = _IN_URL.sub(rf"\1:{SHOWN}@", text)
    return str(_BEARER.sub(_hidden, _BY_NAME.sub(rf"\1={SHOWN}", text)))


def _hidden(found: Any) -> str:
    return str(found[0]) if found[1].rstrip(",.;)") == PLACEHOLDER else f"Bearer {SHOWN}"


def password_of(url: str) -> str | None:
    """Return the password as the URL spells it; None when it has none.

    A user's name and password end at the last `@` before any `?` of options: a password may contain `@`, `/`, `#`, and
    `?` as well where no host with a port and options could be meant."""
    parts = _parts_of(url)
    return parts[1] or None if parts else None


def with_quoted_password(url: str) -> str:
    """Return the URL with its password as RFC 3986 has it.

    Whatever would end it is percent-encoded, and a `%` that begins no escape; escapes that are there stay."""
    parts = _parts_of(url)
    if parts is None:
        return url
    before, password, after = parts
    return before + "%".join(_pieces(password)) + after


def decoded_password_of(url: str) -> str | None:
    """Return the password that the URL means, as a server's error might spell it; None when it has none."""
    password = password_of(with_quoted_password(url))
    return None if password is None else unquote(password)


def is_ambiguous(url: str) -> bool:
    """Return whether what stands there may be a password with a `?` as well as a port, options and an `@` in these."""
    before, _, after = url.partition("://")[2].partition("?")
    return _is_open(before) and "@" in after and _has_port(before) and _OPTION.match(after) is not None


def _is_open(before: str) -> bool:
    """Return whether a password may go on behind a first `?`: neither a host nor a path has begun."""
    user, colon, _ = before.partition(":")
    return bool(colon) and "[" not in user and not set("@/#") & set(before)


def _has_port(before: str) -> bool:
    """Return whether what is before the first `?` may be a host with its port, or several of them."""
    return _PORT.fullmatch(before.partition(":")[2]) is not None


def _up_to_host(rest: str) -> str:
    """Return what is behind the scheme and before any options, in which the last `@` ends the password."""
    before, _, after = rest.partition("?")
    if "@" not in after or not _is_open(before) or (_has_port(before) and _OPTION.match(after)):
        return before
    password, at, host = after.partition("@")
    return f"{before}?{password}{at}{host.partition('?')[0]}"


def _parts_of(url: str) -> tuple[str, str, str] | None:
    """Split into what is before the password, the password, and what is after it; None if there is no password."""
    scheme, separator, rest = url.partition("://")
    info, at, _host = _up_to_host(rest).rpartition("@")
    user, colon, password = info.partition(":")
    if not (separator and at and colon) or "/" in user:
        return None
    before = scheme + separator + user + colon
    return before, password, url[len(before) + len(password) :]


def _pieces(password: str) -> list[str]:
    first, *others = password.split("%")
    quoted = [quote(first, safe="")]
    for each in others:
        is_escape = len(each) >= 2 and set(each[:2]) <= set(string.hexdigits)
        quoted.append(each[:2] + quote(each[2:], safe="") if is_escape else "25" + quote(each, safe=""))
    return quoted
