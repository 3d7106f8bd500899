"""Announcements from processes that have no event loop, such as a scorer's."""

import threading
from typing import Self

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from api.live_state.redis_live_state import changes_channel
from core.errors import ConfigError
from core.settings import RedisSettings
from core.telemetry import LIVE_STATE_FALLBACKS


class RedisAnnouncer:
    """The port's `Announcer`, with a thread of its own that sends to Redis.

    A channel that is announced again meanwhile is announced once. An announcement that Redis does not accept is
    dropped, since waiters also look by themselves."""

    def __init__(self, settings: RedisSettings) -> None:
        """Check the settings and start the thread. Raises ConfigError."""
        try:
            self._redis = redis.Redis.from_url(
                settings.url,
                socket_timeout=settings.timeout_s,
                socket_connect_timeout=settings.timeout_s,
                retry=Retry(NoBackoff(), 1),  # once more: the connection may have been cut since
            )
            self._redis.connection_pool.make_connection()  # which raises for an option of the URL that it does not know
        except (ValueError, TypeError, RedisError) as error:
            raise ConfigError(f"settings: redis.url: {error}") from error
        self._channel = changes_channel(settings)
        self._waiting: set[str] = set()
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="announcer", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def announce(self, channel: str) -> None:
        with self._changed:
            self._waiting.add(channel)
            self._changed.notify()

    def close(self) -> None:
        """Send what waits, then end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        self._redis.close()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                channels, self._waiting = self._waiting, set()
            if not channels:
                return
            for channel in sorted(channels):
                try:
                    self._redis.publish(self._channel, channel)
                except (RedisError, OSError):
                    LIVE_STATE_FALLBACKS.labels("announce", "failed").inc()
