"""Signing in with a provider that really speaks OpenID Connect: who comes in, as what, and who does not."""

import base64
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import msgspec
import pytest
from api_harness import Service, serve
from browser import running_browser
from identity_provider import running_provider
from itsdangerous import URLSafeTimedSerializer
from playwright.sync_api import Browser, expect
from ports import free_port

from api.access.identity import KeyRing
from api.access.sessions import BEGUN, COOKIE, Session, Sessions
from core.settings import ApiSettings, SignInSettings

SESSION_KEY = "a-key-that-signs-sessions"
USERS: Any = (
    {"sub": "ada", "email": "ada@example.org", "roles": ["operators", "auditors"]},
    {"sub": "bob", "email": "bob@example.org", "roles": ["cooks"]},
    {"sub": "eve", "email": "eve@example.org", "roles": ["operators", "strangers"]},
    {"sub": "zoe", "roles": "operators"},
)
ROLES: Any = {
    "operators": {"namespace": "ours", "scopes": ("read", "operate")},
    "auditors": {"namespace": "ours", "scopes": ("audit",)},
    "strangers": {"namespace": "theirs", "scopes": ("read",)},
}
KEYS: Any = ({"key": "key-of-a-plugin", "namespace": "ours", "scopes": ("chat", "read")},)
OWN_PAGE = {"sec-fetch-site": "same-origin"}


@pytest.fixture(scope="module")
def provider() -> Iterator[str]:
    with running_provider(*USERS) as url:
        yield url


