"""Secrets that this process knows, kept out of what it says: log lines, errors, states, reports."""

from collections.abc import Iterable
from typing import Final

import re2

SHOWN: Final = "***"
_LEAST: Final = 8
"""Characters: what is shorter may be an ordinary word, of which the rest of a line would not be readable."""
_known: set[str] = set()
_IN_URL: Final = re2.compile(r"(://[^\s/@:]*):[^\s/@]+@")
_BY_NAME: Final = re2.compile(r"(?i)\b(password|passwd|sslpassword)=('[^']*'|[^\s&;,'\")]+)")
_BEARER: Final = re2.compile(r"(?i)\bBearer\s+[!-~]+")


def keep(secrets: Iterable[str]) -> None:
    """Remember secrets: from now on `redacted` hides them."""
    _known.update(secret for secret in secrets if len(secret) >= _LEAST)


def redacted(text: str) -> str:
    """Return the text without known secrets, passwords of URLs and of libpq's conninfo, and bearer tokens."""
    for secret in sorted(_known, key=len, reverse=True):
        text = text.replace(secret, SHOWN)
    text = _IN_URL.sub(rf"\1:{SHOWN}@", text)
    return str(_BEARER.sub(f"Bearer {SHOWN}", _BY_NAME.sub(rf"\1={SHOWN}", text)))


def password_of(url: str) -> str | None:
    """Return the password as the URL spells it; None when it has none."""
    found = re2.search(r"://[^\s/@:]*:([^\s/@]+)@", url)
    return None if found is None else str(found[1])
