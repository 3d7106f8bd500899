"""The answers that a client wants: what a model's renderer makes a grammar of."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

ANY_OBJECT: Final[Mapping[str, Any]] = {"type": "object"}


class WantedTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that may be called. `field` is the request's that holds the schema of its arguments."""

    name: str
    schema: Mapping[str, Any]
    field: str


class WantedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """JSON of a schema, or free text where there is none; or calls of the tools.

    `must_call` leaves calls alone; `many_calls` allows several. `field` is the request's that holds the schema, or that
    asks for calls."""

    schema: Mapping[str, Any] | None = None
    tools: tuple[WantedTool, ...] = ()
    must_call: bool = False
    many_calls: bool = True
    field: str
