"""Live states for the contract; a pair is what two API replicas hold."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from services import require_services

from api.live_state.memory import MemoryLiveState
from api.live_state.redis_live_state import RedisLiveState
from core.ids import InferenceId, Namespace, SessionId
from core.ports import Bucket, LiveState, TokenChain
from core.settings import RedisSettings

ACME, OTHER = Namespace("acme"), Namespace("other")
WAIT_S = 60.0
Pair = tuple[LiveState, LiveState]
Scenario = Callable[[LiveState, LiveState], Coroutine[Any, Any, None]]


def redis_settings(**changes: Any) -> RedisSettings:
    """Return settings with a fresh prefix and a long timeout, for the machine may be busy."""
    chosen = {"url": require_services().redis, "prefix": f"test-{uuid.uuid4().hex}:", "timeout_s": 5.0, **changes}
    return RedisSettings(**chosen)


@dataclass(frozen=True)
class Adapter:
    pair: Callable[[], Any]

    def run(self, scenario: Scenario) -> None:
        async def work() -> None:
            async with self.pair() as (here, there):
                await scenario(here, there)

        asyncio.run(work())


@asynccontextmanager
async def in_memory() -> AsyncIterator[Pair]:
    """Yield a pair of one state, which all replicas of one process share."""
    async with MemoryLiveState() as state:
        yield state, state


@asynccontextmanager
async def in_redis(chosen: RedisSettings | None = None) -> AsyncIterator[tuple[RedisLiveState, RedisLiveState]]:
    chosen = chosen or redis_settings()
    async with RedisLiveState(chosen, forgotten_s=0) as here, RedisLiveState(chosen, forgotten_s=0) as there:
        yield here, there


ADAPTERS = {"memory": Adapter(in_memory), "redis": Adapter(in_redis)}


def chain(number: int = 1, token_ids: tuple[int, ...] = (1, 2, 3)) -> TokenChain:
    return TokenChain(
        inference_id=InferenceId(f"i{number}"),
        session_id=SessionId(f"s{number}"),
        turn_index=number,
        num_messages=2,
        token_ids=token_ids,
    )


async def until(condition: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not await condition():  # noqa: ASYNC110 - what changes is in another process
            await asyncio.sleep(0.005)


def bucket(rate_per_s: float = 0.001, burst: int = 3) -> Bucket:
    return Bucket(name=uuid.uuid4().hex, rate_per_s=rate_per_s, burst=burst)
