"""The names that a protocol gives to fields which are checked under OpenAI's names."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from core.errors import RequestError


@contextmanager
def named_as(places: Mapping[str, str]) -> Iterator[None]:
    """Let a RequestError of this block name the field as the client wrote it.

    `places` has, for a field of the chat that a request was translated to, its place in the request."""
    try:
        yield
    except RequestError as error:
        raise renamed(error, places) from None


def renamed(error: RequestError, places: Mapping[str, str]) -> RequestError:
    """Return the error with its field, alone and at the beginning of its message, under the client's name."""
    if error.param is None:
        return error
    ours = next((place for place in _around(error.param) if place in places), None)
    if ours is None:
        return error
    theirs = copy.copy(error)
    theirs.param = places[ours] + error.param[len(ours) :]
    if error.message.startswith(error.param):
        theirs.message = theirs.param + error.message[len(error.param) :]
    theirs.args = (theirs.message,)
    return theirs


def _around(param: str) -> Iterator[str]:
    """Yield a field's place and those that it is within, the innermost first.

    These are few; the places of a request are as many as its client sends."""
    yield param
    for end in range(len(param) - 1, -1, -1):
        if param[end] in ".[":
            yield param[:end]
