"""What other clients and proxies speak: HEAD, bodies that are compressed or in chunks, and versions of HTTP."""

import gzip
import http.client
import json
import socket
import time
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import zstandard
from api_harness import MODEL, Service, serve

from api.http.compressed import _Zstd

CHAT = "/v1/chat/completions"
BODY = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hello " * 50}]}).encode()


def bare(data: bytes) -> bytes:
    writer = zlib.compressobj(wbits=-15)
    return writer.compress(data) + writer.flush()


WAYS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "x-gzip": ("x-gzip", gzip.compress),
    "many members": ("GZIP", lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:])),
    "zlib": ("deflate", zlib.compress),
    "deflate without a head": ("deflate", bare),
    "zstd": ("zstd", zstandard.compress),
    "many frames": ("zstd", lambda data: zstandard.compress(data[:9]) + zstandard.compress(data[9:])),
    "plain": ("identity", bytes),
}
WIDE = zstandard.ZstdCompressionParameters(window_log=27, enable_ldm=True)  # as `zstd --long` writes


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serve(tmp_path_factory.mktemp("http"), bodies={"max_bytes": 1 << 20, "large_bytes": 1 << 16}) as service:
        yield service


def post(service: Service, body: bytes, encoding: str, path: str = CHAT) -> Any:
    headers = {"content-type": "application/json", "content-encoding": encoding}
    return service.http.post(path, content=body, headers=headers)


@pytest.mark.parametrize("way", WAYS)
def test_a_compressed_body_is_read(service: Service, way: str) -> None:
    encoding, compress = WAYS[way]
    answer = post(service, compress(BODY), encoding)
    assert answer.status_code == 200, answer.text
    turn = service.turn(answer.headers["x-onward-inference-id"])
    assert turn.messages[0]["content"] == "hello " * 50


@pytest.mark.parametrize("way", ["gzip", "zlib", "deflate without a head", "zstd"])
def test_a_large_one_is_read_within_the_bounds(service: Service, way: str) -> None:
    encoding, compress = WAYS[way]
    words = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "a b " * 40_000}]}).encode()
    answer = post(service, compress(words), encoding)
    assert "maximum context length" in answer.text
    bomb = compress(b" " * (40 << 20))
    answer = post(service, bomb, encoding)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


@pytest.mark.parametrize("path", [CHAT, "/v1/feedback", "/v1/messages/count_tokens"])
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
def test_what_is_not_compressed_as_it_says_is_refused(service: Service, path: str, encoding: str) -> None:
    whole = {"gzip": gzip, "deflate": zlib, "zstd": zstandard}[encoding].compress(BODY)  # type: ignore[attr-defined]
    for body in (b"\x00nothing", whole[:-5], whole + b"more"):
        answer = post(service, body, encoding, path)
        assert answer.status_code == 400, answer.text
        assert f"the body's {encoding}" in answer.text


def test_what_a_zstd_takes_to_be_read_is_bounded(service: Service) -> None:
    writer = zstandard.ZstdCompressor(compression_params=WIDE).compressobj()
    answer = post(service, writer.compress(BODY) + writer.flush(), "zstd")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "malformed_encoding")
    assert "too much memory" in answer.text
    made = [len(piece) for piece in _Zstd().pieces(zstandard.compress(b" " * (64 << 20)))]
    assert sum(made) == 64 << 20
    assert max(made) <= 9 << 20


@pytest.mark.parametrize("way", ["many members", "many frames"])
def test_what_begins_anew_without_end_is_refused(service: Service, way: str) -> None:
    encoding, name = {"many members": (gzip, "gzip"), "many frames": (zstandard, "zstd")}[way]
    nothing, whole = encoding.compress(b""), encoding.compress(BODY)  # type: ignore[attr-defined]
    assert post(service, nothing * 1000 + whole, name).status_code == 200
    answer = post(service, nothing * 1025 + whole, name)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "malformed_encoding")
    assert "begins anew" in answer.text


