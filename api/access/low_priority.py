"""Requests of low priority: nobody waits for them, so they never take the last places.

Any key may lower its own requests, by the header `x-onward-priority: low` or, where the protocol has it, by OpenAI's
`service_tier: flex`. The header alone is known before the body is read, and so to the limits of a key."""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from api.http.asgi import Headers, header_text
from core.errors import InvalidRequest, Overloaded
from core.events import Priority
from core.ports import Bucket
from core.settings import LowPrioritySettings
from core.telemetry import LOW_PRIORITY_REFUSED, LOW_PRIORITY_UNDER_WAY

FLEX = "flex"  # https://platform.openai.com/docs/guides/flex-processing
_NAME = "x-onward-priority"
_OF_THE_LATEST = 0.1  # its weight in the mean of how long places are held


def header_priority(headers: Headers) -> Priority | None:
    """Return the priority that a request's header names; None where it names none."""
    match header_text(headers, _NAME.encode()):
        case None:
            return None
        case "low":
            return "low"
        case "normal":
            return "normal"
        case _:
            raise InvalidRequest(f"{_NAME}: must be low or normal", param=_NAME)


def priority_of(headers: Headers, service_tier: str | None) -> Priority:
    """Return a request's priority; either way of lowering it is enough."""
    return "low" if service_tier == FLEX or header_priority(headers) == "low" else "normal"


def tier_of(priority: Priority) -> str:
    """Return OpenAI's name for what a request was served as."""
    return FLEX if priority == "low" else "default"


def lowered(buckets: Sequence[Bucket]) -> list[Bucket]:
    """Return rate limits as requests of low priority meet them: they leave half of what fits to all others.

    Both draw on one bucket; a smaller one only counts as empty sooner."""
    return [
        Bucket(name=bucket.name, rate_per_s=bucket.rate_per_s, burst=max(1, bucket.burst // 2)) for bucket in buckets
    ]


class LowPlaces:
    """The places for requests of low priority in one process. One event loop."""

    def __init__(self, settings: LowPrioritySettings) -> None:
        self._most, self._retry_after_s = settings.at_once, settings.retry_after_s
        self._taken = 0
        self._held_s: float | None = None  # for how long places are held, about

    @contextmanager
    def take(self, count: int) -> Iterator[None]:
        """Take a place for each choice of a request.

        Raises Overloaded, which says when to try again, and InvalidRequest where there are never so many places."""
        if 0 < self._most < count:
            raise InvalidRequest(
                f"n: {count} answers at once are more than the {self._most} places for low priority", param="n"
            )
        if self._taken + count > self._most:
            LOW_PRIORITY_REFUSED.inc()
            raise Overloaded(
                f"as many answers of low priority are under way as may be at once ({self._most}); try again later",
                self._free_in_s(count),
            )
        self._add(count)
        began_s = time.monotonic()
        try:
            yield
        finally:
            self._add(-count)
            self._note(time.monotonic() - began_s)

    def _free_in_s(self, count: int) -> int:
        """Return in how many seconds so many places are free, by how long they are held; at least what is set."""
        if self._held_s is None or not self._most:
            return self._retry_after_s
        return max(self._retry_after_s, math.ceil(self._held_s * count / self._most))

    def _note(self, held_s: float) -> None:
        before_s = held_s if self._held_s is None else self._held_s
        self._held_s = before_s + _OF_THE_LATEST * (held_s - before_s)

    def _add(self, count: int) -> None:
        self._taken += count
        LOW_PRIORITY_UNDER_WAY.set(self._taken)
