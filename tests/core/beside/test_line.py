"""The line between processes of one machine: what is asked, what is streamed, and what is lost."""

import asyncio
import stat
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.beside.faults import FailedThere
from core.beside.line import Line, Lost, greeting
from core.beside.listener import Listener
from core.beside.wire import LARGEST_FRAME, Frames, WireMessage
from core.errors import EngineUnavailable, InvalidRequest, NotFinite, Overloaded
from core.ids import PolicyName, PolicyRef, Version, base_ref

encode = msgspec.msgpack.encode
decode = msgspec.msgpack.decode
WAIT_S = 120.0


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - what changes is on another connection
            await asyncio.sleep(0.005)


def run(tmp_path: Path, prepare: Callable[[Listener], None], scenario: Callable[[Line, Path], Awaitable[None]]) -> None:
    async def work() -> None:
        path, listener = tmp_path / "line.sock", Listener()
        prepare(listener)
        line = Line(path)
        async with listener.listening(path):
            await line.open()
            await scenario(line, path)
            await line.aclose()

    asyncio.run(work())


MESSAGES = st.lists(
    st.builds(
        WireMessage,
        kind=st.sampled_from(["ask", "item"]),
        number=st.integers(0, 1 << 40),
        topic=st.text(max_size=9),
        body=st.binary(max_size=300).map(lambda data: msgspec.Raw(encode(data))),
    ),
    min_size=1,
)


@given(frames=st.lists(MESSAGES, max_size=4), size=st.integers(1, 50))
def test_frames_are_found_however_they_are_cut(frames: list[list[WireMessage]], size: int) -> None:
    raw = b"".join(len(data).to_bytes(4, "little") + data for data in map(encode, frames))
    reader = Frames()
    found = [message for at in range(0, len(raw), size) for message in reader.take(raw[at : at + size])]
    assert [encode(message) for message in found] == [encode(message) for frame in frames for message in frame]


def test_a_frame_of_any_size_is_not_waited_for() -> None:
    with pytest.raises(ValueError, match="a frame of"):
        Frames().take((LARGEST_FRAME + 1).to_bytes(4, "little"))


FAULTS = {
    "invalid": InvalidRequest("max_tokens: no", param="max_tokens", code="c"),
    "away": EngineUnavailable("version 9 is not loaded"),
    "not finite": NotFinite(PolicyRef(PolicyName("acme"), Version(3)), "here"),
    "overloaded": Overloaded("busy", 7),
}


