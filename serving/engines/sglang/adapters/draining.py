"""Which adapters leave a server, and when: one that nobody wants is kept for requests that may still name it."""

import time
from collections.abc import Callable, Collection

from core.errors import EngineUnavailable
from core.ids import PolicyRef

_ROUTERS_LOOK_S = 2.0  # within which all of them know what serves instead
_FORGOTTEN_S = 5.0  # an engine's host asks again each round while it wants a version gone


class Draining:
    """Asked each round by an engine's host. One thread."""

    def __init__(self, patience_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        """Wait so long for requests under way, of whichever adapter."""
        self._patience_s, self._now_s = patience_s, now_s
        self._asked: dict[PolicyRef, tuple[float, float]] = {}  # first and last

    def is_over(self, version: PolicyRef, is_idle: Callable[[], bool]) -> bool:
        """Return whether a version that was asked about since a while may go."""
        now_s = self._now_s()
        first_s, last_s = self._asked.get(version, (now_s, now_s))
        if now_s - last_s > _FORGOTTEN_S:  # it was wanted again in between
            first_s = now_s
        self._asked[version] = first_s, now_s
        waited_s = now_s - first_s
        if waited_s < _ROUTERS_LOOK_S or (waited_s < self._patience_s and not is_idle()):
            return False
        del self._asked[version]
        return True

    def forget(self) -> None:
        self._asked.clear()


def leftovers(there: Collection[str], ours: Collection[str], most: int) -> list[str]:
    """Return the adapters on a server, of a host before us, that leave so that it takes one more and has `most`.

    Raises EngineUnavailable where ours alone are as many."""
    if len(set(there) & set(ours)) >= most:
        raise EngineUnavailable(f"serving.sglang.adapters.loaded is {most}, and so many adapters are in use")
    return sorted(set(there) - set(ours))[: max(0, len(there) - most + 1)]
