"""`/v1/status` has all that a console shows, and the page at `/` shows it without loading anything from elsewhere."""

import base64
import hashlib
import re
from collections.abc import Callable
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from api_harness import Service
from prometheus_client import Counter

from core import telemetry
from core.events import PolicyVersion, Release, ReleaseState
from core.ids import base_ref
from core.operations.fleet import Experiment, ReplicaState, ReplicaStatus

MakeService = Callable[..., Service]
NOW = datetime(2026, 1, 2, tzinfo=UTC)
KEYS = ({"key": "key-of-ada", "namespace": "ada", "scopes": ("read",)},)
ADA = {"authorization": "Bearer key-of-ada"}

CONSOLE = Path(__file__).resolve().parents[3] / "api" / "console"


def console_files(*suffixes: str) -> list[Path]:
    return [file for file in CONSOLE.rglob("*") if file.suffix in suffixes]


def put_version(service: Service, *states: ReleaseState) -> None:
    with service.store.work() as work:
        version = work.policies.allocate(NOW)
        fields: Any = {"policy": "base", "digest": "d", "parent": None, "manifest": None, "weights": "w"}
        work.policies.put(PolicyVersion(version=version, created_at=NOW, **fields))
        for state in states:
            release = Release(version=version, cluster="local", state=state, why="x", by="gate", at=NOW)
            work.releases.put(release)


def put_engine(service: Service, name: str, state: ReplicaState) -> None:
    status = ReplicaStatus(name=name, cluster="local", url="", state=state, serving=None, heartbeat_at=NOW)
    with service.store.work() as work:
        work.fleet.put_status(status)


@pytest.fixture
def counters(monkeypatch: pytest.MonkeyPatch) -> dict[str, Counter]:
    """Replace the token counters by fresh ones, since other tests of this process have counted too."""
    fresh = {name: Counter(name, "", registry=None) for name in ("generated", "prefilled", "cached")}
    for name, counter in fresh.items():
        monkeypatch.setattr(telemetry, f"{name.upper()}_TOKENS", counter)
    return fresh


def test_at_the_start_there_is_nothing(service: Service, counters: dict[str, Counter]) -> None:
    status = service.get("/v1/status").json()
    del status["turns"], status["busy_s"]  # counted since the process began
    assert status == {
        "model": "scripted",
        "live": 1,
        "versions": {},
        "last_release": 0,
        "experiment": None,
        "fleet": {},
        "tokens": {"generated": 0, "prefilled": 0, "cached": 0, "cached_share": None},
        "last_minute": {"requests": 0, "turns": 0, "errors": 0, "complete": True},
        "readiness": {"status": "ok", "components": {"writer": "ok"}},
    }


def test_versions_engines_and_the_experiment_are_the_stores(service: Service) -> None:
    for states in ((), (), ("live",), ("canary",), ("canary", "rolled_back")):
        put_version(service, *states)
    with service.store.work() as work:
        work.policies.allocate(NOW)  # a number that nobody published anything under
        running: Any = {"canary": base_ref(4), "control": base_ref(3), "share": 0.2, "salt": "s", "started_at": NOW}
        work.experiments.put(Experiment(experiment_id="e", cluster="local", **running))
    put_engine(service, "a", "ready")
    put_engine(service, "b", "ready")
    put_engine(service, "c", "swapping")
    status = service.get("/v1/status").json()
    assert status["versions"] == {"candidate": 2, "live": 1, "canary": 1, "rolled_back": 1}
    assert status["fleet"] == {"ready": 2, "swapping": 1}
    assert (status["experiment"]["canary"], status["experiment"]["verdict"]) == (4, None)
    last = service.get("/v1/releases").json()["data"][-1]
    assert status["last_release"] == last["sequence"] == 4
    shown = service.get(f"/v1/releases?after={status['last_release'] - 2}&limit=20").json()["data"]
    assert [step["state"] for step in shown] == ["canary", "rolled_back"]
    with service.store.work() as work:
        work.files.drop(base_ref(3))
        work.files.drop(base_ref(4))
        work.files.give_up(base_ref(4), "its turns are gone")
    asked = service.get("/v1/policies").json()["data"]
    assert [policy["kept_out"] for policy in asked] == [[]] * 5
    assert {policy["version"]: policy["servable"] for policy in asked} == dict(
        zip(range(1, 6), ("now", "now", "rebuild", "lost", "now"), strict=True)
    )
    (step, *_) = service.get("/v1/releases?after=1").json()["data"]
    assert (step["version"], step["servable"], step["lost"], step["why"]) == (4, "lost", "its turns are gone", "x")
    assert service.get("/v1/policies/3/rollback").json()["about_s"] == 1.0


