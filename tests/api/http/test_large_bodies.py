"""Large bodies are read in a process of their own, within limits, whatever they contain."""

import asyncio
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from api_harness import MODEL, WAIT_S, Service, serve, wait_for
from scripted_policy import ScriptedPolicy, says

from api.access import plain
from api.access.under_way import UnderWay
from api.http.body_shape import count_values
from api.http.large_bodies import Bodies, Body
from api.requests import reader as reading
from api.requests.jobs import CheckBody
from core.errors import Overloaded
from core.settings import BodySettings
from core.telemetry import BODY_BYTES
from onward.directory.layout import SHIPPED_MODEL
from serving.rendering import load_renderer

MIB = 1 << 20
JSON = {"content-type": "application/json"}
READER = (
    sys.executable,
    "-m",
    "onward.http.body_reader",
    str(SHIPPED_MODEL),
    str(ScriptedPolicy.context_length),
    "auto",
)
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def chat(messages: bytes, more: bytes = b"") -> bytes:
    return b'{"model": "%s", "messages": [%s]%s}' % (MODEL.encode(), messages, more)


def user(text: bytes) -> bytes:
    return b'{"role": "user", "content": "%s"}' % text


def tools(parameters: bytes) -> bytes:
    return b', "tools": [{"type": "function", "function": {"name": "a", "parameters": %s}}]' % parameters


