"""Pages of other origins: what a browser lets them try, and what comes of it. Programs are not affected."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import aiohttp
import httpx
import pytest
from api_harness import MODEL, WAIT_S, Service, serve
from browser import running_browser
from playwright.sync_api import Browser

from api.access.origin_check import OriginCheck
from core.settings import ApiSettings, WebSettings

PIN = "/v1/policies/1/pin"
WHY = json.dumps({"why": "because"})
JSON = "application/json"
FRIEND = "https://app.example.org"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    web = {"allowed_hosts": ("onward.example.org",), "allowed_origins": (FRIEND,)}
    with serve(tmp_path_factory.mktemp("pages") / "service", web=web) as service:
        yield service


@pytest.fixture(scope="module")
def plain(service: Service) -> Iterator[httpx.Client]:
    """Yield a client that sends no content type of its own."""
    with httpx.Client(base_url=service.url, timeout=WAIT_S) as client:
        yield client


def pin(service: Service, plain: httpx.Client, **headers: str) -> tuple[int, str | None]:
    """Return the status and the error's code; assert that the order was carried out if and only if it succeeded."""
    given = len(service.orders.done)
    named = {name.replace("_", "-"): value for name, value in {"content_type": JSON, **headers}.items()}
    answer = plain.post(PIN, content=WHY, headers={name: value for name, value in named.items() if value})
    assert len(service.orders.done) - given == (answer.status_code == 200)
    return answer.status_code, None if answer.status_code == 200 else answer.json()["error"]["code"]


HOST, ORIGIN, MEDIA = (403, "host_not_allowed"), (403, "origin_not_allowed"), (415, "unsupported_media_type")
DONE = (200, None)


@pytest.mark.parametrize(
    ("headers", "outcome"),
    [
        ({}, DONE),
        ({"host": "localhost:1"}, DONE),
        ({"host": "LOCALHOST"}, DONE),
        ({"host": "[::1]:8700"}, DONE),
        ({"host": "onward.example.org"}, DONE),
        ({"host": "evil.example"}, HOST),
        ({"host": "127.0.0.1.evil.example:8700"}, HOST),
        ({"host": "localhost.evil.example"}, HOST),
        ({"host": "[evil.example]"}, HOST),
        ({"host": ""}, DONE),  # as HTTP/1.0: httpx then names its own
        ({"origin": "null"}, ORIGIN),
        ({"origin": "https://evil.example"}, ORIGIN),
        ({"origin": f"{FRIEND}.evil.example"}, ORIGIN),
        ({"origin": "http://onward.example.org:8700", "host": "onward.example.org"}, ORIGIN),
        ({"origin": "http://localhost:8700", "host": "localhost:8700"}, DONE),
        ({"origin": "http://localhost:8700", "host": "localhost:8700", "sec_fetch_site": "cross-site"}, ORIGIN),
        ({"origin": "https://console.example.org", "sec_fetch_site": "same-origin"}, DONE),  # behind a proxy
        ({"origin": FRIEND, "sec_fetch_site": "cross-site"}, DONE),
        ({"sec_fetch_site": "cross-site"}, ORIGIN),
        ({"sec_fetch_site": "same-site"}, ORIGIN),
        ({"sec_fetch_site": "none"}, DONE),
        ({"content_type": ""}, MEDIA),
        ({"content_type": "text/plain"}, MEDIA),
        ({"content_type": "application/x-www-form-urlencoded"}, MEDIA),
        ({"content_type": "multipart/form-data; boundary=x"}, MEDIA),
        ({"content_type": "text/plain; application/json"}, MEDIA),
        ({"content_type": "Application/JSON; charset=utf-8"}, DONE),
        ({"content_type": "application/merge-patch+json"}, DONE),
    ],
)
def test_an_order_is_heard_from_whom_it_may_come(
    service: Service, plain: httpx.Client, headers: dict[str, str], outcome: tuple[int, str | None]
) -> None:
    assert pin(service, plain, **headers) == outcome


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/feedback", PIN, "/v1/alarms/a/ack"])
def test_whatever_changes_something_asks_where_it_comes_from(service: Service, path: str) -> None:
    for headers, status in (({"origin": "https://evil.example"}, 403), ({"content-type": "text/plain"}, 415)):
        answer = service.http.post(path, content=b"{}", headers={"content-type": JSON, **headers})
        assert answer.status_code == status, path
        assert not {name for name in answer.headers if name.startswith("access-control")}


def test_what_is_read_is_read_by_the_same(service: Service) -> None:
    for path in ("/v1/rewards", "/v1/rewards/stream", "/metrics", "/", "/openapi.json"):
        assert service.get(path, origin="https://evil.example").status_code == 403, path
        assert service.get(path, host="evil.example").status_code == 403, path
    assert service.get("/", sec_fetch_site="cross-site").status_code == 200, "a link to the console"