def test_what_makes_nothing_is_bounded_by_what_is_sent(service: Service) -> None:
    empty = b"\x00\x00\x00\xff\xff" * 1000  # blocks of deflate
    headers = {"content-type": "application/json", "content-encoding": "deflate"}
    sent = (empty for _ in range((1 << 20) // len(empty) + 1))
    answer = service.http.post(CHAT, content=sent, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


@pytest.mark.parametrize("encoding", ["br", "gzip, gzip"])
def test_another_compression_is_refused_with_what_is_taken(service: Service, encoding: str) -> None:
    answer = post(service, BODY, encoding)
    assert (answer.status_code, answer.json()["error"]["param"]) == (415, "content-encoding")
    assert answer.headers["accept-encoding"] == "gzip, deflate, zstd"


@pytest.mark.parametrize("path", ["/v1/models", "/v1/outcomes", "/livez", "/v1/rewards", "/nowhere", "/v1/turns/x"])
def test_head_has_the_headers_of_get(service: Service, path: str) -> None:
    got, head = service.http.get(path), service.http.head(path)
    assert (head.status_code, head.content) == (got.status_code, b"")
    differ = {"date", "x-request-id"}
    assert {k: v for k, v in head.headers.items() if k not in differ} == {
        k: v for k, v in got.headers.items() if k not in differ
    }


def test_head_of_a_stream_ends(service: Service) -> None:
    answer = service.http.head("/v1/rewards/stream?after=0")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize("name", [b"Upgrade", b"upgrade", b"UPGRADE"])
def test_a_wish_for_another_protocol_is_ignored(service: Service, name: bytes) -> None:
    """Java's client asks for HTTP/2 with its first request, and sends the body at once."""
    url = httpx.URL(service.url)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade, HTTP2-Settings\r\n%s: h2c\r\n"
    head += b"HTTP2-Settings: AAMAAABk\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with socket.create_connection((url.host, url.port or 80), timeout=120) as connection:
        for _ in range(2):  # the connection goes on
            connection.sendall(head % (f"{url.host}:{url.port}".encode(), name, len(BODY)) + BODY)
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            assert answer.status == 200
            assert json.loads(answer.read())["choices"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_such_a_wish_is_ignored_however_it_arrives(service: Service, size: int) -> None:
    url = httpx.URL(service.url)
    head = f"POST {CHAT} HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nUpgrade: TLS/1.0\r\n"
    head += f"Host: {url.host}:{url.port}\r\nContent-Type: application/json\r\nContent-Length: {len(BODY)}\r\n"
    head += "Upgrade: h2c\r\n\r\n"
    with socket.create_connection((url.host, url.port or 80), timeout=120) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(2):
            for at in range(0, len(head), size):
                connection.sendall(head[at : at + size].encode())
                time.sleep(0.001)
            connection.sendall(BODY)
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            assert answer.status == 200
            assert json.loads(answer.read())["choices"]


STREAM = json.dumps({**json.loads(BODY), "stream": True}).encode()


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
@pytest.mark.parametrize("body", [BODY, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_each_version_gets_the_framing_that_it_knows(
    service: Service, version: str, body: bytes, connection: str
) -> None:
    url = httpx.URL(service.url)
    head = f"POST {CHAT} HTTP/{version}\r\nHost: {url.host}:{url.port}\r\nConnection: {connection}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((url.host, url.port or 80), timeout=120) as opened:
        opened.sendall(head.encode() + body)
        answer = http.client.HTTPResponse(opened)
        answer.begin()
        is_chunked = answer.headers.get("transfer-encoding") == "chunked"
        assert is_chunked == (version == "1.1" and body == STREAM)
        assert is_chunked or "content-length" in answer.headers or answer.will_close
        said = answer.read()
        assert said.endswith(b"data: [DONE]\n\n" if body == STREAM else b"}")
        ends = version == "1.0" or connection == "close"
        assert (answer.headers.get("connection") == "close") == ends
        if ends:
            assert opened.recv(1) == b""


@pytest.mark.parametrize(("version", "goes_on"), [("1.0", False), ("1.1", True)])
def test_only_a_client_that_knows_it_is_told_to_go_on(service: Service, version: str, goes_on: bool) -> None:
    """RFC 9110, 10.1.1: a client of HTTP/1.0 would take `100 Continue` for the answer."""
    url = httpx.URL(service.url)
    head = f"POST {CHAT} HTTP/{version}\r\nHost: {url.host}:{url.port}\r\nExpect: 100-continue\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
    with socket.create_connection((url.host, url.port or 80), timeout=120) as opened:
        opened.sendall(head.encode())
        if goes_on:
            assert opened.recv(1 << 16) == b"HTTP/1.1 100 Continue\r\n\r\n"
        opened.sendall(BODY)
        assert opened.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


def whole(opened: socket.socket) -> tuple[int, Any]:
    """Return the only answer on a connection, which then ends."""
    answer = http.client.HTTPResponse(opened)
    answer.begin()
    said = json.loads(answer.read())
    assert answer.headers["connection"] == "close"
    assert opened.recv(1) == b""
    return answer.status, said


@pytest.mark.parametrize("has_host", [True, False])
@pytest.mark.parametrize("version", ["0.9", "1.2", "2.0", "3.0", "9.9"])
def test_a_version_that_we_do_not_speak_is_refused(service: Service, version: str, has_host: bool) -> None:
    url = httpx.URL(service.url)
    host = f"Host: {url.host}:{url.port}\r\n" if has_host else ""
    with socket.create_connection((url.host, url.port or 80), timeout=120) as opened:
        opened.sendall(f"GET /healthz HTTP/{version}\r\n{host}\r\n".encode())
        status, said = whole(opened)
    assert (status, said["error"]["code"]) == (400, "malformed_request")
    assert "HTTP/1.1 or HTTP/1.0" in said["error"]["message"]


def test_who_begins_with_http_2_is_refused(service: Service) -> None:
    """With what a client sends first that knows, without asking, that a server speaks it (RFC 9113, 3.4)."""
    url = httpx.URL(service.url)
    with socket.create_connection((url.host, url.port or 80), timeout=120) as opened:
        opened.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        status, said = whole(opened)
    assert (status, said["error"]["code"]) == (400, "malformed_request")
    assert "HTTP/1.1 or HTTP/1.0" in said["error"]["message"]


def test_chunks_of_a_client_of_http_1_0_are_read_and_nothing_behind_them(service: Service) -> None:
    """RFC 9112, 6.1: whoever passed it on may have taken another body for it."""
    url = httpx.URL(service.url)
    sent = asking(f"{url.host}:{url.port}", "Connection: keep-alive", chunked=True).replace(b"HTTP/1.1", b"HTTP/1.0")
    with socket.create_connection((url.host, url.port or 80), timeout=120) as opened:
        opened.sendall(sent * 2)
        status, said = whole(opened)
    assert status == 200
    assert service.turn(said["onward"]["inference_id"]).messages[0]["content"] == "hello " * 50


def test_a_request_without_a_host_is_refused_where_there_must_be_one(service: Service) -> None:
    url = httpx.URL(service.url)
    for version, status in (("1.1", b"400"), ("1.0", b"200")):
        with socket.create_connection((url.host, url.port or 80), timeout=120) as opened:
            opened.sendall(f"GET /healthz HTTP/{version}\r\n\r\n".encode())
            assert opened.recv(1 << 16).startswith(b"HTTP/1.1 " + status)


def test_two_hosts_are_refused_and_trailers_are_no_headers(service: Service) -> None:
    url = httpx.URL(service.url)
    host = f"{url.host}:{url.port}".encode()
    with socket.create_connection((url.host, url.port or 80), timeout=120) as connection:
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: %s\r\nHost: %s\r\n\r\n" % (host, host))
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 400 ")
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n" % host
    chunked = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)
    with socket.create_connection((url.host, url.port or 80), timeout=120) as connection:
        connection.sendall(head + chunked + b"x-onward-workload: smuggled\r\nHost: elsewhere\r\n\r\n")
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert answer.status == 200
        assert service.turn(answer.headers["x-onward-inference-id"]).workload == "chat"


@pytest.mark.parametrize(
    ("path", "right"), [(f"{CHAT}/?a=%C3%A9", f"{CHAT}?a=%C3%A9"), ("/v1/outcomes/", "/v1/outcomes")]
)
def test_a_redirect_leads_to_no_other_address(service: Service, path: str, right: str) -> None:
    """Before us may stand a proxy that speaks TLS: its clients are not to send their keys on without."""
    answer = service.http.post(path, content=BODY, headers={"content-type": "application/json"}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, right)


@pytest.mark.parametrize("size", [1, 2000])
def test_a_mark_of_byte_order_is_no_content(service: Service, size: int) -> None:
    """Also of a body that is so large that it is read apart."""
    body = BODY.replace(b"hello", b"hello".ljust(size))
    answers = [
        service.http.post(CHAT, content=marks + body, headers={"content-type": "application/json"})
        for marks in (BOM_UTF8, BOM_UTF8 * 2)
    ]
    codes = [answer.json().get("error", {}).get("code") for answer in answers]
    assert codes == [None if size == 1 else "context_length_exceeded", "malformed_json"]


def test_what_takes_no_get_takes_no_head(service: Service) -> None:
    answer = service.http.head(CHAT)
    assert answer.status_code == 405


def asking(host: str, *lines: str, chunked: bool = False) -> bytes:
    """Return a request of these headers; its body's size is told in the head, or it comes in two chunks."""
    half = len(BODY) // 2
    body = b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in (BODY[:half], BODY[half:])) + b"0\r\n\r\n"
    size = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(BODY)}"
    head = [f"POST {CHAT} HTTP/1.1", f"Host: {host}", "Content-Type: application/json", size, *lines, "", ""]
    return "\r\n".join(head).encode() + (body if chunked else BODY)


@pytest.mark.parametrize("size", [7, 1000, 1 << 16])
def test_such_a_wish_is_ignored_behind_another_request(service: Service, size: int) -> None:
    """A client may send its next requests before it has the answer to the first (RFC 9112, 9.3.2)."""
    url = httpx.URL(service.url)
    host, wish = f"{url.host}:{url.port}", ("Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings")
    sent = [asking(host), asking(host, *wish), asking(host, *wish, chunked=True), asking(host), asking(host, *wish)]
    bare = f"GET /healthz HTTP/1.1\r\nHost: {host}\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n".encode()
    whole = b"".join([*sent, bare, asking(host, "Upgrade: h2c", "Connection: close, Upgrade")])
    with socket.create_connection((url.host, url.port or 80), timeout=120) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(whole), size):
            connection.sendall(whole[at : at + size])
        received = b""
        while piece := connection.recv(1 << 16):
            received += piece
    assert (received.count(b"HTTP/1.1 200"), received.count(b"HTTP/1.1 ")) == (7, 7), received
    assert received.count(b'"choices"') == 6


def test_a_wish_frees_no_request_of_what_is_asked_of_a_head(service: Service) -> None:
    """Nor does a body behind it have two sizes."""
    url = httpx.URL(service.url)
    wish = ("Upgrade: h2c", "Connection: Upgrade")
    for spoilt in (
        asking("", *wish).replace(b"Host: \r\n", b""),
        asking(f"{url.host}:{url.port}", *wish, "Content-Length: 5"),
        asking(f"{url.host}:{url.port}", *wish, "Transfer-Encoding: chunked"),
    ):
        with socket.create_connection((url.host, url.port or 80), timeout=120) as connection:
            connection.sendall(spoilt)
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 400")