def many(part: bytes, size: int = 4 * MIB - 4096, between: bytes = b",") -> bytes:
    return ((part + between) * (size // len(part + between))).removesuffix(between)


def calling(arguments: bytes) -> bytes:
    call = b'{"id": "c", "function": {"name": "a", "arguments": "%s"}}' % arguments
    return b'%s, {"role": "assistant", "tool_calls": [%s]}, {"role": "tool", "tool_call_id": "c", "content": ""}' % (
        user(b"hi"),
        call,
    )


HOSTILE: dict[str, tuple[str, bytes, int]] = {
    "tiny messages": (CHAT, chat(many(user(b""))), 413),
    "messages enough": (CHAT, chat(many(user(b""), 32_000 * 32)), 400),
    "one text": (CHAT, chat(user(many(b"some words of it ", between=b""))), 400),
    "one word": (CHAT, chat(user(many(b"a", between=b""))), 400),
    "line breaks": (CHAT, chat(user(many(rb"\n", between=b""))), 400),
    "spaces": (TEXT, b'{"model": "%s", "prompt": "%s"}' % (MODEL.encode(), b" " * (4 * MIB - 100)), 400),
    "escaped": (CHAT, chat(user(many(rb"\u6f22", between=b""))), 400),
    "control tokens": (CHAT, chat(user(many(b"<|im_end|>", between=b""))), 400),
    "quotes": (CHAT, chat(user(many(rb"\"", between=b""))), 400),
    "no end": (CHAT, b'{"model": "' + b'\\"' * (2 * MIB - 100), 400),
    "nothing but quotes": (CHAT, b'"' * (4 * MIB - 100), 400),
    "nested": (CHAT, b"[" * (4 * MIB - 100), 413),
    "nested in tools": (CHAT, chat(user(b"hi"), tools(b'{"enum": %s}' % (b"[" * 90_000 + b"]" * 90_000))), 400),
    "tools": (CHAT, chat(user(b"hi"), b', "tools": [%s]' % many(b'{"type":"function","function":{"name":"a"}}')), 413),
    "more tools than any": (
        CHAT,
        chat(user(b"hi"), b', "tools": [%s]' % many(b'{"type":"function","function":{"name":"a"}}', MIB)),
        400,
    ),
    "a schema": (CHAT, chat(user(b"hi"), tools(b'{"properties": {%s}}' % many(b'"a":{}', 700_000))), 413),
    "arguments": (CHAT, chat(calling(many(b"[]"))), 413),
    "metadata": (
        CHAT,
        chat(user(b"hi"), b', "metadata": {%s}' % b",".join(b'"%d":"b"' % n for n in range(90_000))),
        400,
    ),
    "parts": (CHAT, chat(b'{"role": "user", "content": [%s]}' % many(b'{"type":"text","text":""}', 700_000)), 400),
    "tags of feedback": (
        "/v1/feedback",
        b'{"inference_id": "a", "metric_name": "rating", "value": 1, "tags": {%s}}' % many(b'"a":"b"'),
        413,
    ),
    "more tags than any": (
        "/v1/feedback",
        b'{"inference_id": "a", "metric_name": "rating", "value": 1, "tags": {%s}}' % many(b'"a":"b"', 700_000),
        413,
    ),
    "more reports than any": ("/v1/feedback/batch", b'{"feedback": [%s]}' % many(b"{}", 200_000), 413),
    "a user's name": (
        "/v1/feedback",
        b'{"inference_id": "a", "metric_name": "rating", "value": 1, "user": "%s"}' % (b"a" * (4 * MIB - 100)),
        400,
    ),
    "biases": (CHAT, chat(user(b"hi"), b', "logit_bias": {%s}' % b",".join(b'"%d":1' % n for n in range(30_000))), 400),
    "a name for sixteen turns": (
        CHAT,
        chat(b'{"role": "user", "name": "%s", "content": "hi"}' % (b"a" * 300_000), b', "n": 16'),
        413,
    ),
    "a user for sixteen turns": (
        TEXT,
        b'{"model": "%s", "prompt": "hi", "n": 16, "user": "%s"}' % (MODEL.encode(), b"a" * 300_000),
        413,
    ),
    "no text": (CHAT, b"\xff" * MIB, 400),
}  # fmt: skip


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield a service with the shipped model's renderer, here and in the reader's process."""
    renderer = load_renderer(SHIPPED_MODEL, ScriptedPolicy.context_length)
    directory = tmp_path_factory.mktemp("api") / "service"
    with serve(directory, renderer, READER, bodies={"in_flight_bytes": 8 * MIB, "work_s": 60}) as service:
        yield service


def is_reader(child: psutil.Process) -> bool:
    """Return whether this is a reader; one that ended meanwhile is none."""
    with suppress(psutil.NoSuchProcess):
        return READER[2] in child.cmdline()
    return False


def reader() -> psutil.Process:
    """Return the reader's process, the latest if there are several."""

    def find() -> psutil.Process | None:
        readers = [child for child in psutil.Process().children() if is_reader(child)]
        return max(readers, key=psutil.Process.create_time, default=None)

    found: psutil.Process = wait_for(find, "the reader's process")
    return found


@contextmanager
def stopped(service: Service) -> Iterator[psutil.Process]:
    """Suspend the reader in the middle of its work while the block runs."""
    service.http.post(CHAT, content=HOSTILE["more tools than any"][1], headers=JSON)  # it runs
    process = reader()
    process.suspend()
    try:
        yield process
    finally:
        with suppress(psutil.NoSuchProcess):  # a test may end it
            process.resume()


def send(service: Service, path: str, body: bytes) -> httpx.Response:
    with httpx.Client(timeout=WAIT_S, verify=False) as client:
        return client.post(service.url + path, content=body, headers=JSON)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_body_is_refused(service: Service, name: str) -> None:
    path, body, status = HOSTILE[name]
    assert len(body) <= 4 * MIB
    answer = service.http.post(path, content=body, headers=JSON)
    assert answer.status_code == status, answer.text[:300]
    assert answer.json()["error"]["message"]
    assert service.chat("hi").status_code == 200


@pytest.mark.parametrize("more", [{}, {"stream": True}])
def test_a_large_body_that_is_good_is_answered(tmp_path: Path, more: dict[str, Any]) -> None:
    """Its tokens equal those of the renderer here, also where the conversation continues."""
    renderer = load_renderer(SHIPPED_MODEL)
    command = (*READER[:-2], str(1 << 20), "auto")
    with serve(tmp_path / "service", renderer, command, bodies={"large_bytes": 2048}) as service:
        service.policy.context_length = 1 << 20
        said: list[Any] = [{"role": "user", "content": "what of this? " * 1000}]
        answer = service.chat(*said)
        assert answer.status_code == 200
        assert service.policy.requests[-1].prompt_token_ids == renderer.render(said, ())
        spoken = answer.json()["choices"][0]["message"]["content"]
        said += [{"role": "assistant", "content": spoken}, {"role": "user", "content": "and of that? " * 1000}]
        assert service.chat(*said, **more).status_code == 200
        first, second = (request.prompt_token_ids for request in service.policy.requests[-2:])
        assert second[: len(first)] == first
        new = [{"role": "user", "content": said[-1]["content"]}]
        tokens = first + tuple(service.policy.default.token_ids)
        assert second == renderer.extend(tokens, new)
        text = "def f():\n" * 1000
        service.post("/v1/completions", {"model": MODEL, "prompt": text})
        assert service.policy.requests[-1].prompt_token_ids == renderer.render_text(text, None)
        wait_for(lambda: BODY_BYTES._value.get() == 0, "the bytes' release")


def test_others_are_served_while_one_is_read(service: Service) -> None:
    with stopped(service), ThreadPoolExecutor(1) as pool:
        large = pool.submit(send, service, *HOSTILE["one text"][:2])
        wait_for(lambda: BODY_BYTES._value.get() > 0, "the large body")
        for _ in range(20):
            assert service.chat("hi").status_code == 200
        assert not large.done()
        reader().resume()
        assert large.result().status_code == 400


def test_what_plain_routes_take_is_decoded_on_the_loop_only_where_it_is_small(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other requests wait for what the loop does; a hop to a thread would cost most requests more than it saves."""
    on_loop: list[bool] = []

    def noted(decode: Callable[..., Any]) -> Callable[..., Any]:
        def note(*given: Any) -> Any:
            on_loop.append(asyncio._get_running_loop() is not None)
            return decode(*given)

        return note

    for name in ("decode_body", "decode_foreign"):
        monkeypatch.setattr(plain, name, noted(getattr(plain, name)))
    counted = b'{"model": "%s", "messages": [%s], "new": "%s"}'
    said = b'{"inference_id": "x", "metric_name": "accepted", "value": true, "evidence": "%s"}'
    event = b'{"type": "view", "completion_id": "cmpl-x", "choice_index": 0, "new": "%s"}'
    bodies: dict[str, Callable[[bytes], bytes]] = {
        "/v1/feedback": lambda text: said % text,
        "/v1/feedback/batch": lambda text: b'{"feedback": [%s]}' % (said % text),
        "/tabby/v1/events": lambda text: event % text,
        "/v1/messages/count_tokens": lambda text: counted % (MODEL.encode(), user(b"hi"), text),
        "/v1/continue/data": lambda text: b'{"name": "x", "data": {"a": "%s"}}' % text,
    }
    for path, body in bodies.items():
        for size, expected in ((10, True), (100_000, False)):
            on_loop.clear()
            answer = send(service, path, body(b"a" * size))
            assert on_loop == [expected], (path, answer.text)


def test_beyond_the_bound_on_bytes_they_are_refused(service: Service) -> None:
    path, body, status = HOSTILE["more tools than any"]
    count = 8 * MIB // len(body)
    with stopped(service) as process, ThreadPoolExecutor(count) as pool:
        waiting: list[Future[httpx.Response]] = [pool.submit(send, service, path, body) for _ in range(count)]
        wait_for(lambda: BODY_BYTES._value.get() == count * len(body), "all that there is room for")
        refused = send(service, path, body)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) > 0
        chunked = httpx.post(service.url + path, content=iter([body[: MIB // 2]] * 2), headers=JSON, timeout=WAIT_S)
        assert chunked.status_code == 503  # who does not say how much it is could send the most there may be
        assert service.chat("hi").status_code == 200
        process.resume()
        assert {each.result().status_code for each in waiting} == {status}
    wait_for(lambda: BODY_BYTES._value.get() == 0, "the bytes' release")
    assert send(service, path, body).status_code == status


def begin(service: Service, body: bytes) -> socket.socket:
    """Return a client that announced 4 MiB and has sent this part."""
    host, _, port = service.url.removeprefix("http://").partition(":")
    client = socket.create_connection((host, int(port)))
    head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    client.sendall(f"{head}content-length: {4 * MIB}\r\n\r\n".encode() + body)
    return client


def test_a_client_that_goes_amid_its_body_holds_nothing(service: Service) -> None:
    with begin(service, b"[" * MIB):
        wait_for(lambda: BODY_BYTES._value.get() == MIB, "what has arrived")
    wait_for(lambda: BODY_BYTES._value.get() == 0, "its release")


def test_who_says_much_and_sends_nothing_holds_nothing(service: Service) -> None:
    """Clients announced sixteen times the limit and sent half the limit; a whole request is still answered."""
    path, body, status = HOSTILE["more tools than any"]
    with ExitStack() as ending:
        for _ in range(31):
            ending.enter_context(begin(service, b"{"))
        ending.enter_context(begin(service, b"[" * (4 * MIB - 1)))
        wait_for(lambda: BODY_BYTES._value.get() == 4 * MIB - 1, "what has arrived")
        assert send(service, path, body).status_code == status
    wait_for(lambda: BODY_BYTES._value.get() == 0, "the release of all")


def test_who_sends_more_than_there_is_room_for_is_refused_amid_it(service: Service) -> None:
    """The request began while there was room."""
    with begin(service, b"[") as first, begin(service, b"[") as second, begin(service, b"[") as last:
        for client, size in ((first, 4 * MIB - 2), (second, 3 * MIB), (last, MIB - 2)):
            client.sendall(b"[" * size)
        wait_for(lambda: BODY_BYTES._value.get() == 8 * MIB - 1, "what has arrived")
        last.sendall(b"[[")
        assert last.recv(16).startswith(b"HTTP/1.1 503")
    wait_for(lambda: BODY_BYTES._value.get() == 0, "the release of all")


def test_a_reader_that_ends_is_started_again(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    path, body, status = HOSTILE["more tools than any"]
    given, exchange = threading.Event(), reading._exchange

    async def note(*asked: Any) -> Any:
        given.set()
        return await exchange(*asked)

    with stopped(service) as process, ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(reading, "_exchange", note)
        large = pool.submit(send, service, path, body)
        assert given.wait(WAIT_S)  # one that ends while the body arrives is started again for it
        os.kill(process.pid, signal.SIGKILL)
        answer = large.result()
    assert answer.status_code == 503
    assert send(service, path, body).status_code == status
    assert reader().pid != process.pid


def test_a_hang_up_ends_no_reader(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others would wait for a new one to start."""

    async def run() -> None:
        own, given, exchange = reading.ProcessReader(READER, WAIT_S), asyncio.Event(), reading._exchange
        check, body = CheckBody("chat", service.services.settings.bodies.values), chat(user(b"hi"))

        async def note(*asked: Any) -> Any:
            given.set()
            return await exchange(*asked)

        monkeypatch.setattr(reading, "_exchange", note)
        gone = asyncio.create_task(own.ask(check, body))
        await given.wait()
        pid = own.pid
        try:
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
            await own.ask(check, body)
            assert (gone.cancelled(), own.pid) == (True, pid)
        finally:
            await own.aclose()

    asyncio.run(run())


def test_a_body_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    path, body, status = HOSTILE["more tools than any"]
    with serve(tmp_path / "service", None, READER, bodies={"work_s": 5.0}) as service, stopped(service):
        answer = send(service, path, body)
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "body_takes_too_long"
        assert send(service, path, body).status_code == status


@pytest.mark.timed
def test_the_event_loop_goes_on(service: Service) -> None:
    """Twenty bodies at once block the loop for much less time than one of them takes to read.

    Were they read on it, there would be as many pauses; one or two may be the machine's own."""
    pauses = asyncio.run(_pauses(service, [HOSTILE[name][:2] for name in ("one word", "messages enough")] * 10))
    assert sorted(pauses)[-3] < 1, sorted(pauses)[-20:]


async def _pauses(service: Service, bodies: list[tuple[str, bytes]]) -> list[float]:
    """Return how long each of many small requests takes while the bodies are read."""
    pauses = [0.0] * 3
    loop = asyncio.get_running_loop()
    async with httpx.AsyncClient(timeout=WAIT_S, verify=False) as client:
        large = [asyncio.create_task(asyncio.to_thread(send, service, *body)) for body in bodies]
        while not all(task.done() for task in large):
            started = loop.time()
            assert (await client.get(service.url + "/healthz")).status_code == 200
            pauses.append(loop.time() - started)
            await asyncio.sleep(0.01)
        assert {task.result().status_code for task in large} <= {400, 503}
    return pauses


@pytest.mark.parametrize(
    ("value", "count"),
    [([], 1), ([1, 2], 3), ({"a": [{}, "x,[{"]}, 4), ('a\\"b,', 1), (["\\", ",", '"'], 4)],
)
def test_values_are_counted_as_at_least_what_they_are(value: Any, count: int) -> None:
    assert count <= count_values(json.dumps(value).encode()) <= count + 2


def test_what_was_read_is_gone_whoever_still_has_it() -> None:
    """Errors keep the frames that they passed through, and these would keep the body in memory."""
    bodies = Bodies(BodySettings())
    body = Body(bodies)
    body.hold(MIB)
    body.add(b"{}")
    body.close()
    kept = body.raw
    assert bytes(kept) == b"{}"
    body.release()
    assert bodies.held == 0
    with pytest.raises(ValueError, match="released"):
        bytes(kept)


def test_what_waits_for_answers_is_bounded_by_bytes(tmp_path: Path) -> None:
    """One user's large requests are turned away, others' are answered; and all of a key's beyond its own bound."""
    bodies = {"max_bytes": 4000, "under_way_user_bytes": 4000, "under_way_bytes": 8000}
    with serve(tmp_path, bodies=bodies) as service:
        gate = threading.Event()

        def ask(user: str | None, size: int, **fields: Any) -> tuple[int, str]:
            body = {"model": MODEL, "messages": [{"role": "user", "content": "x" * size}], **fields}
            answer = service.http.post("/v1/chat/completions", json=body | ({} if user is None else {"user": user}))
            assert (answer.status_code == 503) == ("retry-after" in answer.headers)
            return answer.status_code, "" if answer.status_code == 200 else answer.json()["error"]["message"]

        service.policy.scripts.extend(says("hello", gate=gate) for _ in range(3))
        with ThreadPoolExecutor() as pool:
            running = [pool.submit(ask, user, 400) for user in ("she", "she", None)]
            wait_for(lambda: service.policy.running == 3)
            of_user, of_key = ask("she", 400), ask("he", 400)
            small = ask("he", 10)
            gate.set()
            assert [each.result()[0] for each in running] == [200, 200, 200]
        assert (of_user[0], of_key[0], small[0]) == (503, 503, 200)
        assert "this user's requests" in of_user[1]
        assert "this key's requests" in of_key[1]
        assert [ask(user, 400, n=2)[0] for user in ("she", "he", None)] == [200] * 3, "what was answered counts no more"


def test_a_key_that_makes_up_users_leaves_room_for_others() -> None:
    with ExitStack() as held:
        room = UnderWay(BodySettings(max_bytes=10, in_flight_bytes=10, under_way_user_bytes=10, under_way_bytes=40))
        for number in range(3):
            held.enter_context(room.hold("hers", f"user-{number}", 10))
        with pytest.raises(Overloaded, match="this key's"):
            held.enter_context(room.hold("hers", "user-3", 10))
        held.enter_context(room.hold("another's", "he", 10))
        with pytest.raises(Overloaded, match="too much waits"):
            held.enter_context(room.hold("a third's", "they", 1))
    with room.hold("hers", "user-3", 10), room.hold("hers", "user-4", 10):
        pass  # what has ended counts no more