def test_without_a_body_nothing_is_said_of_its_kind(plain: httpx.Client) -> None:
    assert plain.post("/v1/sessions/nobody/end").status_code == 404
    assert plain.delete("/v1/feedback/nobody").status_code == 404
    body: Any = iter([b"{}"])
    assert plain.post("/v1/sessions/nobody/end", content=body).status_code == 415, "in chunks"


def preflight(service: Service, origin: str) -> Any:
    wanted = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,x-session-id"}
    return service.http.options("/v1/chat/completions", headers={"origin": origin, **wanted})


def test_a_page_that_may_is_told_so_and_reads_the_answer(service: Service) -> None:
    asked = preflight(service, FRIEND)
    assert asked.status_code == 204
    assert {name: value for name, value in asked.headers.items() if name.startswith("access-control")} == {
        "access-control-allow-origin": FRIEND,
        "access-control-allow-methods": "GET, POST, DELETE",
        "access-control-allow-headers": "authorization,x-session-id",
        "access-control-max-age": "600",
    }
    answers = [
        service.chat("hi", headers={"origin": FRIEND}),
        service.chat("hi", headers={"origin": FRIEND}, stream=True),
        service.chat("hi", headers={"origin": FRIEND}, functions=[{}]),  # what is wrong may be read, too
        service.get("/v1/models", origin=FRIEND),
        service.get("/v1/nothing", origin=FRIEND),
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 400, 200, 404]
    for answer in answers:
        assert (answer.headers["access-control-allow-origin"], answer.headers["vary"]) == (FRIEND, "origin")
        assert "access-control-allow-credentials" not in answer.headers
    assert not {name for name in service.chat("hi").headers if name.startswith("access-control")}


def test_a_page_that_may_not_is_refused_before_it_asks(service: Service) -> None:
    refused = preflight(service, "https://evil.example")
    assert refused.status_code == 403
    assert not {name for name in refused.headers if name.startswith("access-control")}


@pytest.mark.parametrize("origin", ["*", "null", "https://app.example.org/", "app.example.org", "HTTPS://APP"])
def test_origins_are_named_one_by_one(origin: str) -> None:
    with pytest.raises(ValueError, match="allowed_origins"):
        ApiSettings(web=WebSettings(allowed_origins=(origin,)))


def test_beyond_loopback_any_name_will_do_until_some_are_given() -> None:
    def admits(host: str, **settings: Any) -> bool:
        check, told = OriginCheck(ApiSettings(host="0.0.0.0", **settings)), []

        async def send(message: Any) -> None:
            told.append(message)

        scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"host", host.encode())]}
        return asyncio.run(check.admit(scope, None, send)) is not None  # type: ignore[arg-type]

    assert admits("any.example")
    assert admits("a.example:80", web={"allowed_hosts": ("a.example",)})
    assert admits("172.18.0.5:8700", web={"allowed_hosts": ("a.example",)}), "as Prometheus asks"
    assert not admits("any.example", web={"allowed_hosts": ("a.example",)})


async def _of_a_web_socket(headers: list[tuple[bytes, bytes]]) -> list[Any]:
    told: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        told.append(message)

    admitted = await OriginCheck(ApiSettings()).admit({"type": "websocket", "headers": headers}, receive, send)
    return told if admitted is None else ["in"]


def test_a_web_socket_would_be_asked_the_same() -> None:
    ours = (b"host", b"localhost:8700")
    assert asyncio.run(_of_a_web_socket([ours, (b"origin", b"http://localhost:8700")])) == ["in"]
    (closed,) = asyncio.run(_of_a_web_socket([ours, (b"origin", b"http://evil.example")]))
    assert (closed["type"], closed["code"]) == ("websocket.close", 1008)


def test_aiohttp_and_openai_go_on_as_they_are(service: Service) -> None:
    """Each sends its own headers; curl sends no more than httpx does."""

    async def by_aiohttp() -> int:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
        async with (
            aiohttp.ClientSession() as http,
            http.post(service.url + "/v1/chat/completions", json=body) as answer,
        ):
            return answer.status

    assert asyncio.run(by_aiohttp()) == 200
    for stream in (False, True):
        service.client().chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "hi"}], stream=stream
        )


# ------------------------------------------------------------------------------------------------ in a browser


@contextmanager
def pages() -> Iterator[int]:
    """Serve an empty page under any name; yield the port."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>a page</title>")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        server.daemon_threads = True  # a browser opens connections that it may not need, and keeps them
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Yield a browser that resolves every name under `test` to this machine, as an attacker's DNS would."""
    with running_browser("--host-resolver-rules=MAP *.test 127.0.0.1") as browser:
        yield browser


