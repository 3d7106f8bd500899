"""What an answer of the service means for a queued request, and how long to wait before the next try."""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 60.0
_UNKNOWN = frozenset(("unknown_inference", "unknown_session", "unknown_feedback", "unknown_user"))
_FINAL = frozenset((400, 409, 413, 422))
_OF_THIS_ONE = frozenset(("another_user", "not_stored"))


@dataclass(frozen=True)
class Acknowledged:
    """The service has it."""


@dataclass(frozen=True)
class Rejected:
    """The service will never take it."""

    status: int
    why: str
    param: str | None = None
    code: str | None = None


@dataclass(frozen=True)
class Later:
    """It is to be sent again. `of_all` says that others would fare no better now; `wait_s` is the service's wish."""

    why: str
    of_all: bool = True
    wait_s: float | None = None


Verdict = Acknowledged | Rejected | Later


def verdict_on(status: int, headers: Mapping[str, str], body: bytes) -> Verdict:
    """Return what an HTTP answer means.

    A refusal counts only if it is the service's own: what a proxy or a wrong URL answers refuses nothing."""
    if 200 <= status < 300:
        return Acknowledged() if _json(body) is not None else Later(f"{status} without JSON: is it the service's URL?")
    error = _error(body)
    message = str(error.get("message")) if error else f"{status} by something that is not the service"
    param, code = (error.get("param"), error.get("code")) if error else (None, None)
    if error and _is_final(status, code):
        return Rejected(status, message, param, code)
    of_all = status < 500 or status == 503
    return Later(f"{status}: {message}", of_all, _asked_wait_s(headers))


def _is_final(status: int, code: Any) -> bool:
    """Return whether the service will never take this request: other 403s are about the key, as after an erasure."""
    return status in _FINAL or (status == 404 and code in _UNKNOWN) or (status == 403 and code in _OF_THIS_ONE)


def wait_s(failures: int) -> float:
    """Return how long to wait after so many failures in a row: at random, so that clients do not return all at once."""
    longest = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** min(failures - 1, 16))
    return random.uniform(longest / 2, longest)


def _asked_wait_s(headers: Mapping[str, str]) -> float | None:
    try:
        if "retry-after-ms" in headers:
            return float(headers["retry-after-ms"]) / 1000
        return float(headers["retry-after"])
    except (KeyError, ValueError):
        return None


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


def _error(body: bytes) -> Mapping[str, Any] | None:
    said = _json(body)
    error = said.get("error") if isinstance(said, dict) else None
    return error if isinstance(error, dict) and "message" in error else None
