"""Errors as clients expect them: in OpenAI's shape, `{"error": {"message", "type", "param", "code"}}`, or in another's.

A path whose protocol has a shape of its own says so in the request's scope, so that whatever refuses a request, be it
before or behind the route, speaks in it."""

import logging
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from core.errors import NotFinite, NotFound, OnwardError, Overloaded, RequestError, Unavailable, Unfinished
from core.secrets import redacted
from core.telemetry import REQUEST_ERRORS

logger = logging.getLogger(__name__)

ErrorShape = Callable[[int, dict[str, Any]], dict[str, Any]]
"""Makes the body of an error out of its HTTP status and `{"message", "type", "param", "code"}`."""
SHAPE = "onward.error_shape"
"""The name of the shape in a request's scope, where it is not OpenAI's."""
_MOST_SAID, _OF_ITS_END = 2000, 400  # characters of a message, which may quote what a client sent
_STATUS_CODES = {404: "no_such_route", 405: "no_such_route", 413: "body_too_large"}
_STATUS_TYPES = {404: "not_found_error", 405: "invalid_request_error", 413: "invalid_request_error"}


def describe(error: Exception) -> tuple[int, dict[str, Any]]:
    """Return (HTTP status, what to say of it) for an error.

    Any error that is not ours is a 500 that tells nothing of its inside."""
    match error:
        case RequestError():
            return error.status, _said(error.message, error.kind, error.param, code=error.code)
        case NotFinite():
            return 503, _said(str(error), "server_error", None, code="not_finite")
        case Unavailable():
            return 503, _said(redacted(str(error)), "server_error", None, code="unavailable")
        case HTTPException():
            kind = _STATUS_TYPES.get(error.status_code, "invalid_request_error")
            code = _STATUS_CODES.get(error.status_code, "malformed_request")
            return error.status_code, _said(str(error.detail), kind, None, code=code)
        case RequestValidationError():
            first = error.errors()[0]
            param = ".".join(str(part) for part in first["loc"][1:])
            return 400, _said(f"{param}: {first['msg']}", "invalid_request_error", param, code="invalid_field")
        case _:
            return 500, _said("internal error", "server_error", None, code="internal_error")


def in_openais_shape(_status: int, said: dict[str, Any]) -> dict[str, Any]:
    return {"error": said}


def shape_of(scope: MutableMapping[str, Any]) -> ErrorShape:
    shape: ErrorShape = scope.get(SHAPE, in_openais_shape)
    return shape


def error_response(error: Exception, shape: ErrorShape = in_openais_shape) -> tuple[int, bytes]:
    """Count the error and return (HTTP status, JSON)."""
    status, said = describe(error)
    REQUEST_ERRORS.labels(str(status)).inc()
    if status >= 500 and not isinstance(error, Overloaded | Unfinished):  # there may be thousands, and they are counted
        shown = error if isinstance(error, OnwardError) else type(error).__name__  # others' may quote users
        logger.error("a request failed with %d: %s", status, shown)
    return status, msgspec.json.encode(shape(status, said))


def error_headers(error: Exception) -> Mapping[str, str]:
    """Return the headers that an error of the framework or of ours adds to the content's."""
    return getattr(error, "headers", None) or {}


async def answer_error(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and error.status_code == 404:
        error = _no_such_route(request)
    status, body = error_response(error, shape_of(request.scope))
    return Response(body, status, error_headers(error), media_type="application/json")


def _no_such_route(request: Request) -> NotFound:
    """Return the error for a path that leads nowhere, which names those that clients look for."""
    generating = " and ".join(f"POST {path}" for path in request.app.generating)
    return NotFound(
        f"{request.method} {request.url.path} does not exist here; what generates is {generating}, and GET "
        "/openapi.json has all routes",
        code="no_such_route",
    )


def install_error_handlers(app: FastAPI) -> None:
    for kind in (RequestError, Unavailable, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, answer_error)


def _said(message: str, kind: str, param: str | None, *, code: str) -> dict[str, Any]:
    bounded = None if param is None else _bounded(param)
    return {"message": _bounded(message), "type": kind, "param": bounded, "code": code}


def _bounded(words: str) -> str:
    """Return words whole, or their beginning and end: what is wrong stands in one of these, and where in the other."""
    if len(words) <= _MOST_SAID:
        return words
    return f"{words[: _MOST_SAID - _OF_ITS_END]} ... {words[-_OF_ITS_END:]}"