@pytest.fixture(scope="module")
def service(provider: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    port = free_port()  # the provider is told where to send browsers back
    sign_in = {
        "issuer": provider,
        "client_secret": "shared",
        "public_url": f"http://127.0.0.1:{port}",
        "session_key": SESSION_KEY,
        "roles": ROLES,
    }
    with serve(tmp_path_factory.mktemp("signin") / "service", port=port, keys=KEYS, sign_in=sign_in) as service:
        yield service


class Person:
    """Somebody with a browser of his own, as far as redirects and cookies go."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.jar = httpx.Client(timeout=60)

    def begin(self) -> str:
        """Return the URL at the provider to which he is sent."""
        answer = self.jar.get(f"{self._service.url}/signin/begin")
        assert answer.status_code == 303
        return answer.headers["location"]

    def agree(self, there: str, sub: str) -> str:
        """Return the URL to which the provider sends him back."""
        return self.jar.post(there, data={"sub": sub}).headers["location"]

    def sign_in(self, sub: str) -> httpx.Response:
        return self.jar.get(self.agree(self.begin(), sub))

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self.jar.get(self._service.url + path, headers={**OWN_PAGE, **headers})

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.jar.post(self._service.url + path, json=body, headers=named)


@pytest.fixture
def person(service: Service) -> Iterator[Person]:
    person = Person(service)
    with person.jar:
        yield person


def trail(service: Service) -> list[dict[str, Any]]:
    with service.store.look() as view:
        return [msgspec.json.decode(entry.record) for entry in view.audit.in_order()]


def test_who_signs_in_has_the_rights_of_his_roles_under_his_name(service: Service, person: Person) -> None:
    assert person.get("/v1/sessions").status_code == 401
    answer = person.sign_in("ada")
    assert (answer.status_code, answer.headers["location"]) == (303, "../")
    me = person.get("/v1/me").json()
    assert (me["by"], me["namespace"], me["signed_in"]) == ("oidc:ada@example.org", "ours", True)
    assert me["scopes"] == ["audit", "operate", "read"]
    assert person.get("/v1/sessions").status_code == person.get("/v1/audit").status_code == 200
    assert person.get("/v1/keys").status_code == 403
    assert person.post("/v1/chat/completions", {}, sec_fetch_site="same-origin").status_code == 401
    done, read = [each for each in trail(service) if each["by"] == "oidc:ada@example.org"][:2]
    assert (done["what"], done["kind"], done["key"], done["namespace"]) == (
        "GET /signin/done",
        "change",
        "oidc",
        "ours",
    )
    assert read["what"] == "GET /v1/sessions"


def test_the_way_there_has_pkce_and_nothing_that_a_stranger_knows(service: Service, person: Person) -> None:
    first, second = (parse_qs(urlsplit(person.begin()).query) for _ in range(2))
    for name in ("state", "nonce", "code_challenge"):
        assert first[name] != second[name]
    assert second["code_challenge_method"] == ["S256"]
    begun = URLSafeTimedSerializer(SESSION_KEY, salt=BEGUN).loads(person.jar.cookies[BEGUN])
    digest = base64.urlsafe_b64encode(hashlib.sha256(begun["verifier"].encode()).digest()).rstrip(b"=").decode()
    assert second["code_challenge"] == [digest]
    assert second["redirect_uri"] == [f"{service.url}/signin/done"]


def test_the_cookie_is_for_this_sites_own_requests_and_for_no_script(person: Person) -> None:
    said = [each for each in person.sign_in("ada").headers.get_list("set-cookie") if each.startswith(COOKIE)]
    assert [re.sub(r"=[^;]*", "=…", said[0], count=1)] == [
        f"{COOKIE}=…; Path=/; Max-Age=28800; HttpOnly; SameSite=Strict"
    ]


@pytest.mark.parametrize(("sub", "code"), [("bob", "no_role"), ("eve", "several_namespaces"), ("mallory", "no_role")])
def test_who_has_no_role_here_does_not_come_in(service: Service, person: Person, sub: str, code: str) -> None:
    answer = person.sign_in(sub)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, code)
    assert COOKIE not in person.jar.cookies
    assert person.get("/v1/me").json()["by"] is None


def test_a_role_may_be_one_text_and_a_name_the_subject(person: Person) -> None:
    person.sign_in("zoe")
    assert person.get("/v1/me").json()["by"] == "oidc:zoe"


def test_with_https_the_cookie_goes_by_https_alone() -> None:
    secure = SignInSettings(public_url="https://x", session_key=SESSION_KEY)
    cookie = Sessions(secure, KeyRing(ApiSettings())).cookie_of(Session("oidc:ada", ("operators",)))
    assert cookie.endswith("; Secure")


# ------------------------------------------------------------------------------------------ forgeries


def test_an_end_that_did_not_begin_in_this_browser_is_refused(service: Service, person: Person) -> None:
    """Otherwise somebody could sign a victim in as himself, and read what he does."""
    back = person.agree(person.begin(), "ada")
    with httpx.Client(timeout=60) as another:
        assert another.get(back).json()["error"]["code"] == "sign_in_failed"
    assert person.jar.get(back + "x").status_code == 403  # the code or the state
    other_state = re.sub(r"state=[^&]*", "state=another", back)
    assert person.jar.get(other_state).json()["error"]["code"] == "sign_in_failed"
    assert person.jar.get(back).status_code == 303
    assert person.jar.get(back).status_code == 403, "once"


def test_a_code_of_another_sign_in_is_refused(person: Person, service: Service) -> None:
    """Its token has another nonce, and its verifier another challenge."""
    victim = Person(service)
    with victim.jar:
        stolen = parse_qs(urlsplit(victim.agree(victim.begin(), "ada")).query)["code"][0]
    mine = person.agree(person.begin(), "zoe")
    answer = person.jar.get(re.sub(r"code=[^&]*", f"code={stolen}", mine))
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "sign_in_failed")


@pytest.mark.parametrize("salt", [COOKIE, BEGUN])
def test_a_cookie_that_we_did_not_sign_is_nobodys(service: Service, salt: str) -> None:
    key = "another-key-that-signs" if salt == COOKIE else SESSION_KEY
    forged = URLSafeTimedSerializer(key, salt=salt).dumps({"by": "oidc:eve", "roles": ["operators"]})
    for value in (forged, "", "x.y.z"):
        headers = {"cookie": f"{COOKIE}={value}", **OWN_PAGE}
        answer = httpx.get(f"{service.url}/v1/sessions", headers=headers, timeout=60)
        assert answer.status_code == 401


def test_another_sites_page_can_do_nothing_with_the_session(service: Service, person: Person) -> None:
    person.sign_in("ada")
    body = {"until": "2020-01-01T00:00:00Z", "why": "a trick"}
    host = service.url.removeprefix("http://")
    for headers in (
        {},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "none"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": f"http://{host}.evil.example"},
    ):
        answer = person.post("/v1/exclusions", body, **headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "origin_not_allowed"), headers
        assert person.post("/signin/end", {}, **headers).status_code == 403
    for headers in ({"sec_fetch_site": "same-origin"}, {"origin": service.url}):
        assert person.post("/v1/exclusions", body, **headers).status_code == 202
    assert person.get("/v1/sessions", **{"sec-fetch-site": "cross-site"}).status_code == 401


def test_a_form_of_another_site_signs_nobody_out_and_orders_nothing(service: Service, person: Person) -> None:
    person.sign_in("ada")
    answer = person.jar.post(
        f"{service.url}/v1/exclusions", data={"why": "a trick"}, headers={"origin": "http://evil.example"}
    )
    assert answer.status_code == 403


def test_who_signs_out_is_nobody(service: Service, person: Person) -> None:
    person.sign_in("ada")
    assert person.post("/signin/end", {}, **{"sec-fetch-site": "same-origin"}).status_code == 200
    assert person.get("/v1/sessions").status_code == 401
    assert trail(service)[-1]["what"] == "POST /signin/end"


def test_a_key_wins_over_a_session(person: Person) -> None:
    person.sign_in("ada")
    me = person.get("/v1/me", authorization="Bearer key-of-a-plugin").json()
    assert (me["signed_in"], me["scopes"]) == (False, ["chat", "read"])
    assert person.get("/v1/sessions", authorization="Bearer no-such-key").status_code == 401


# ------------------------------------------------------------------------------------------ settings


def test_without_a_provider_nobody_signs_in_and_nothing_changes(tmp_path: Path) -> None:
    with serve(tmp_path / "service") as service:
        me = service.get("/v1/me").json()
        assert (me["by"], me["sign_in"]) == ("keyless", None)
        assert service.get("/signin/begin").json()["error"]["code"] == "no_sign_in"


def test_a_provider_that_is_away_or_another_is_a_503(tmp_path: Path, provider: str) -> None:
    wanted = {"public_url": "http://127.0.0.1:1", "session_key": SESSION_KEY, "roles": ROLES}
    for issuer in ("http://127.0.0.1:1", f"{provider}/"):
        with serve(tmp_path / "service", keys=KEYS, sign_in={**wanted, "issuer": issuer}) as service:
            assert service.get("/signin/begin").status_code == 503


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"session_key": "short"}, "session_key"),
        ({"public_url": ""}, "public_url"),
        ({"roles": {}}, "roles"),
        ({"ask_for": ["email"]}, "ask_for"),
        ({"issuer": "ftp://x"}, "issuer"),
    ],
)
def test_settings_that_would_let_nobody_or_anybody_in_are_refused(fields: dict[str, Any], what: str) -> None:
    whole = {"issuer": "https://id.example", "public_url": "https://x", "session_key": SESSION_KEY, "roles": ROLES}
    ApiSettings(sign_in=whole)  # type: ignore[arg-type]  # pydantic makes settings of it
    with pytest.raises(ValueError, match=what):
        ApiSettings(sign_in={**whole, **fields})  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------ in a browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with running_browser() as browser:
        yield browser


def test_an_operator_signs_in_and_out_in_a_browser(service: Service, chromium: Browser) -> None:
    context = chromium.new_context()
    page = context.new_page()
    page.goto(f"{service.url}/#accounts")
    page.get_by_role("link", name="Sign in").click()
    page.get_by_placeholder("sub").fill("ada")
    page.get_by_role("button", name="Authorize").click()
    page.wait_for_url(f"{service.url}/")
    expect(page.get_by_role("button", name="Sign out ada@example.org")).to_be_visible()
    page.goto(f"{service.url}/#accounts")
    expect(page.locator("#audit-rows")).to_contain_text("GET /signin/done")
    expect(page.locator("#key-rows")).to_contain_text("the scope admin")
    assert page.evaluate("document.cookie") == "", "no script reads it"
    (cookie,) = [each for each in context.cookies() if each["name"] == COOKIE]
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("link", name="Sign in")).to_be_visible()
    assert not [each for each in context.cookies() if each["name"] == COOKIE]
    context.close()


def test_a_page_of_another_site_cannot_use_the_session_in_a_browser(service: Service, chromium: Browser) -> None:
    """The page is at another name of this machine, with a form and a script that know everything but the cookie."""
    context = chromium.new_context()
    page = context.new_page()
    page.goto(f"{service.url}/signin/begin")
    page.get_by_placeholder("sub").fill("ada")
    page.get_by_role("button", name="Authorize").click()
    page.wait_for_url(f"{service.url}/")
    evil = context.new_page()
    evil.route("http://evil.example/", lambda route: route.fulfill(body="<p>come in</p>", content_type="text/html"))
    evil.goto("http://evil.example/")
    count = len([each for each in trail(service) if "exclusions" in each["what"]])
    told = evil.evaluate(
        """async url => Promise.all(["no-cors", "cors"].map(mode => fetch(url + "/v1/exclusions", {
            method: "POST", mode, credentials: "include", body: '{"until": "2020-01-01T00:00:00Z", "why": "x"}',
            headers: mode === "cors" ? {"Content-Type": "application/json"} : {},
        }).then(answer => String(answer.status), error => "failed")))""",
        service.url,
    )
    assert "202" not in told
    assert len([each for each in trail(service) if "exclusions" in each["what"]]) == count
    context.close()
