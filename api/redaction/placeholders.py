"""Placeholders: what stands in a value's place, the same wherever the same speaker says the same.

`<EMAIL_k3x7qa>` is a kind and a tag, the keyed hash of namespace, speaker and value. So it needs no memory that a
restart, another replica or a shortened history would lose; nobody without the service's key can tell what stands behind
it, or make one that stands for something; and two speakers who say the same have different ones. The same value in two
sessions of one speaker has one placeholder: their sessions are known to be one person's in any case."""

import base64
import hashlib
from collections.abc import Mapping
from typing import Final

from api.redaction.findings import KINDS, Kind

_ALPHABET: Final = frozenset("abcdefghijklmnopqrstuvwxyz234567")
_TAG_CHARACTERS: Final = 6
LONGEST: Final = max(map(len, KINDS)) + len("<_>") + _TAG_CHARACTERS


class Scope:
    """Who speaks, as far as placeholders are concerned."""

    def __init__(self, key: bytes, namespace: str, speaker: str | None) -> None:
        subject = f"{namespace}\0{speaker or ''}".encode()
        self._key = hashlib.blake2b(subject, key=key, digest_size=32, person=b"placeholders").digest()

    def placeholder(self, kind: Kind, value: str) -> str:
        digest = hashlib.blake2b(value.encode(errors="surrogatepass"), key=self._key, digest_size=5).digest()
        return f"<{kind}_{base64.b32encode(digest)[:_TAG_CHARACTERS].decode().lower()}>"


def spans(text: str) -> list[tuple[int, int]]:
    """Return where a text has what looks like a placeholder, whoever made it."""
    found: list[tuple[int, int]] = []
    start = text.find("<")
    while start >= 0:
        end = text.find(">", start, start + LONGEST) + 1
        if end and _is_whole(text[start + 1 : end - 1]):
            found.append((start, end))
        start = text.find("<", start + 1)
    return found


def restored(text: str, values: Mapping[str, str]) -> str:
    """Return the text with the values of the placeholders that are known; others stay."""
    if not values:
        return text
    parts: list[str] = []
    end = 0
    for start, after in spans(text):
        placeholder = text[start:after]
        parts += text[end:start], values.get(placeholder, placeholder)
        end = after
    return "".join([*parts, text[end:]])


def _is_whole(inner: str) -> bool:
    kind, _, tag = inner.partition("_")
    return kind in KINDS and len(tag) == _TAG_CHARACTERS and _ALPHABET.issuperset(tag)


def _may_begin(text: str) -> bool:
    """Return whether a text may be the beginning of a placeholder."""
    kind, has_tag, tag = text[1:].partition("_")
    if not has_tag:
        return any(each.startswith(kind) for each in KINDS)
    return kind in KINDS and len(tag) <= _TAG_CHARACTERS and _ALPHABET.issuperset(tag)


class Restorer:
    """Puts values back into a text that comes in parts, also where a placeholder comes in several."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values
        self._held = ""

    def feed(self, text: str) -> str:
        """Return what can be said by now; what may be the beginning of a placeholder is held back."""
        text = self._held + text
        start = text.rfind("<", max(len(text) - LONGEST + 1, 0))
        self._held = text[start:] if start >= 0 and _may_begin(text[start:]) else ""
        return restored(text[: len(text) - len(self._held)], self._values)

    def finish(self) -> str:
        """Return what was held back, as no more will come."""
        held, self._held = self._held, ""
        return restored(held, self._values)
