"""The choice of turns to judge."""

import hashlib
import time
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Final, Literal

from core.events import Completion
from core.ids import InferenceId
from core.settings import JudgedTurnSettings

PassedOver = Literal["not_chosen", "no_consent", "unfinished", "too_old", "too_long", "budget"]
_MINUTE_S: Final = 60.0
_SALT: Final = b"onward judge"  # nobody else's sample


def why_not(turn: Completion, settings: JudgedTurnSettings, now: datetime) -> PassedOver | None:
    """Return why a turn is not judged; None when it is, unless it is too long or the budget is spent."""
    if turn.purpose not in settings.purposes or (settings.workloads and turn.workload not in settings.workloads):
        return "not_chosen"
    if place_of(turn.inference_id) >= settings.share:
        return "not_chosen"
    if not turn.learn:
        return "no_consent"
    if turn.finish_reason in ("abort", "error"):
        return "unfinished"
    if (now - turn.received_at).total_seconds() > settings.max_age_s:
        return "too_old"
    return None


def place_of(inference_id: InferenceId) -> float:
    """Return a number in [0, 1) for an id, evenly distributed, and always the same."""
    digest = hashlib.blake2b(inference_id.encode(), digest_size=8, key=_SALT).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53


class RequestBudget:
    """A budget of requests in any minute."""

    def __init__(self, per_minute: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._per_minute, self._monotonic = per_minute, monotonic
        self._taken: deque[float] = deque()

    def take(self) -> bool:
        now_s = self._monotonic()
        while self._taken and self._taken[0] <= now_s - _MINUTE_S:
            self._taken.popleft()
        if len(self._taken) >= self._per_minute:
            return False
        self._taken.append(now_s)
        return True