def test_turns_and_tokens_are_this_processs(service: Service, counters: dict[str, Counter]) -> None:
    before = service.get("/v1/status").json()["turns"]
    service.chat("hi")
    service.chat("hi", top_p=0.5)
    service.chat("hi", top_p=0.5, temperature=0)
    counters["generated"].inc(7)
    counters["prefilled"].inc(10)
    counters["cached"].inc(30)
    status = service.get("/v1/status").json()
    assert status["turns"]["answered"] - before["answered"] == 3
    grown = {name: count - before["untrainable"].get(name, 0) for name, count in status["turns"]["untrainable"].items()}
    assert (grown["top_p"], grown["temperature_zero"]) == (2, 1)
    assert status["tokens"] == {"generated": 7, "prefilled": 10, "cached": 30, "cached_share": 0.75}


def test_it_answers_when_parts_do_not(service: Service) -> None:
    service.states["writer"] = "the disk is full"
    service.store.broken = True
    answer = service.get("/v1/status")
    status = answer.json()
    assert answer.status_code == 200
    assert [status[name] for name in ("versions", "last_release", "experiment", "fleet")] == [None] * 4
    assert status["readiness"] == {"status": "not ready", "components": {"writer": "the disk is full"}}
    assert status["live"] == 1


def test_who_reads_may_look_and_no_stranger(make_service: MakeService) -> None:
    service = make_service(keys=KEYS)
    assert service.get("/v1/status").status_code == 401
    for path in ("/v1/status", "/v1/fleet", "/v1/releases"):
        assert service.get(path, **ADA).status_code == 200, path
    assert service.get("/v1/status?limit=3", **ADA).json()["error"]["param"] == "limit"
    assert service.get("/").status_code == 200  # the page itself holds nothing


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.inline = ""  # within elements of script and style
        self.attributes: list[tuple[str, str | None]] = []
        self.elements: list[dict[str, str | None]] = []
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open = tag
        self.attributes += attrs
        self.elements.append(dict(attrs))

    def handle_data(self, data: str) -> None:
        if self._open in ("script", "style"):
            self.inline += data.strip()

    def handle_endtag(self, tag: str) -> None:
        self._open = ""


def test_the_page_runs_scripts_of_this_service_alone(service: Service) -> None:
    answer = service.get("/")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert answer.headers["x-content-type-options"] == "nosniff"
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
    }
    page = Page(answer.text)
    assert page.inline == ""
    assert not [name for name, _ in page.attributes if name == "style" or name.startswith("on")]


def test_its_parts_are_there_and_the_charts_are_those_of_uplots_release(service: Service) -> None:
    page = Page(service.get("/").text)
    parts = {str(e["src"] or e["href"]): e for e in ({"src": None, "href": None, **e} for e in page.elements)}
    linked = {path: part.get("integrity") for path, part in parts.items() if path.startswith("console/")}
    own = {f"console/{file.relative_to(CONSOLE)}" for file in console_files(".js", ".css")}
    assert set(linked) == {"console/uplot.css", "console/uplot.js", *own}
    for path, integrity in linked.items():
        answer = service.get(f"/{path}")
        assert answer.status_code == 200
        assert answer.headers["content-type"].split(";")[0] == f"text/{'css' if path.endswith('css') else 'javascript'}"
        digest = base64.b64encode(hashlib.sha256(answer.content).digest()).decode()
        assert integrity in ((f"sha256-{digest}",) if "uplot" in path else (None,)), path


def test_parts_are_zipped_and_asked_for_once(service: Service) -> None:
    first = service.get("/console/uplot.js", accept_encoding="gzip")
    assert first.headers["content-encoding"] == "gzip"
    assert int(first.headers["content-length"]) < 25_000 < len(first.content)
    plain = service.get("/console/uplot.js", accept_encoding="identity")
    assert ("content-encoding" in plain.headers, plain.content) == (False, first.content)
    again = service.get("/console/uplot.js", if_none_match=first.headers["etag"])
    assert (again.status_code, again.content) == (304, b"")
    for name in ("__init__.py", "index.html"):  # the page has its address
        assert service.get(f"/console/{name}").status_code == 404


def test_the_console_needs_nothing_from_elsewhere_and_writes_no_markup() -> None:
    own = console_files(".js", ".html", ".css")
    assert len(own) > 8
    for file in own:
        text = file.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")  # a name, and no address
        assert len(text.splitlines()) < 300, file.name
        assert not [
            word
            for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "://", "eval(")
            if word in text
        ], file.name
        imported = re.findall(r'from "(\.[\w./]+)"', text)
        assert {(file.parent / name).is_file() for name in imported} <= {True}
        assert "localStorage" not in text


def test_what_scripts_look_for_stands_in_the_page() -> None:
    ids = {str(element.get("id")) for element in Page((CONSOLE / "index.html").read_text()).elements}
    scripts = "".join(file.read_text("utf-8") for file in console_files(".js"))
    assert set(re.findall(r'\bat\("([\w-]+)"\)', scripts)) <= ids


def test_versions_are_listed_page_by_page(service: Service) -> None:
    for _ in range(5):
        put_version(service, "candidate")
    seen, query = [], ""
    while query is not None:
        page = service.get(f"/v1/policies?limit=2{query}").json()
        seen.append([version["version"] for version in page["data"]])
        query = None if page["next"] is None else f"&before={page['next']}"
    assert seen == [[5, 4], [3, 2], [1]]
