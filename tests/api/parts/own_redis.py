"""A Redis of the tests' own, to be flushed, killed, stopped and restarted."""

import os
import signal
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from api.live_state.redis_live_state import RedisLiveState
from core.settings import RedisSettings
from deploy.services.programs import find, require
from deploy.services.redis import Redis


class OwnRedis(Redis):
    def settings(self, **changes: Any) -> RedisSettings:
        """Return settings with a fresh prefix and a long timeout, for the machine may be busy."""
        return RedisSettings(**{"url": self.url, "prefix": f"{uuid.uuid4().hex}:", "timeout_s": 5.0, **changes})

    def live_states(self, count: int = 2, forgotten_s: float = 0.0, **changes: Any) -> list[RedisLiveState]:
        chosen = self.settings(**changes)
        return [RedisLiveState(chosen, forgotten_s) for _ in range(count)]

    def flush(self) -> None:
        with redis_py.Redis.from_url(self.url) as client:
            client.flushall()

    def restart(self) -> None:
        self.kill()
        self.up()

    @contextmanager
    def hanging(self) -> Iterator[None]:
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)


@contextmanager
def own_redis(directory: Path) -> Iterator[OwnRedis]:
    if os.environ.get("ONWARD_REQUIRE_SERVICES") == "1":
        require(["redis-server"])
    elif find("redis-server") is None:
        pytest.skip("needs redis-server, a package of that name")
    server = OwnRedis(directory)
    server.up()
    try:
        yield server
    finally:
        server.kill()
