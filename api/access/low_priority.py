"""Requests of low priority: nobody waits for them, so they never take the last places.

Any key may lower its own requests, by the header `x-onward-priority: low` or, where the protocol has it, by OpenAI's
`service_tier: flex`. The header alone is known before the body is read, and so to the limits of a key."""

import math
import time
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager

from api.http.asgi import Headers, header_text
from core.errors import InvalidRequest, Overloaded
from core.events import Priority
from core.ports import Bucket
from core.settings import LowPrioritySettings
from core.telemetry import LOW_PRIORITY_REFUSED, LOW_PRIORITY_UNDER_WAY

FLEX = "flex"  # https://platform.openai.com/docs/guides/flex-processing
_NAME = "x-onward-priority"
_OF_A_KEY = 0.75  # of the places, where there are enough of them: others' work is of low priority, too
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
        self._most_of_key = math.ceil(_OF_A_KEY * settings.at_once)
        self._taken = 0
        self._of_key: Counter[Hashable] = Counter()
        self._held_s: float | None = None  # for how long places are held, about

    @contextmanager
    def take(self, count: int, key: Hashable = None) -> Iterator[None]:
        """Take a place for each choice of a request, which was sent with this key; None: there are no keys.

        Raises Overloaded, which says when to try again, and InvalidRequest where there are never so many places."""
        most = self._most if key is None else self._most_of_key
        if 0 < most < count:
            raise InvalidRequest(
                f"n: {count} answers at once are more than the {most} places for low priority", param="n"
            )
        if self._taken + count > self._most:
            raise self._refused(count, f"are under way as may be at once ({self._most})")
        if self._of_key[key] + count > most:
            raise self._refused(count, f"of this key are under way as may be of one at once ({most})")
        self._add(key, count)
        began_s = time.monotonic()
        try:
            yield
        finally:
            self._add(key, -count)
            self._note(time.monotonic() - began_s)

    def _refused(self, count: int, which: str) -> Overloaded:
        LOW_PRIORITY_REFUSED.inc()
        return Overloaded(f"as many answers of low priority {which}; try again later", self._free_in_s(count))

    def _free_in_s(self, count: int) -> int:
        """Return in how many seconds so many places are free, by how long they are held; at least what is set."""
        if self._held_s is None or not self._most:
            return self._retry_after_s
        return max(self._retry_after_s, math.ceil(self._held_s * count / self._most))

    def _note(self, held_s: float) -> None:
        before_s = held_s if self._held_s is None else self._held_s
        self._held_s = before_s + _OF_THE_LATEST * (held_s - before_s)

    def _add(self, key: Hashable, count: int) -> None:
        self._taken += count
        self._of_key[key] += count
        if not self._of_key[key]:
            del self._of_key[key]
        LOW_PRIORITY_UNDER_WAY.set(self._taken)