def test_what_is_raised_there_is_raised_here(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def fail(body: msgspec.Raw) -> bytes:
        raise FAULTS[decode(body)]

    async def scenario(line: Line, _: Path) -> None:
        for name, error in FAULTS.items():
            with pytest.raises(type(error)) as raised:
                await line.ask("fail", encode(name), WAIT_S)
            assert type(raised.value) is type(error)
            assert (str(raised.value), vars(raised.value)) == (str(error), vars(error))
        assert not caplog.records
        with pytest.raises(FailedThere, match="KeyError"):
            await line.ask("fail", encode("unknown"), WAIT_S)
        assert "fail, which another process of this service asked for, failed" in caplog.text

    run(tmp_path, lambda listener: listener.answer("fail", fail), scenario)


def test_who_closes_a_stream_or_goes_ends_the_work_there(tmp_path: Path) -> None:
    closed: list[int] = []

    async def count(body: msgspec.Raw) -> AsyncGenerator[tuple[bytes, bool], None]:
        try:
            for number in range(1 << 40):
                yield encode(number), number == 3 and decode(body) == "short"
                await asyncio.sleep(0)
        finally:
            closed.append(decode(body) == "short")

    async def scenario(line: Line, path: Path) -> None:
        async with aclosing(line.stream("count", encode("long"))) as parts:
            assert [decode(await anext(parts)) for _ in range(3)] == [0, 1, 2]
        await until(lambda: len(closed) == 1)
        other, connections = Line(path), list[None]()
        other.when_connected(lambda: connections.append(None))
        await asyncio.gather(*(other.open() for _ in range(3)))
        assert len(connections) == 1, "opened at once, and once"
        async with aclosing(other.stream("count", encode("long"))) as parts:
            await anext(parts)
            await other.aclose()
            await until(lambda: len(closed) == 2)
            with pytest.raises(Lost):
                async for _ in parts:
                    pass

    run(tmp_path, lambda listener: listener.stream("count", count), scenario)


def test_a_stream_ends_with_its_last_part(tmp_path: Path) -> None:
    async def three(body: msgspec.Raw) -> AsyncGenerator[tuple[bytes, bool], None]:
        for number in range(3):
            yield encode(number), number == decode(body)

    async def scenario(line: Line, _: Path) -> None:
        many = [[decode(part) async for part in line.stream("three", encode(2))] for _ in range(3)]
        assert many == [[0, 1, 2]] * 3
        with pytest.raises(FailedThere, match="before its last part"):
            async for _ in line.stream("three", encode(None)):
                pass

    run(tmp_path, lambda listener: listener.stream("three", three), scenario)


def test_who_reads_nothing_is_sent_no_more_than_the_system_holds(tmp_path: Path) -> None:
    made, most, size = [0], 3000, 1 << 16

    async def much(_: msgspec.Raw) -> AsyncGenerator[tuple[bytes, bool], None]:
        for made[0] in range(1, most + 1):
            yield encode(bytes(size)), made[0] == most
            await asyncio.sleep(0)

    async def so_far(_: msgspec.Raw) -> bytes:
        return encode(made[0])

    def prepare(listener: Listener) -> None:
        listener.stream("much", much)
        listener.answer("so far", so_far)

    async def scenario(line: Line, path: Path) -> None:
        reader, writer = await asyncio.open_unix_connection(str(path), limit=size)
        asked = encode([WireMessage("stream", 1, "much", msgspec.Raw(encode(None)))])
        writer.write(len(asked).to_bytes(4, "little") + asked)
        same, before = 0, -1
        while same < 50:  # each question is a turn of the event loop, in which another part could be made
            now = decode(await line.ask("so far", encode(None), WAIT_S))
            same, before = (same + 1 if now == before and now else 0), now
        assert before < most
        writer.close()
        await writer.wait_closed()
        assert reader is not None

    run(tmp_path, prepare, scenario)


def test_a_line_comes_back_with_the_first_process(tmp_path: Path) -> None:
    async def echo(body: msgspec.Raw) -> bytes:
        return bytes(body)

    async def never(_: msgspec.Raw) -> bytes:
        await asyncio.Event().wait()
        return b""

    def first_process(value: int) -> Listener:
        listener = Listener()
        listener.answer("echo", echo)
        listener.answer("never", never)
        listener.show("value", lambda: encode(value))
        return listener

    async def scenario() -> None:
        path, line = tmp_path / "line.sock", Line(tmp_path / "line.sock")
        heard: list[int] = []
        connections: list[None] = []
        line.hear("value", lambda body: heard.append(decode(body)))
        line.when_connected(lambda: connections.append(None))
        await line.open()
        assert "is away" in line.state
        with pytest.raises(Lost, match="is away"):
            await line.ask("echo", encode(1), WAIT_S)
        for value in (1, 2):
            async with first_process(value).listening(path):
                assert stat.S_IMODE(path.stat().st_mode) == 0o600
                await until(lambda value=value: line.state == "ok" and heard[-1:] == [value])  # type: ignore[misc]
                assert decode(await line.ask("echo", encode(value), WAIT_S)) == value
                with pytest.raises(Lost, match="has not answered within"):
                    await line.ask("never", encode(None), 0.01)
                waiting = asyncio.ensure_future(line.ask("never", encode(None), WAIT_S))
                await line.ask("echo", encode(0), WAIT_S)
            with pytest.raises(Lost, match="is away"):
                await waiting
            assert not line.tell("x", encode(None))
        assert len(connections) == 2
        await line.aclose()

    asyncio.run(scenario())


def test_nonsense_costs_its_own_connection_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def echo(body: msgspec.Raw) -> bytes:
        return bytes(body)

    async def scenario(line: Line, path: Path) -> None:
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b"\x05\x00\x00\x00hello")
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        assert "is given up" in caplog.text
        assert decode(await line.ask("echo", encode(1), WAIT_S)) == 1

    run(tmp_path, lambda listener: listener.answer("echo", echo), scenario)


def test_what_changes_is_told_and_a_greeting_needs_no_event_loop(tmp_path: Path) -> None:
    shown = [base_ref(1).version]
    heard: list[int] = []

    async def scenario(line: Line, path: Path) -> None:
        line.hear("version", lambda body: heard.append(decode(body)))
        assert decode(await asyncio.to_thread(greeting, path, "version")) == 1
        shown[0] = base_ref(2).version
        await until(lambda: heard[-1:] == [2])

    run(tmp_path, lambda listener: listener.show("version", lambda: encode(shown[0])), scenario)
    with pytest.raises(EngineUnavailable, match="does not answer yet"):
        greeting(tmp_path / "line.sock", "version")
