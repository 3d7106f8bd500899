"""Answers that nobody reads, on real sockets: what they hold is bounded, and nobody is closed for others who hold more.

Each connection is told apart by what the service holds for it, in bytes; the deadlines are too long to close any."""

import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from api_harness import MODEL, WAIT_S, Service, wait_for
from made_certificates import made
from reward_stream import events, put
from scripted_policy import says

from api.http.connections import BoundedProtocol
from core.telemetry import BROKEN_CONNECTIONS, UNREAD_BYTES

MakeService = Callable[..., Service]
LONG_S = 600.0
BOUND = 1 << 20
PART = 64 << 10
LARGE = 60_000  # characters of a reward
MANY, OTHER, SECOND = "key-of-many", "key-of-other", "second-of-many"
KEYS = [
    {"key": MANY, "namespace": "many", "scopes": ["read", "chat"]},
    {"key": SECOND, "namespace": "many", "scopes": ["read"]},
    {"key": OTHER, "namespace": "other", "scopes": ["read"]},
]
STREAM = "/v1/rewards/stream?after=0"


def bounded(make_service: MakeService, most: int = BOUND, **settings: Any) -> Service:
    deadlines = dict.fromkeys(("header_s", "body_s", "idle_s", "write_s"), LONG_S)
    return make_service(keys=KEYS, connections={**deadlines, "unread_bytes": most}, **settings)


