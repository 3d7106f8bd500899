"""The parts that plain FastAPI routes share: the caller, bodies through the same strict decoder, JSON answers."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from fastapi import Request, Response

from api.access.context import ApiContext
from api.access.identity import Identity
from api.http.asgi import ClientGone
from api.http.body_shape import Raw, check_values
from api.http.decoding import decode_body
from api.http.foreign import decode_foreign
from api.requests.jobs import CheckBody
from core import codec
from core.errors import InvalidRequest, Unauthorized

T = TypeVar("T")
LARGEST_INTEGER = (1 << 63) - 1  # the largest that a store can hold
_MOST_DIGITS = 19
_encode = msgspec.json.Encoder(enc_hook=codec.plain).encode


def json_response(content: Any, status: int = 200) -> Response:
    return Response(_encode(content), status, media_type="application/json")


def identity_of(request: Request) -> Identity:
    """Return the identity that the gate let in (`api.access`)."""
    identity: Identity = request.state.identity
    return identity


def is_still_let_in(context: ApiContext, request: Request) -> bool:
    """Return whether the key of a request that the gate let in is still good: an answer may be open for days."""
    headers = dict(request.scope["headers"])
    try:
        context.keys.identify(headers.get(b"authorization"), headers.get(b"x-api-key"))
    except Unauthorized:
        return False
    return True


async def body_of(
    context: ApiContext, request: Request, decoder: msgspec.json.Decoder[T], most_values: int | None = None
) -> T:
    """Read and decode the body of an own route, which knows no query parameter: all that it takes is in the body.

    `most_values`: where the route can take no more, however small the body is. Raises TooLarge, Overloaded, or
    InvalidRequest naming the field."""
    only_parameters(request)
    return await _understood(context, request, lambda raw: decode_body(decoder, raw), most_values)


async def foreign_body_of(
    context: ApiContext, request: Request, decoder: msgspec.json.Decoder[T]
) -> tuple[T, list[str]]:
    """Read and decode a body in another's protocol; return it with the names of unknown fields. Raises as `body_of`."""
    return await _understood(context, request, lambda raw: decode_foreign(decoder, raw))


def told_ignored(names: Sequence[str]) -> dict[str, str]:
    """Return the header that names what was ignored, if anything was."""
    return {"x-onward-ignored": ",".join(names)} if names else {}


async def _understood(
    context: ApiContext, request: Request, understand: Callable[[Raw], T], most_values: int | None = None
) -> T:
    """Return what `understand` makes of the body: of a large one on a thread, once the reader's process has counted it.

    A small one is made where it is, for to go elsewhere would cost it more; of tiny values it is counted before."""
    headers = dict(request.scope["headers"])
    try:
        body = await context.bodies.read(headers, request.receive)
    except ClientGone:
        raise InvalidRequest("the body was cut off", code="malformed_request") from None
    try:
        if not context.bodies.is_large(len(body.raw)):
            if most_values is not None and len(body.raw) > most_values:
                check_values(bytes(body.raw), most_values)
            return understand(body.raw)
        values = context.services.settings.bodies.values
        most = values if most_values is None else min(values, most_values)
        await context.reader.ask(CheckBody("other", most), body.raw)
        return await context.reader.away(lambda: understand(body.raw))
    finally:
        body.release()


def digits(text: str, highest: int) -> int | None:
    """Return the number that decimal digits spell; None for anything else, or above `highest`.

    Clients' text goes through here and not through `int`, which raises for thousands of digits and reads `_` and
    spaces."""
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        return None
    number = int(text)
    return number if number <= highest else None


def whole_number(request: Request, name: str, default: int, highest: int, least: int = 0) -> int:
    """Return a query parameter as a number. Raises InvalidRequest naming it."""
    text = request.query_params.get(name)
    if text is None:
        return default
    number = digits(text, highest)
    if number is None or number < least:
        above = f"from {least} to" if least else "of at most"
        raise InvalidRequest(f"{name}: must be a whole number {above} {highest}", param=name)
    return number


def only_parameters(request: Request, *names: str) -> None:
    """Raise InvalidRequest naming a query parameter that the route does not know."""
    for name in request.query_params:
        if name not in names:
            raise InvalidRequest(f"unknown query parameter: {name}", param=name, code="unknown_field")


def json_body(schema: type, description: str) -> dict[str, Any]:
    """Describe a JSON body for a FastAPI route's `openapi_extra`."""
    return {
        "requestBody": {
            "required": True,
            "description": description,
            "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema.__name__}"}}},
        }
    }


def json_answer(schema: type, description: str) -> dict[str, Any]:
    """Describe a JSON answer for a FastAPI route's `openapi_extra`."""
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema.__name__}"}}}
    return {"responses": {"200": {"description": description, "content": content}}}
