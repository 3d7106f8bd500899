"""Whom bytes name that are no event: a record that does not decode, or that was set aside.

An id counts as a whole value only, since a short one may stand in anybody's words; and it is of the namespace that the
bytes name, where they name one."""

from collections.abc import Container, Iterator
from itertools import chain
from typing import Any, Final

import msgspec

_SIZES: Final = {0xD9: 1, 0xDA: 2, 0xDB: 4}  # bytes of the length of a text in MessagePack, by what it begins with
_SHORT: Final = range(0xA0, 0xC0)  # what a text of less than 32 bytes begins with
_LONGEST: Final = 1024  # bytes of a text that is looked at: ids are shorter
_NAMESPACE: Final = "namespace"
_IDS: Final = ("session_id", "inference_id", "user_id")
_Fields = dict[str, msgspec.Raw]
_FORMS: Final = (
    (msgspec.msgpack.Decoder(tuple[int, _Fields] | _Fields), msgspec.msgpack.Decoder(str)),
    (msgspec.json.Decoder(tuple[int, _Fields] | _Fields), msgspec.json.Decoder(str)),
)


def names(raw: bytes, namespace: str, ids: Container[str]) -> bool:
    """Return whether bytes name one of a namespace's ids: in the fields of an event, or else as a whole value."""
    fields = _fields(raw)
    if any(name in fields for name in _IDS):
        return fields.get(_NAMESPACE, namespace) == namespace and any(fields.get(name) in ids for name in _IDS)
    spaces = set(_namespaces(raw))
    if spaces and namespace not in spaces:
        return False
    return any(text in ids for text in chain(_packed(raw), _quoted(raw)))


def _fields(raw: bytes) -> dict[str, str | None]:
    """Return those texts of an event that say whose it is, however wrong the rest of it; none of what is no event."""
    for form, text in _FORMS:
        event: Any = _decoded(form, raw)
        if event is not None:
            found: _Fields = event if isinstance(event, dict) else event[1]
            said = {name: _decoded(text, found[name]) for name in (_NAMESPACE, *_IDS) if name in found}
            return {name: each for name, each in said.items() if each is not None}
    return {}


def _decoded(decoder: Any, raw: Any) -> Any:
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _namespaces(raw: bytes) -> Iterator[str]:
    """Yield the texts after the key `namespace`."""
    key = msgspec.msgpack.encode(_NAMESPACE)
    at = raw.find(key)
    while at >= 0:
        if (text := _packed_at(raw, at + len(key))) is not None:
            yield text
        at = raw.find(key, at + 1)
    before = ("", "")
    for text in _quoted(raw):
        if before[0] == _NAMESPACE and before[1].strip() == ":":
            yield text
        before = before[1], text


def _packed(raw: bytes) -> Iterator[str]:
    """Yield what may be a text in MessagePack."""
    for at in range(len(raw)):
        if (text := _packed_at(raw, at)) is not None:
            yield text


def _packed_at(raw: bytes, at: int) -> str | None:
    head = raw[at] if at < len(raw) else 0
    if head in _SHORT:
        start, size = at + 1, head - _SHORT.start
    elif head in _SIZES:
        start = at + 1 + _SIZES[head]
        size = int.from_bytes(raw[at + 1 : start], "big")
    else:
        return None
    return _text(raw[start : start + size]) if 0 < size <= min(_LONGEST, len(raw) - start) else None


def _quoted(raw: bytes) -> Iterator[str]:
    """Yield what stands between a quotation mark and the next, as texts in JSON do, and what is between these."""
    parts: list[bytes] = []
    for part in raw.split(b'"')[1:-1]:
        parts.append(part)
        if (len(part) - len(part.rstrip(b"\\"))) % 2 == 0:  # the mark after it is not part of the text
            whole, parts = b'"'.join(parts), []
            text = _decoded(_FORMS[1][1], b'"' + whole + b'"') if b"\\" in whole else _text(whole)
            if text is not None:
                yield text


def _text(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None