ATTACK = """async ([api, model]) => {
  const why = JSON.stringify({ why: "an attack" });
  const vote = JSON.stringify({ session_id: "s", metric_name: "shipped", value: true });
  const chat = JSON.stringify({ model, messages: [{ role: "user", content: "hi" }] });
  const json = { "Content-Type": "application/json" };
  const tried = {};
  const attempt = async (name, work) => {
    const late = new Promise(tell => setTimeout(tell, 60000, "no answer"));
    tried[name] = await Promise.race([work().then(String, error => error.name), late]);
  };
  const form = (path, body) => new Promise(done => {
    const frame = Object.assign(document.createElement("iframe"), { name: "hidden" });
    document.body.append(frame);
    const form = document.body.appendChild(document.createElement("form"));
    Object.assign(form, { action: api + path, method: "POST", enctype: "text/plain", target: frame.name });
    form.append(Object.assign(document.createElement("input"), { name: body.slice(0, -2), value: body.slice(-2) }));
    frame.onload = () => done("answered");
    form.submit();
  });
  await attempt("a form", () => form("/v1/policies/1/pin", why));
  for (const [name, body] of [["policies/1/rollback", why], ["feedback", vote], ["chat/completions", chat]]) {
    const post = options => () => fetch(`${api}/v1/${name}`, { method: "POST", body, ...options }).then(() => "sent");
    await attempt("as text " + name, post({ mode: "no-cors" }));
    await attempt("as nothing " + name, post({ mode: "no-cors", body: new Blob([body]) }));
    await attempt("as JSON " + name, post({ headers: json }));
  }
  for (const path of ["/v1/rewards", "/v1/models", "/metrics"])
    await attempt("read " + path, () => fetch(api + path).then(answer => answer.status));
  await attempt("read the stream", () => new Promise((open, fail) => {
    const stream = new EventSource(api + "/v1/rewards/stream");
    stream.onopen = () => open("open");
    stream.onerror = () => { stream.close(); fail(new TypeError()); };
  }));
  return tried;
}"""


@pytest.mark.parametrize("site", ["evil.test", "127.0.0.1"])
def test_a_page_of_another_site_does_nothing_and_reads_nothing(chromium: Browser, service: Service, site: str) -> None:
    """Another port of this machine is another site, too."""
    given, said, asked = len(service.orders.done), len(service.outcomes()), len(service.policy.requests)
    with pages() as port:
        page = chromium.new_page()
        page.goto(f"http://{site}:{port}/")
        tried = page.evaluate(ATTACK, [service.url, MODEL])
        page.close()
    assert len(tried) == 14
    blind = {name: came for name, came in tried.items() if name.startswith(("as text", "as nothing", "a form"))}
    assert {came for name, came in tried.items() if name not in blind} == {"TypeError"}, tried
    assert set(blind.values()) == {"answered", "sent"}, tried
    assert (service.orders.done[given:], service.outcomes()[said:]) == ([], [])
    assert len(service.policy.requests) == asked


def test_a_page_whose_name_becomes_ours_is_not_of_our_origin(chromium: Browser, service: Service) -> None:
    given, port = len(service.orders.done), service.url.rpartition(":")[2]
    page = chromium.new_page()
    answer = page.goto(f"http://evil.test:{port}/")
    assert answer is not None
    assert answer.status == 403
    order = f"fetch('{PIN}', {{method: 'POST', headers: {{'Content-Type': '{JSON}'}}, body: '{WHY}'}})"
    assert page.evaluate(f"{order}.then(answer => answer.status)") == 403
    assert page.evaluate("fetch('/v1/rewards').then(answer => answer.status)") == 403
    page.close()
    assert service.orders.done[given:] == []


def test_a_page_that_is_allowed_uses_the_api(chromium: Browser, tmp_path: Any) -> None:
    key = {"key": "key-of-friend", "namespace": "default", "scopes": ("chat", "read")}
    with (
        pages() as port,
        serve(tmp_path / "service", keys=(key,), web={"allowed_origins": (f"http://friend.test:{port}",)}) as api,
    ):
        page = chromium.new_page()
        page.goto(f"http://friend.test:{port}/")
        said = page.evaluate(
            """async ([api, model]) => {
              const headers = { "Content-Type": "application/json", Authorization: "Bearer key-of-friend" };
              const body = JSON.stringify({ model, stream: true, messages: [{ role: "user", content: "hi" }] });
              const answer = await fetch(api + "/v1/chat/completions", { method: "POST", headers, body });
              const stream = await fetch(api + "/v1/rewards/stream", { headers });
              const { value } = await stream.body.getReader().read();
              return [answer.headers.get("x-onward-arm"), await answer.text(), new TextDecoder().decode(value)];
            }""",
            [api.url, MODEL],
        )
        page.close()
    assert said[0] == "live"
    assert said[1].endswith("data: [DONE]\n\n")
    assert said[2] == ": open\n\n"
