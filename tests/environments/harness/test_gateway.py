"""The gateway notes what became of each request: a turn, no answer, or a request that was none."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from environments.harness.harness import Endpoint
from environments.harness.others.gateway import Gateway, Seen

TURN = {"x-onward-inference-id": "turn", "x-onward-policy-version": "3"}
USED = {"usage": {"prompt_tokens": 5, "completion_tokens": 3}}
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
Ask = Callable[[aiohttp.ClientSession, str], Awaitable[int | None]]


def says(body: Any, status: int = 200, headers: dict[str, str] = TURN) -> Answer:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response(body, status=status, headers=headers)

    return answer


def refuses(status: int, code: str = "none") -> Answer:
    return says({"error": {"message": "no", "code": code}}, status, {})


async def proxy_has_no_route(_: web.Request) -> web.StreamResponse:
    return web.Response(text="404 page not found", status=404)


async def breaks_off(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers=TURN)
    await response.prepare(request)
    await response.write(b'data: {"choices": []}\n\n')
    await asyncio.sleep(0.05)
    assert request.transport is not None
    request.transport.abort()
    return response


async def fails_in_mid_stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers=TURN)
    await response.prepare(request)
    await response.write(b'data: {"choices": []}\n\n')
    await response.write(b'data: {"error": {"message": "the engine is gone", "code": "unavailable"}}\n\n')
    return response


ANSWERED = says(USED)


def seen_of(*answers: Answer, ask: Ask | None = None) -> tuple[Seen, list[int | None]]:
    """Ask through a gateway for each of the answers; return what it saw and the statuses, None where none was whole."""
    left = list(answers)

    async def upstream(request: web.Request) -> web.StreamResponse:
        return await left.pop(0)(request)

    async def run() -> tuple[Seen, list[int | None]]:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", upstream)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            async with aiohttp.ClientSession() as http:
                gateway = Gateway(Endpoint(f"http://127.0.0.1:{runner.addresses[0][1]}/v1"), {}, http)
                async with gateway.on_loopback() as url:
                    statuses = [await (ask or _asked)(http, url) for _ in answers]
            return gateway.seen, statuses
        finally:
            await runner.cleanup()

    return asyncio.run(run())


async def _asked(http: aiohttp.ClientSession, url: str) -> int | None:
    try:
        async with http.post(f"{url}/chat/completions", json={}) as answer:
            await answer.read()
            return answer.status
    except aiohttp.ClientError:
        return None


@pytest.mark.parametrize("status", [401, 403, 408, 429, 500, 503])
def test_a_service_that_refuses_for_its_own_reasons_has_not_answered(status: int) -> None:
    seen, statuses = seen_of(refuses(status), refuses(status))
    assert (seen.unanswered, seen.turns, statuses) == (2, [], [status, status])


def test_a_proxy_without_the_service_behind_it_is_no_answer() -> None:
    assert seen_of(proxy_has_no_route)[0].unanswered == 1


@pytest.mark.parametrize("answer", [refuses(400, "context_length_exceeded"), refuses(422), refuses(404), refuses(413)])
def test_a_request_that_is_the_programs_own_mistake_was_answered(answer: Answer) -> None:
    """Else a model could choose a failure of the infrastructure instead of a bad mark."""
    assert seen_of(answer)[0].unanswered == 0


@pytest.mark.parametrize(("broken", "status"), [(breaks_off, None), (fails_in_mid_stream, 200)])
def test_an_answer_that_breaks_off_is_none_but_its_turn_is_noted(broken: Answer, status: int | None) -> None:
    seen, statuses = seen_of(broken)
    assert (seen.unanswered, statuses) == (1, [status])
    assert [(turn.inference_id, turn.policy_version) for turn in seen.turns] == [("turn", 3)]


def test_a_whole_answer_makes_up_for_those_that_did_not_come() -> None:
    seen, _ = seen_of(refuses(429), breaks_off, ANSWERED)
    assert (seen.unanswered, len(seen.turns)) == (0, 2)
    assert (seen.turns[-1].prompt_tokens, seen.turns[-1].output_tokens) == (5, 3)


def test_a_program_that_hangs_up_leaves_no_request_unanswered() -> None:
    async def goes_on(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=TURN)
        await response.prepare(request)
        for _ in range(1000):
            await response.write(b"data: {}\n\n" * 1000)
            await asyncio.sleep(0.001)
        return response

    async def hangs_up(http: aiohttp.ClientSession, url: str) -> None:
        async with http.post(f"{url}/chat/completions", json={}) as answer:
            await answer.content.readany()
            answer.close()

    seen, _ = seen_of(goes_on, ask=hangs_up)
    assert (seen.unanswered, [turn.inference_id for turn in seen.turns]) == (0, ["turn"])


def test_what_an_agent_has_open_at_once_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("environments.harness.others.gateway._AT_ONCE", 2)
    monkeypatch.setattr("environments.harness.others.gateway._MOST_CONNECTIONS", 4)
    asked, held, most = 0, 0, 0

    async def holds(request: web.Request) -> web.StreamResponse:
        nonlocal held, most
        held += 1
        most = max(most, held)
        await asyncio.sleep(0.05)
        held -= 1
        return await ANSWERED(request)

    async def asks_all_at_once(http: aiohttp.ClientSession, url: str) -> int:
        nonlocal asked
        asked += 1
        statuses = await asyncio.gather(*(_asked(http, url) for _ in range(7))) if asked == 1 else []
        return statuses.count(200)

    _, answered = seen_of(*[holds] * 7, ask=asks_all_at_once)
    assert (answered[0], most) == (4, 2)
