"""Grammars are compiled a caller at a time: nobody waits for another's flood, and no schema is blamed for waiting."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from urllib.parse import urlsplit

import pytest
from api_harness import MODEL, Service, wait_for

from api.access.identity import Identity
from api.turns import grammars
from core.errors import InvalidRequest, Overloaded
from core.events import Grammar
from core.grammars.wanted import ANY_OBJECT, WantedAnswer
from core.ids import Namespace

WANTED = WantedAnswer(schema=ANY_OBJECT, tools=(), must_call=False, many_calls=False, field="response_format")
FIRST, SECOND = Identity(Namespace("n"), frozenset(), key_id="first"), Identity(Namespace("n"), frozenset(), key_id="b")


class HeldRenderer:
    """Compiles nothing before it is let go."""

    def __init__(self) -> None:
        self.begun = 0
        self.go = threading.Event()

    def grammar(self, wanted: WantedAnswer, after: Sequence[int], scope: str | None = None) -> Grammar:
        self.begun += 1
        assert self.go.wait(120)
        return Grammar(text="held")


class QuickRenderer:
    def grammar(self, wanted: WantedAnswer, after: Sequence[int], scope: str | None = None) -> Grammar:
        return Grammar(text="quick")


async def asked(renderer: HeldRenderer | QuickRenderer, identity: Identity) -> Grammar:
    return await grammars.grammar_of(renderer, WANTED, (1,), identity, "scope")  # type: ignore[arg-type]  # no more is asked


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110  # the condition belongs to another thread
            await asyncio.sleep(0.002)


@asynccontextmanager
async def flood(
    count: int, identity: Identity = FIRST
) -> AsyncIterator[tuple[HeldRenderer, list[asyncio.Task[Grammar]]]]:
    """`count` requests of one caller that wait, until the block is left, for a compilation that does not end."""
    renderer = HeldRenderer()
    tasks = [asyncio.create_task(asked(renderer, identity)) for _ in range(count)]
    try:
        await until(lambda: renderer.begun > 0)
        yield renderer, tasks
    finally:
        renderer.go.set()
        await asyncio.gather(*tasks, return_exceptions=True)


def test_a_flood_of_one_caller_keeps_no_other_waiting() -> None:
    async def run() -> None:
        async with flood(50) as (renderer, tasks):
            assert (await asked(QuickRenderer(), SECOND)).text == "quick"
            assert renderer.begun == 1
            assert not any(task.done() for task in tasks)
        assert [task.result().text for task in tasks] == ["held"] * 50
        assert not grammars._lines

    asyncio.run(run())


def test_a_line_that_is_too_long_is_refused_to_its_caller_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "_LONGEST_LINE", 3)

    async def run() -> None:
        async with flood(3):
            with pytest.raises(Overloaded) as refused:
                await asked(QuickRenderer(), FIRST)
            assert refused.value.headers == {"retry-after": "5"}
            assert (await asked(QuickRenderer(), SECOND)).text == "quick"
        assert (await asked(QuickRenderer(), FIRST)).text == "quick"

    asyncio.run(run())


def test_no_schema_is_blamed_for_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither behind its caller's own, nor behind those of others."""

    async def run() -> None:
        async with flood(1), flood(1, SECOND):
            monkeypatch.setattr(grammars, "_LONGEST_WAIT_S", 0.01)
            for identity in (FIRST, Identity(Namespace("m"), frozenset())):
                with pytest.raises(Overloaded):
                    await asked(QuickRenderer(), identity)

    asyncio.run(run())


def test_a_schema_that_takes_too_long_itself_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "_LONGEST_S", 0.01)

    async def run() -> None:
        async with flood(1) as (_, (task,)):
            with pytest.raises(InvalidRequest) as refused:
                await task
            assert (refused.value.param, refused.value.code) == ("response_format", "grammar_too_complex")

        await until(lambda: not grammars._lines)

    asyncio.run(run())


def test_a_loop_that_ends_first_leaves_no_line() -> None:
    renderer = HeldRenderer()

    async def run() -> None:
        task = asyncio.create_task(asked(renderer, FIRST))
        await until(lambda: renderer.begun > 0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    renderer.go.set()
    asyncio.run(until(lambda: not grammars._lines))


def test_whoever_leaves_leaves_the_line() -> None:
    async def run() -> None:
        async with flood(1), flood(1, SECOND):
            left = HeldRenderer()
            gone = asyncio.create_task(asked(left, Identity(Namespace("m"), frozenset())))
            await asyncio.sleep(0)
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
        assert (await asked(QuickRenderer(), FIRST)).text == "quick"
        assert (left.begun, grammars._lines) == (0, {})

    asyncio.run(run())


def test_whoever_hangs_up_again_and_again_has_one_grammar_compiled_at_a_time() -> None:
    """What has begun cannot be ended, so its caller waits for it: else two hang-ups would take both processes."""

    async def run() -> None:
        async with flood(1) as (first, (task,)):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            again = HeldRenderer()
            waiting = asyncio.create_task(asked(again, FIRST))
            await asyncio.sleep(0.05)
            assert (again.begun, waiting.done()) == (0, False)
            assert (await asked(QuickRenderer(), SECOND)).text == "quick"
            first.go.set()
            again.go.set()
            assert (await waiting).text == "held"
        await until(lambda: not grammars._lines)

    asyncio.run(run())


def test_a_client_that_hangs_up_leaves_the_line(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else whoever asks and goes, again and again, has all of it compiled for nobody."""
    held = HeldRenderer()
    monkeypatch.setattr(service.services.renderer, "grammar", held.grammar, raising=False)
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "response_format": {"type": "json_object"}}

    def in_line(count: int) -> bool:
        return sum(line.length for line in grammars._lines.values()) == count

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(service.http.post, "/v1/chat/completions", json=body)
        try:
            wait_for(lambda: held.begun == 1, "a grammar that is compiled")
            with sent(service, body):
                wait_for(lambda: in_line(2), "one that waits for it")
            wait_for(lambda: in_line(1), "its leave")
            assert not first.done()
        finally:
            held.go.set()
    assert held.begun == 1
    wait_for(lambda: in_line(0), "the end of the line")


@contextmanager
def sent(service: Service, body: object) -> Iterator[None]:
    """Have a client ask, who hangs up at the end of the block."""
    raw = json.dumps(body).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", urlsplit(service.url).port)) as client:
        client.sendall(f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw)
        yield
