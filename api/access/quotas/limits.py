"""Rate limits, with answers that say when to come back in the headers of OpenAI's API, so that its clients wait."""

import math
from collections.abc import Mapping

from api.access.identity import Identity
from api.access.low_priority import lowered
from api.http.asgi import RawHeaders
from core.errors import RateLimited
from core.events import Priority
from core.ids import Namespace
from core.ports import Allowance, Bucket, LiveState
from core.telemetry import LIMITED_REQUESTS

REQUESTS, ERRORS, TURNS = "requests", "errors", "turns"  # the names of a namespace's counts
_UNLIMITED: RawHeaders = []


class TooManyRequests(RateLimited):
    """A refusal for too many requests, with the answer's headers."""

    def __init__(self, message: str, headers: Mapping[str, str], *, code: str = "rate_limit_exceeded") -> None:
        super().__init__(message, code=code)
        self.headers = headers


async def admit(live_state: LiveState, identity: Identity, priority: Priority | None = None) -> RawHeaders:
    """Count a request and return how its limits stand, as headers of the answer. Raises TooManyRequests."""
    live_state.count(identity.namespace, REQUESTS)
    if not identity.buckets:
        return _UNLIMITED
    buckets = lowered(identity.buckets) if priority == "low" else identity.buckets
    allowances = await live_state.take(buckets)
    bucket, allowed = min(zip(buckets, allowances, strict=True), key=_tightness)
    headers = _headers(bucket, allowed)
    if allowed.wait_s > 0:
        raise _refusal(bucket, allowed, headers)
    return [(name.encode(), value.encode()) for name, value in headers.items()]


async def admit_user(live_state: LiveState, namespace: Namespace, user: str, per_minute: float) -> None:
    """Count a user's feedback. Raises TooManyRequests."""
    burst = max(1, int(per_minute))
    bucket = Bucket(name=f"user:{namespace}:{user}", rate_per_s=per_minute / 60, burst=burst)
    (allowed,) = await live_state.take((bucket,))
    if allowed.wait_s > 0:
        raise _refusal(bucket, allowed, _headers(bucket, allowed))


def _tightness(limit: tuple[Bucket, Allowance]) -> tuple[float, int]:
    return -limit[1].wait_s, limit[1].remaining


def _refusal(bucket: Bucket, allowed: Allowance, headers: dict[str, str]) -> TooManyRequests:
    whose = bucket.name.partition(":")[0]
    LIMITED_REQUESTS.labels(whose).inc()
    wait_ms = math.ceil(allowed.wait_s * 1000)
    waiting = {"retry-after": str(math.ceil(allowed.wait_s)), "retry-after-ms": str(wait_ms)}
    of = {"key": "this API key", "user": "feedback of this user"}.get(whose, "all API keys of this namespace")
    message = f"more than {bucket.rate_per_s * 60:g} requests per minute of {of}; try again in {wait_ms / 1000:g} s"
    return TooManyRequests(message, {**headers, **waiting})


def _headers(bucket: Bucket, allowed: Allowance) -> dict[str, str]:
    return {
        "x-ratelimit-limit-requests": str(bucket.burst),
        "x-ratelimit-remaining-requests": str(allowed.remaining),
        "x-ratelimit-reset-requests": _duration(allowed.full_in_s),
    }


def _duration(seconds: float) -> str:
    """Format seconds as in `6m0s`, `1.5s`, `20ms`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(seconds, 60)
    return f"{minutes:.0f}m{rest:.0f}s" if minutes else f"{rest:.3g}s"
