"""Slow clients on real sockets: each holds one connection for a limited time, and delays nobody else."""

import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
from api_harness import WAIT_S, Service, wait_for
from scripted_policy import says

from core.telemetry import BROKEN_CONNECTIONS, CONNECTIONS

MakeService = Callable[..., Service]
SHORT = {"header_s": 1.0, "body_s": 1.0, "idle_s": 1.0, "write_s": 1.0}
LONG_S = 60.0
CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
ASKED = b'{"model": "scripted", "messages": [{"role": "user", "content": "hi"}]%s}'
MANY = 400


def whole(fields: bytes = b"") -> bytes:
    body = ASKED % fields
    return CHAT + b"content-length: %d\r\n\r\n" % len(body) + body


@contextmanager
def connected(
    service: Service, sent: bytes = b"", *, source: str = "127.0.0.1", buffer: int = 0
) -> Iterator[socket.socket]:
    host, _, port = service.url.removeprefix("http://").partition(":")
    with socket.socket() as client:
        client.settimeout(WAIT_S)
        if buffer:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        client.bind((source, 0))
        client.connect((host, int(port)))
        client.sendall(sent)
        yield client


def rest(client: socket.socket) -> bytes:
    """Read until the server closes."""
    received = b""
    try:
        while data := client.recv(1 << 16):
            received += data
    except ConnectionResetError:
        pass
    return received


def broken(why: str) -> float:
    value: float = BROKEN_CONNECTIONS.labels(why)._value.get()
    return value


def bounds(**values: Any) -> dict[str, Any]:
    """Return time limits that are long, except those given."""
    return {"connections": {"header_s": LONG_S, "body_s": LONG_S, "idle_s": LONG_S, "write_s": LONG_S, **values}}


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\nhost: localhost\r\n", b"G", whole() + b"GET / HTTP/1.1\r\nhost"])
def test_headers_that_do_not_end(make_service: MakeService, sent: bytes) -> None:
    service = make_service(**bounds(header_s=0.3))
    with connected(service, sent) as client:
        answer = rest(client)
    assert b"HTTP/1.1 408 " in answer
    assert b'"code":"request_timeout"' in answer


@pytest.mark.parametrize("sent", [b"", b"\r\n"])
def test_a_connection_that_says_nothing_is_closed(make_service: MakeService, sent: bytes) -> None:
    with connected(make_service(**bounds(header_s=0.3)), sent) as client:
        assert b" 200 " not in rest(client)