def get(path: str, key: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\r\n".encode()


def chat() -> bytes:
    body = b'{"model": "%s", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1600,' % MODEL.encode()
    body += b' "stream": true, "logprobs": true, "top_logprobs": 20}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return head + b"authorization: Bearer %s\r\ncontent-length: %d\r\n\r\n" % (MANY.encode(), len(body)) + body


@contextmanager
def unread(service: Service, sent: bytes) -> Iterator[socket.socket]:
    """Ask, and read nothing of the answer."""
    with socket.socket() as client:
        client.settimeout(WAIT_S)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", int(service.url.rpartition(":")[2])))
        if service.url.startswith("https"):
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            client = context.wrap_socket(client, suppress_ragged_eofs=True)
        with client:
            client.sendall(sent)
            yield client


@contextmanager
def read(service: Service, path: str, key: str) -> Iterator[Iterator[str]]:
    headers = {"authorization": f"Bearer {key}"}
    with httpx.stream("GET", service.url + path, headers=headers, timeout=WAIT_S, verify=False) as answer:
        yield answer.iter_lines()


def closed() -> float:
    value: float = BROKEN_CONNECTIONS.labels("unread_bytes")._value.get()
    return value


def connections() -> list[BoundedProtocol]:
    watched = [each for server in BoundedProtocol.__subclasses__() for each in list(server.guard._watched)]
    return [each for each in watched if each.held_bytes]


def held() -> int:
    return sum(each.held_bytes for each in connections())


def shown() -> float:
    value: float = UNREAD_BYTES._value.get()
    return value


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize(
    "sent",
    [get(STREAM, MANY), get("/v1/rewards?limit=4", MANY), chat()],
    ids=["streams of rewards", "lists", "streams of tokens"],
)
def test_what_nobody_reads_is_closed_beyond_the_bound(
    make_service: MakeService, tmp_path: Path, caplog: pytest.LogCaptureFixture, sent: bytes, is_tls: bool
) -> None:
    service = bounded(make_service, **({"tls": made(tmp_path)} if is_tls else {}))
    service.policy.default = says("x" * 1500)
    put(service, *range(40), namespace="many", size=LARGE)
    put(service, *range(100, 140), namespace="other", size=LARGE)
    before = closed()
    caplog.set_level(logging.WARNING)
    with ExitStack() as stack:
        lines = stack.enter_context(read(service, STREAM, OTHER))
        for _ in range(40):
            stack.enter_context(unread(service, sent))
        wait_for(lambda: closed() >= before + 15, "the end of many")
        wait_for(lambda: held() <= BOUND, "an end of what they hold")
        wait_for(lambda: 0 < shown() <= BOUND, "the metric")
        read_by_another = [number for number, _ in events(lines, 40)]
        assert read_by_another == sorted(read_by_another)
        put(service, 500, namespace="other")
        assert events(lines, 1)[0][1]["inference_id"] == "i500", "who reads goes on reading"
    said = [each.getMessage() for each in caplog.records if "api.connections.unread_bytes" in each.getMessage()]
    assert len(said) == 1, "and not a line for each"
    assert "namespace many" in said[0]
    assert MANY not in said[0]


def test_it_is_those_of_the_key_that_holds_most(make_service: MakeService) -> None:
    service = bounded(make_service)
    put(service, *range(40), namespace="many", size=LARGE)
    before = closed()
    with ExitStack() as stack:
        first = stack.enter_context(unread(service, get(STREAM, SECOND)))
        wait_for(lambda: held() > PART, "what it holds")
        for _ in range(20):
            stack.enter_context(unread(service, get(STREAM, MANY)))
        wait_for(lambda: closed() >= before + 10, "the end of many")
        received = b""
        while received.count(b"\nid: ") < 40:
            data = first.recv(1 << 16)
            assert data, "who holds less than another key was closed"
            received += data


def test_it_is_the_one_that_was_read_longest_ago(make_service: MakeService) -> None:
    service = bounded(make_service)
    put(service, *range(40), namespace="many", size=LARGE)
    before = closed()
    with ExitStack() as stack:
        first = stack.enter_context(unread(service, get(STREAM, MANY)))
        wait_for(lambda: any(each.unread_since is not None for each in connections()), "a look at it")
        wait_for(lambda: held() > 2 * LARGE, "all that it holds")
        (oldest,) = connections()
        others = []
        while closed() == before:
            others.append(stack.enter_context(unread(service, get(STREAM, MANY))))
            wait_for(lambda: held() > (len(others) + 1) * 2 * LARGE or closed() > before, "what the next one holds")
        assert oldest.held_bytes == 0
        with suppress(ConnectionResetError):
            while first.recv(1 << 16):
                continue
        assert len(connections()) >= len(others) - 2, "and no more of them than there must be"


def test_namespaces_come_before_keys(make_service: MakeService) -> None:
    """One with two keys holds more than another whose key holds more than each of them."""
    service = bounded(make_service)
    put(service, *range(40), namespace="many", size=LARGE)
    put(service, *range(40, 80), namespace="other", size=LARGE)
    before = closed()
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(unread(service, get(STREAM, OTHER)))
        wait_for(lambda: held() > 3 * 2 * LARGE, "what they hold")
        for key in (MANY, SECOND) * 8:
            stack.enter_context(unread(service, get(STREAM, key)))
        wait_for(lambda: closed() >= before + 8, "the end of many")
        assert [each.caller[0] for each in connections()].count("other") == 3


def test_tokens_that_wait_for_their_stream_count(make_service: MakeService) -> None:
    service = bounded(make_service, most=64 << 20)
    service.policy.default = says("x" * 1500)
    with unread(service, chat()) as client:
        wait_for(lambda: held() > 20 * PART, "all of its tokens")
        received = b""
        while b"[DONE]" not in received:
            received += client.recv(1 << 16)
        wait_for(lambda: held() == 0, "the end of the answer")


def test_an_answer_behind_one_that_nobody_reads_counts(make_service: MakeService) -> None:
    service = bounded(make_service)
    put(service, *range(20), namespace="many", size=LARGE)
    with unread(service, get("/v1/rewards?limit=2", MANY) + get("/v1/rewards?limit=10", MANY)):
        wait_for(lambda: held() > 10 * LARGE, "the second answer")


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
def test_a_large_answer_is_handed_on_in_parts(make_service: MakeService, tmp_path: Path, is_tls: bool) -> None:
    """A transport of TLS copies what it is handed, and so would hold all of it twice more."""
    service = bounded(make_service, **({"tls": made(tmp_path)} if is_tls else {}))
    put(service, *range(10), namespace="many", size=LARGE)
    with unread(service, get("/v1/rewards?limit=10", MANY)) as client:
        wait_for(lambda: held() > 10 * LARGE, "the answer")
        for _ in range(5):
            client.recv(4096)
        (only,) = connections()
        assert only.transport.get_write_buffer_size() < 3 * PART
        received = b""
        while received.count(b"i9") < 1 or not received.endswith(b"}"):
            received += client.recv(1 << 16)
        wait_for(lambda: held() == 0, "the end of the answer")


def test_a_stream_reads_no_further_ahead_than_a_page_of_bytes(make_service: MakeService) -> None:
    service = bounded(make_service)
    put(service, *range(200), namespace="many", size=LARGE)
    with unread(service, get(STREAM, MANY)) as client:
        wait_for(lambda: held() > PART, "what it holds")
        wait_for(lambda: shown() > PART, "a look at all")
        assert held() < 5 * PART
        assert service.store.looks < 40, "the store is not read for who does not read"
        received = b""
        while b'"i199"' not in received:
            received += client.recv(1 << 20)
    found = [line for line in received.split(b"\n") if line.startswith(b"id: ")]
    assert len(found) == 200
