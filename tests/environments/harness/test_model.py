"""A service that is busy is waited for, and one that is away is waited for as long as patience lasts."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from environments.errors import InfrastructureFailure
from environments.harness.harness import Endpoint
from environments.harness.model import Answer, Model

Reply = Callable[[web.Request], Awaitable[web.Response]]
ASKED = [{"role": "user", "content": "Hello"}]
PATIENCE_S = 0.2
HELD_S = 0.3  # longer than patience, and longer than any pause between two tries here
TRIED_S = 0.01  # of a request that fails at once


class Clock:
    """The time that requests take, which the replies tell: patience is shorter than a pause of a busy machine."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


CLOCK = web.AppKey("clock", Clock)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("environments.harness.model.time", clock)
    return clock


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("environments.harness.model._FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr("environments.harness.model._LONGEST_PAUSE_SECONDS", 0.02)


async def fails(request: web.Request) -> web.Response:
    request.app[CLOCK].now += TRIED_S
    return web.json_response({"error": {"message": "an engine is missing", "code": "unavailable"}}, status=503)


async def holds_and_fails(request: web.Request) -> web.Response:
    request.app[CLOCK].now += HELD_S
    return await fails(request)


async def holds_and_is_lost(request: web.Request) -> web.Response:
    request.app[CLOCK].now += HELD_S
    assert request.transport is not None
    request.transport.abort()
    return await fails(request)


async def says_nothing(request: web.Request) -> web.Response:
    request.app[CLOCK].now += HELD_S
    await asyncio.sleep(60)
    return await fails(request)


async def is_a_proxy_that_waited_in_vain(request: web.Request) -> web.Response:
    request.app[CLOCK].now += HELD_S
    return web.Response(text="Gateway Time-out", status=504)


async def is_a_proxy_without_a_service(_: web.Request) -> web.Response:
    return web.Response(text="Service Unavailable", status=503, headers={"retry-after": "1"})


async def answers(_: web.Request) -> web.Response:
    message = {"role": "assistant", "content": "Hi."}
    return web.json_response(
        {
            "choices": [{"message": message, "finish_reason": "stop"}],
            "onward": {"inference_id": "i", "policy_version": 1},
            "usage": {"prompt_tokens": 1, "completion_tokens": 1},
        }
    )


@asynccontextmanager
async def replying(clock: Clock, *replies: Reply) -> AsyncIterator[str]:
    """Serve one reply after another, and the last of them for ever."""
    left, app = list(replies), web.Application()
    app[CLOCK] = clock

    async def reply(request: web.Request) -> web.Response:
        return await (left.pop(0) if len(left) > 1 else left[0])(request)

    app.router.add_post("/v1/chat/completions", reply)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


async def ask(endpoint: Endpoint, headers: dict[str, str] | None = None) -> Answer:
    async with aiohttp.ClientSession() as http:
        asked = Model(endpoint, http, headers or {}, PATIENCE_S).answer(ASKED, max_tokens=8)
        return await asyncio.wait_for(asked, 120)


@pytest.mark.parametrize(
    "replies",
    [(holds_and_fails,), (holds_and_is_lost,), (fails, holds_and_fails, fails, holds_and_is_lost, fails)],
)
def test_a_request_that_was_held_takes_nothing_of_the_patience(replies: tuple[Reply, ...], clock: Clock) -> None:
    async def test() -> None:
        async with replying(clock, *replies, answers) as url:
            assert (await ask(Endpoint(url))).text == "Hi."

    asyncio.run(test())


@pytest.mark.parametrize("reply", [fails, says_nothing, is_a_proxy_that_waited_in_vain, is_a_proxy_without_a_service])
def test_a_service_that_stays_away_has_failed(reply: Reply, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("environments.harness.model._SILENT_SECONDS", HELD_S)

    async def test() -> None:
        async with replying(clock, reply) as url:
            with pytest.raises(InfrastructureFailure, match="service: "):
                await ask(Endpoint(url))

    asyncio.run(test())
