"""The decoding of JSON into typed bodies: a value that does not fit is a 400 that names the field."""

from codecs import BOM_UTF8
from typing import TypeVar

import msgspec

from api.http.body_shape import Raw
from core.errors import InvalidRequest

T = TypeVar("T")

_AT = " - at `$"
_KIND = "Invalid value '"
_NAMED = ("Object contains unknown field `", "Object missing required field `")


def decode_body(decoder: msgspec.json.Decoder[T], raw: Raw) -> T:
    """Decode a body. Raises InvalidRequest.

    NaN and infinities are not JSON; numbers beyond a double's range are refused."""
    try:
        return _decoded(decoder, raw)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}", code="malformed_json") from None
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply", code="malformed_json") from None


def _decoded(decoder: msgspec.json.Decoder[T], raw: Raw) -> T:
    try:
        return decoder.decode(raw)
    except msgspec.DecodeError:
        if raw[: len(BOM_UTF8)] != BOM_UTF8:
            raise
    # .NET and PowerShell begin texts so, and RFC 8259 lets it be ignored; no JSON does, so others need no look at it
    return decoder.decode(raw[len(BOM_UTF8) :])


def convert_body(given: object, kind: type[T]) -> T:
    """Return a decoded value as the type. Raises InvalidRequest as `decode_body` does."""
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None


def _invalid(text: str) -> InvalidRequest:
    """Translate msgspec's message, which quotes the client's words: it is cut at what msgspec wrote, never searched."""
    what, path = _placed(text)
    for code, words in zip(("unknown", "missing"), _NAMED, strict=True):
        if text.startswith(words):
            if not what.endswith("`"):  # what looks like a place is part of the name
                what, path = text, ""
            name = what[len(words) : -1]
            path = f"{path}.{name}" if path else name
            return InvalidRequest(f"{code} field: {path}", param=path, code=f"{code}_field")
    if what.startswith(_KIND) and path.endswith(".type"):  # of a union, which a client may know more of
        what += ", which this service does not know here: leave it out, or send what it says as text"
    return InvalidRequest(f"{path or 'the body'}: {what}", param=path or None, code="invalid_field")


def _placed(text: str) -> tuple[str, str]:
    """Return what is wrong, and where: "" for the body itself. The place comes last, and has no quotes in it."""
    what, found, place = text.rpartition(_AT)
    if not found or place.find("`") != len(place) - 1:
        return text, ""
    return what, place[:-1].removeprefix(".")
