"""Token buckets as the generic cell rate algorithm: a bucket is only the moment at which it will be full."""

import time
from collections.abc import Sequence

from api.live_state.recent import RecentlyUsed, bytes_of
from core.ports import Allowance, Bucket

_ROUNDING_S = 1e-6  # sums of times of this size are not exact


class Buckets:
    """The buckets of one process."""

    def __init__(self, max_bytes: int) -> None:
        self._full_at: RecentlyUsed[float] = RecentlyUsed(max_bytes)  # monotonic; absent: full

    def take(self, buckets: Sequence[Bucket]) -> list[Allowance]:
        now = time.monotonic()
        empty_for = [self._full_in(bucket, now) for bucket in buckets]
        waits = [wait_s(bucket, full_in_s) for bucket, full_in_s in zip(buckets, empty_for, strict=True)]
        if not any(waits):
            empty_for = [full_in + 1 / bucket.rate_per_s for bucket, full_in in zip(buckets, empty_for, strict=True)]
            for bucket, full_in_s in zip(buckets, empty_for, strict=True):
                self._full_at.put(bucket.name, now + full_in_s, bytes_of(bucket.name))
        return [allowance(*of) for of in zip(buckets, empty_for, waits, strict=True)]

    def _full_in(self, bucket: Bucket, now: float) -> float:
        """Return the seconds until the bucket is full.

        They are at most those that filling it takes: its rate may have been lower before."""
        full_in_s = (self._full_at.get(bucket.name) or now) - now
        return min(max(full_in_s, 0.0), bucket.burst / bucket.rate_per_s)


def wait_s(bucket: Bucket, full_in_s: float) -> float:
    """Return the seconds until the bucket has a token. `full_in_s` is the value before that token is taken."""
    missing_s = full_in_s - (bucket.burst - 1) / bucket.rate_per_s
    return missing_s if missing_s > _ROUNDING_S else 0.0


def allowance(bucket: Bucket, full_in_s: float, wait: float) -> Allowance:
    remaining = bucket.burst - (full_in_s - _ROUNDING_S) * bucket.rate_per_s
    return Allowance(wait_s=wait, remaining=max(0, min(int(remaining), bucket.burst)), full_in_s=full_in_s)