def test_headers_that_come_a_byte_at_a_time_have_one_deadline(make_service: MakeService) -> None:
    with connected(make_service(**bounds(header_s=0.3)), b"GET / HTTP/1.1\r\na: ") as client:
        client.settimeout(0.02)
        for _ in range(WAIT_S * 50):
            try:
                client.send(b"a")
                answer = client.recv(4096)
                break
            except TimeoutError:
                continue
    assert answer.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("head", [b"content-length: 100\r\n\r\n{", b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n"])
def test_a_body_that_does_not_end(make_service: MakeService, head: bytes) -> None:
    with connected(make_service(**bounds(body_s=0.3)), CHAT + head) as client:
        assert rest(client).startswith(b"HTTP/1.1 408 ")


def test_a_body_that_was_refused_and_does_not_end(make_service: MakeService) -> None:
    """The answer is sent before the body ends, and the connection still closes."""
    sent = (
        b"POST /nowhere HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"
    )
    with connected(make_service(**bounds(body_s=0.3)), sent) as client:
        assert rest(client).startswith(b"HTTP/1.1 404 ")


@pytest.mark.parametrize("after", [b"", b"\r\n"])
def test_an_idle_connection_is_closed(make_service: MakeService, after: bytes) -> None:
    with connected(make_service(**bounds(idle_s=1.0, header_s=1.0)), whole()) as client:
        answer = client.recv(1 << 16)
        client.sendall(after)
        answer += rest(client)
    assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("head", [b"a: " + b"x" * 3000, b"a: b\r\n" * 300, b"host: a\r\nb: %b\r\n\r\n" % (b"x" * 3000)])
def test_headers_have_a_size(make_service: MakeService, head: bytes) -> None:
    with connected(make_service(**bounds(header_bytes=2048)), b"GET / HTTP/1.1\r\n" + head) as client:
        assert rest(client)[:13] in (b"HTTP/1.1 431 ", b"HTTP/1.1 400 ")


@pytest.mark.parametrize("before", [b"\r\n\r\n", b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n"])
def test_what_stands_before_a_head_lets_no_larger_one_pass(make_service: MakeService, before: bytes) -> None:
    large = b"GET /healthz HTTP/1.1\r\nhost: a\r\nb: %b\r\n\r\n" % (b"x" * 3000)
    with connected(make_service(**bounds(header_bytes=2048)), before + large) as client:
        assert b"HTTP/1.1 431 " in rest(client)


def test_a_head_may_end_where_its_body_begins(make_service: MakeService) -> None:
    """The bound is of the head, whatever comes in one piece with its last bytes."""
    sent = whole(b', "stop": ["' + b"x" * 3000 + b'"]').replace(b"json\r\n", b"json\r\nconnection: close\r\n", 1)
    end = sent.index(b"\r\n\r\n") + 2
    with connected(make_service(**bounds(header_bytes=1024)), sent[:end]) as client:
        client.sendall(sent[end:])
        assert not rest(client).startswith(b"HTTP/1.1 431 ")


def test_a_body_in_too_many_too_small_parts(make_service: MakeService) -> None:
    """To take a byte that comes as a chunk of its own costs a hundred times as much as one among others."""
    service, before = make_service(**bounds()), broken("body")
    head = CHAT + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    one_by_one = b"".join(b"1\r\n%c\r\n" % byte for byte in ASKED % (b" " * 60_000)) + b"0\r\n\r\n"
    with connected(service, head + one_by_one) as client:
        assert rest(client).startswith(b"HTTP/1.1 200 ")
    with connected(service, head) as client, suppress(ConnectionError):
        client.sendall(one_by_one.removesuffix(b"0\r\n\r\n") * 2)
    wait_for(lambda: broken("body") == before + 1)


@pytest.mark.parametrize("said", [b"0\r\nx: ", b"0\r\n", b"1;x="], ids=["a trailer", "its name", "of a chunk"])
def test_what_comes_beside_a_body_has_a_size(make_service: MakeService, said: bytes) -> None:
    """The parser keeps all of a trailer until its line ends, and copies it with each part that arrives."""
    service, before = make_service(**bounds()), broken("headers")
    with connected(service, CHAT + b"transfer-encoding: chunked\r\n\r\n" + said) as client, suppress(ConnectionError):
        client.sendall(b"a" * (4 << 20))
        assert rest(client).startswith(b"HTTP/1.1 431 ")
    wait_for(lambda: broken("headers") == before + 1)


def test_trailers_are_few(make_service: MakeService) -> None:
    service = make_service(**bounds())
    body = b"%x\r\n%s\r\n0\r\n" % (len(ASKED % b""), ASKED % b"")
    with connected(service, CHAT + b"transfer-encoding: chunked\r\n\r\n" + body + b"a: b\r\n" * 300) as client:
        assert rest(client).startswith(b"HTTP/1.1 400 ")


def test_requests_behind_one_that_is_answered_are_few(make_service: MakeService) -> None:
    """Ten thousand in one piece of 250 kB stopped the event loop for a third of a second, and need no key."""
    service = make_service(**bounds())
    before = broken("malformed")
    with connected(service, whole() * 20) as client:
        received = b""
        while received.count(b"HTTP/1.1 200 ") < 20:
            received += client.recv(1 << 16)
    gate = threading.Event()
    service.policy.scripts.append(says("hello", gate=gate))
    with connected(service, whole() + b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n" * 100) as client:
        assert rest(client).startswith(b"HTTP/1.1 400 ")
    gate.set()
    assert broken("malformed") - before == 1


def test_who_goes_away_with_a_request_behind_another_ends_both(make_service: MakeService) -> None:
    service = make_service(**bounds())
    service.policy.scripts.append(says("hello", gate=threading.Event()))
    with connected(service, whole() + whole()):
        wait_for(lambda: service.policy.requests, "the first request's turn")
        time.sleep(0.1)  # until the second is read, too
    wait_for(lambda: service.policy.running == 0, "its end")


def test_an_answer_that_takes_long_is_nobodys_fault(make_service: MakeService) -> None:
    service = make_service(connections=SHORT)
    gate = threading.Event()
    service.policy.scripts.append(says("hello", gate=gate))
    with connected(service, whole()) as client:
        for sent in (b"", b"GET / HTTP/1.1\r\n", CHAT + b"content-length: 9\r\n\r\n"):
            with connected(service, sent) as later:
                rest(later)  # closed by a bound, which the older connection is past, too
        gate.set()
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_nobody_reads(make_service: MakeService, stream: bool) -> None:
    service = make_service(**bounds(write_s=0.3))
    service.policy.scripts.append(says("x" * 1500))
    before = broken("unread")
    fields = b', "logprobs": true, "max_tokens": 1600' + b', "stream": true' * stream
    with connected(service, whole(fields), buffer=4096):
        wait_for(lambda: broken("unread") > before, "the end of the connection")


def test_who_reads_slowly_is_served(make_service: MakeService) -> None:
    """In more than the time for each part, of which a pause of the machine takes some."""
    service = make_service(**bounds(write_s=4.0))
    service.policy.scripts.append(says("x" * 1500, chunk_tokens=100))
    fields = b', "logprobs": true, "max_tokens": 1600, "stream": true'
    received, began_s = b"", time.monotonic()
    with connected(service, whole(fields), buffer=1 << 13) as client:
        while not received.endswith(b"0\r\n\r\n"):
            data = client.recv(1 << 13)
            assert data
            received += data
            time.sleep(0.4)
    assert b"data: [DONE]" in received
    assert time.monotonic() - began_s > 4.0


def test_connections_of_one_address(make_service: MakeService) -> None:
    service = make_service(**bounds(per_address=3, trusted=["127.0.0.1/32"]))
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(connected(service, source="127.0.0.2"))
        with connected(service, source="127.0.0.2") as refused:
            answer = rest(refused)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nretry-after: " in answer
        with connected(service, whole(), source="127.0.0.3") as another:
            assert another.recv(4096).startswith(b"HTTP/1.1 200 ")
        for _ in range(5):  # a trusted one
            assert stack.enter_context(connected(service, whole())).recv(4096).startswith(b"HTTP/1.1 200 ")
    gone = b""
    while not gone.startswith(b"HTTP/1.1 200 "):  # theirs are closed: there is room again
        with connected(service, whole(), source="127.0.0.2") as client:
            gone = client.recv(4096)


def test_connections_in_all(make_service: MakeService) -> None:
    service = make_service(**bounds(total=3))
    with ExitStack() as stack:
        clients = [stack.enter_context(connected(service, source=f"127.0.0.{n}")) for n in range(2, 5)]
        with connected(service) as refused:
            assert rest(refused).startswith(b"HTTP/1.1 503 ")
        clients[0].close()
        wait_for(lambda: service.chat().status_code == 200, "room for another")


@pytest.mark.timed
def test_hundreds_of_them_and_the_others_notice_nothing(make_service: MakeService) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 5 * MANY  # both ends of each are here
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed if hard < 0 else min(needed, hard), hard))
    service = make_service(**bounds(header_s=1.5, body_s=1.5, write_s=1.5))
    before = {why: broken(why) for why in ("headers", "body", "unread")}
    service.policy.default = says("x" * 1000, chunk_tokens=500)
    unread = b', "logprobs": true, "max_tokens": 1001, "stream": true'
    kinds = [
        (b"GET / HTTP/1.1\r\nhost: localhost\r\n", MANY // 2),
        (CHAT + b"content-length: 100\r\n\r\n{", MANY // 2),
        (b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n", MANY // 2),
        (whole(unread), MANY // 2),
    ]
    with ExitStack() as stack:
        for sent, count in kinds:
            for _ in range(count):
                stack.enter_context(connected(service, sent, source="127.0.0.2", buffer=4096))
        took = []
        while broken("unread") - before["unread"] < MANY or len(took) < 20:
            started = time.monotonic()
            assert service.chat("hi", max_tokens=1).status_code == 200
            took.append(time.monotonic() - started)
            assert len(took) < 5_000, broken("unread") - before["unread"]
        assert {why: broken(why) - before[why] for why in before} == {
            "headers": MANY // 2,
            "body": MANY // 2,
            "unread": MANY,
        }
        wait_for(lambda: CONNECTIONS._value.get() < 10, "the end of their connections")
    assert sorted(took)[int(len(took) * 0.9)] < 2, took  # the rest may have met a pause of the machine
