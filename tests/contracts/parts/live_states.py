"""Live states for the contract; a pair is what two API replicas hold."""

import asyncio
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services import require_services

from api.live_state.beside.answers import answer_for
from api.live_state.beside.live_state import BesideLiveState
from api.live_state.memory import MemoryLiveState
from api.live_state.redis_live_state import RedisLiveState
from core.beside.line import Line
from core.beside.listener import Listener
from core.ids import InferenceId, Namespace, SessionId
from core.ports import Bucket, LiveState, TokenChain
from core.settings import RedisSettings

ACME, OTHER = Namespace("acme"), Namespace("other")
WAIT_S = 120.0
Pair = tuple[LiveState, LiveState]
Scenario = Callable[[LiveState, LiveState], Coroutine[Any, Any, None]]


def redis_settings(**changes: Any) -> RedisSettings:
    """Return settings with a fresh prefix and a long timeout, for the machine may be busy."""
    chosen = {"url": require_services().redis, "prefix": f"test-{uuid.uuid4().hex}:", "timeout_s": 60.0, **changes}
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


@asynccontextmanager
async def beside() -> AsyncIterator[tuple[MemoryLiveState, BesideLiveState]]:
    """Yield what the first of several processes of a machine has, and what another one has."""
    first, listener = MemoryLiveState(), Listener()
    answer_for(listener, first)
    with tempfile.TemporaryDirectory() as folder:
        line = Line(Path(folder) / "line.sock")
        async with first, listener.listening(Path(folder) / "line.sock"):
            async with BesideLiveState(line) as there:
                yield first, there
            await line.aclose()


@asynccontextmanager
async def both_beside() -> AsyncIterator[Pair]:
    """Yield what two processes beside the first one have."""
    first, listener = MemoryLiveState(), Listener()
    answer_for(listener, first)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "line.sock"
        lines = Line(path), Line(path)
        async with listener.listening(path):
            async with BesideLiveState(lines[0]) as here, BesideLiveState(lines[1]) as there:
                yield here, there
            for line in lines:
                await line.aclose()


ADAPTERS = {
    "memory": Adapter(in_memory),
    "redis": Adapter(in_redis),
    "beside": Adapter(beside),
    "both-beside": Adapter(both_beside),
}


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


def hears(listener: LiveState, teller: LiveState) -> Callable[[], Coroutine[Any, Any, bool]]:
    """Return whether one replica hears the other, which takes a connection of its own to Redis."""

    async def heard() -> bool:
        with listener.changes("heard") as changes:
            teller.announce("heard")
            return await changes.wait(0.1)

    return heard


def bucket(rate_per_s: float = 0.001, burst: int = 3) -> Bucket:
    return Bucket(name=uuid.uuid4().hex, rate_per_s=rate_per_s, burst=burst)
