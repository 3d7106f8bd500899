"""JSON to typed bodies: what does not fit is a 400 that names the field."""

import re
from typing import TypeVar

import msgspec

from core.errors import InvalidRequest

T = TypeVar("T")

_PLACE = re.compile(r" - at `\$\.?(.*)`$", re.DOTALL)
_FIELD = re.compile(r"(?:unknown|missing required) field `(.*)`$", re.DOTALL)


def decode_body(decoder: msgspec.json.Decoder[T], raw: bytes) -> T:
    """Raises InvalidRequest. NaN and infinities are no JSON; numbers beyond a double's range are refused."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is no valid JSON: {error}", code="malformed_json") from None
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply", code="malformed_json") from None


def _invalid(text: str) -> InvalidRequest:
    place = _PLACE.search(text)
    path = place.group(1) if place else ""
    what = text[: place.start()] if place else text
    named = _FIELD.search(what)
    if named:
        path = f"{path}.{named.group(1)}" if path else named.group(1)
        if "unknown" in what:
            return InvalidRequest(f"unknown field: {path}", param=path, code="unknown_field")
        return InvalidRequest(f"missing field: {path}", param=path, code="missing_field")
    return InvalidRequest(f"{path or 'the body'}: {what}", param=path or None, code="invalid_field")
