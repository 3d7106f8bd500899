"""Permissions: every route, asked with every scope by the maker, by others and from elsewhere."""

import itertools
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import made_events
import pytest
from api_harness import MODEL, Service, serve, wait_for
from console_world import policy
from fastapi import APIRouter
from fastapi.routing import iter_route_contexts
from made_drafts import BY, SUMS, board, draft
from made_events import opening
from starlette.routing import Mount, Route, WebSocketRoute

from api.access.identity import KeyRing
from api.access.routes import ACCESS, Need, check_routes
from api.app import create_app
from core.errors import ConfigError
from core.events import Reward
from core.ids import DERIVED, Namespace, OutcomeId, SessionId
from core.operations.keys import KeyWish, make_key
from core.settings import ApiSettings
from serving.evals.drafts.deciding import reject, seen_of
from serving.evals.drafts.written import put_draft

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "security.md"
LINE = re.compile(r"^\| `(GET|POST|DELETE) (\S+)` \| (\S.*?) \| (\S.*?) \|$", re.MULTILINE)
NOW = datetime(2026, 1, 2, tzinfo=UTC)
SCOPES = ("", "chat", "feedback", "read", "operate", "audit", "admin")
NUMBERS = itertools.count()
KINDS = ("same name", "another", "ada", "bob", "elsewhere")


@dataclass(frozen=True)
class Caller:
    """A caller of one kind.

    Its key has the maker's name, another name, a user of its own, or another namespace."""

    kind: str
    scope: str

    @property
    def key(self) -> str:
        return f"key {self.kind} {self.scope}".replace(" ", "-")

    def settings(self) -> dict[str, Any]:
        names = {"same name": "maker"}
        return {
            "key": self.key,
            "namespace": "theirs" if self.kind == "elsewhere" else "ours",
            "name": names.get(self.kind),
            "user": self.kind if self.kind in ("ada", "bob") else None,
            "scopes": [self.scope] if self.scope else [],
        }

    def has(self, scope: str | None) -> bool:
        return scope in (None, self.scope) or self.scope == "admin"


@dataclass(frozen=True)
class Made:
    """A turn with its session and feedback; `by` is the kind of caller that owns it."""

    by: str
    inference_id: str
    session_id: str
    feedback_id: str
    alarm_id: str = "alarm-of-ours"
    key_id: str = ""  # of a key of the store, one for each request
    name: str = ""  # of a draft, one for each request
    decision: Mapping[str, Any] = field(default_factory=dict)


CALLERS = [Caller(kind, scope) for kind, scope in itertools.product(KINDS, SCOPES)]
NAMING = ("/v1/feedback", "/tabby/v1/events", "/v1/consent")  # a turn or a session beside their paths
REVIEWER = "key-of-a-reviewer"
MAKERS = {"same name": "maker-s-key", "ada": "ada-s-own-key"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    both = ["chat", "feedback"]
    makers = [
        {"key": MAKERS["same name"], "namespace": "ours", "name": "maker", "scopes": both},
        {"key": MAKERS["ada"], "namespace": "ours", "user": "ada", "scopes": both},
    ]
    keys = [*makers, *(caller.settings() for caller in CALLERS)]
    keys.append({"key": REVIEWER, "namespace": "ours", "scopes": ["feedback", "read"]})
    directory = tmp_path_factory.mktemp("access")
    (directory / "index.html").write_text("the documentation")
    drafts = board(directory / "suite")
    with serve(directory / "service", site=directory, keys=keys, drafts=drafts) as service:
        yield service


@pytest.fixture(scope="module")
def made(service: Service) -> list[Made]:
    with service.store.work() as work:
        for _ in range(7):  # so that there is a seventh
            work.policies.put(policy(work.policies.allocate(NOW).version, NOW))
    for namespace in ("ours", "theirs"):
        found = opening(f"alarm-of-{namespace}", namespace=Namespace(namespace), opened_at=NOW)
        with service.store.work() as work:
            work.alarms.open(found)
    return [make(service, by, key) for by, key in MAKERS.items()]


def make(service: Service, by: str, key: str) -> Made:
    headers = bearer(key)
    answer = service.chat(f"a secret of {by}", headers=headers).json()["onward"]
    turn = Made(by, answer["inference_id"], answer["session_id"], f"feedback-of-{by}".replace(" ", "-"))
    said = {"inference_id": turn.inference_id, "metric_name": "accepted", "value": True}
    assert service.post("/v1/feedback", {**said, "feedback_id": turn.feedback_id}, **headers).status_code == 200
    service.turn(turn.inference_id)
    wait_for(lambda: service.get(f"/v1/feedback/{turn.feedback_id}", **headers).status_code == 200)
    with service.store.work() as work:
        work.rewards.put([(0, reward(turn))])
    return turn


def reward(turn: Made) -> Reward:
    owner = {"session_id": SessionId(turn.session_id), "namespace": Namespace("ours")}
    return made_events.reward(turn.inference_id, value=1.0, **owner)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def lines() -> Iterator[tuple[str, str, Need]]:
    """Yield the document's lines in the form of the code's table."""
    for method, path, needs, reaches in LINE.findall(DOCUMENT.read_text()):
        scope = needs.strip("`") if needs.startswith("`") else None
        reach, _, bound = reaches.partition("; bound to a user: its own")
        assert not bound
        yield method, path, Need(scope, reach, reach != reaches, key=needs != "nothing")


def test_the_document_has_a_line_for_each_route_and_no_other(service: Service) -> None:
    app = create_app(service.services)
    found = list(iter_route_contexts(app.routes))
    routes = {(method, route.path) for route in found for method in (route.methods or set()) - {"HEAD"}}
    written = list(lines())
    assert {(method, path): need for method, path, need in written} == {
        route: need._replace(deed=None) for route, need in ACCESS.items()
    }
    assert len(written) == len(ACCESS)
    assert set(ACCESS) == routes


@pytest.mark.parametrize(
    "route",
    [
        Route("/v1/new", lambda _: None, methods=["POST"]),  # type: ignore[arg-type,return-value]
        Route("/v1/policies", lambda _: None, methods=["DELETE"]),  # type: ignore[arg-type,return-value]
        Route("/v1/policies", lambda _: None, methods=["GET"]),  # type: ignore[arg-type,return-value]  # without the gate
        WebSocketRoute("/v1/policies", lambda _: None),  # type: ignore[arg-type,return-value]
        Mount("/files", lambda *_: None),  # type: ignore[arg-type,return-value]
    ],
    ids=["no line", "no line for the method", "no gate", "a web socket", "a mount"],
)
def test_a_route_of_which_nobody_says_who_may_use_it_starts_no_service(route: Any) -> None:
    with pytest.raises(LookupError, match=r"api/access/routes\.py|no gate"):
        check_routes([route], hot=())


def test_nor_does_one_of_a_router(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    router = APIRouter()
    router.get("/v1/new")(lambda: None)
    monkeypatch.setattr("api.app._ROUTERS", (lambda _: router,))
    with pytest.raises(LookupError, match="GET /v1/new"):
        create_app(service.services)


# ------------------------------------------------------------------------------------------------ every route


def path_of(path: str, turn: Made) -> str:
    ids = {
        **vars(turn),
        "response_id": f"resp_{turn.inference_id}",
        "version": "7",
        "name:path": "main.js",
        "session_id:path": turn.session_id,
        "feedback_id:path": turn.feedback_id,
        "model:path": MODEL,
        "path:path": "",
    }
    found = re.sub(r"\{([^}]+)\}", lambda found: ids[found[1]], path)
    named = {"/v1/drafts/{name}": ("suite", turn.decision.get("suite")), "/v1/consent": ("session_id", turn.session_id)}
    return "{}?{}={}".format(found, *named[path]) if path in named else found


def body_of(path: str, turn: Made) -> dict[str, Any] | None:
    """Return a valid body for the route; a route with another body needs a line here."""
    if path.startswith("/v1/policies/"):
        return {"why": "a test"}
    if path.startswith("/v1/drafts/"):
        return dict(turn.decision)
    return {
        "/v1/chat/completions": {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]},
        "/v1/completions": {"model": MODEL, "prompt": "hi"},
        "/v1/responses": {"model": MODEL, "input": "hi"},
        "/v1/messages": {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
        "/v1/messages/count_tokens": {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]},
        "/v1/fim/completions": {"model": MODEL, "prompt": "hi"},
        "/infill": {"input_prefix": "hi", "input_suffix": ""},
        "/v1/feedback": {"inference_id": turn.inference_id, "metric_name": "accepted", "value": False},
        "/v1/feedback/batch": {"feedback": [{"inference_id": turn.inference_id, "metric_name": "x", "value": 1}]},
        "/v1/consent": {"session_id": turn.session_id, "learn": True},
        "/v1/continue/data": {"name": "tokensGenerated", "data": {}},
        "/tabby/v1/completions": {"segments": {"prefix": "hi"}},
        "/tabby/v1/events": {"type": "select", "completion_id": f"cmpl-{turn.inference_id}", "choice_index": 0},
        "/v1/logs": {"resourceLogs": []},
        "/v1/traces": {"resourceSpans": []},
        "/v1/sessions/{session_id:path}/end": {},
        "/v1/alarms/{alarm_id}/ack": {},
        "/v1/alarms/{alarm_id}/unack": {},
        "/v1/exclusions": {"turns": [turn.inference_id], "why": "a test"},
        "/v1/exclusions/preview": {"turns": [turn.inference_id]},
        "/v1/keys": {"namespace": "ours", "name": "new"},
        "/v1/keys/{key_id}/revoke": {},
        "/v1/keys/{key_id}/rotate": {},
    }[path]


def expected(path: str, need: Need, caller: Caller | None, turn: Made) -> int:
    """Return the status that the document promises."""
    if path == "/metrics":  # of all namespaces, of which there are two
        return 401 if caller is None else 200 if caller.scope == "admin" else 403
    if not need.key:
        return 200
    if caller is None:
        return 401
    if not caller.has(need.scope):
        return 403
    is_ours = caller.kind != "elsewhere"
    if path.startswith("/v1/alarms/{alarm_id}"):  # which is of ours
        return 200 if is_ours or caller.scope == "admin" else 404
    if ("{" not in path and path not in NAMING) or need.reach in ("nobody's", "everybody's"):
        return 200
    if need.by_user:
        reaches = caller.kind not in ("ada", "bob") or caller.kind == turn.by
    elif need.reach == "its own":
        reaches = caller.kind == turn.by or caller.scope == "admin"
    else:
        reaches = caller.kind == turn.by or caller.has("read")
    return 200 if is_ours and reaches else 404


def stored_key(service: Service) -> str:
    _, kept = make_key(KeyWish(namespace=Namespace("ours"), name="stored"), "maker", NOW)
    with service.store.work() as work:
        work.keys.add(kept)
    return kept.key_id


def made_draft(service: Service, path: str, turn: Made) -> Made:
    """Draft a case of a turn, one of its own for each request, and reject it first where that is to be undone."""
    shown, name = service.services.drafts, f"draft-{next(NUMBERS)}"
    assert shown is not None
    (suite,) = shown.listed("ours").suites
    shutil.rmtree(suite, ignore_errors=True)  # what others' requests left
    place = put_draft(
        Path(suite), draft(name, asked=f"a secret of {turn.by}", namespace="ours", turn=turn.inference_id)
    )
    if path.endswith("/undo"):
        place = reject(Path(suite), name, "no", BY)
    wishes = {"accept": {"checker": SUMS}, "reject": {"why": "no"}}
    decision = {"suite": suite, "seen": seen_of(place.read_bytes())} | wishes.get(path.rpartition("/")[2], {})
    return replace(turn, name=name, decision=decision)


def ask(service: Service, method: str, path: str, caller: Caller | None, turn: Made) -> tuple[int, str]:
    """Return (status, text), where 201 counts as 200; a stream is read until it has the newest reward."""
    if "{key_id}" in path:
        turn = replace(turn, key_id=stored_key(service))
    if path.startswith("/v1/drafts"):
        turn = made_draft(service, path, turn)
    url, headers = path_of(path, turn), {} if caller is None else bearer(caller.key)
    url = url.partition("?")[0] if method == "POST" else url
    if path != "/v1/rewards/stream":
        body = body_of(path, turn) if method == "POST" else None
        answer = service.http.request(method, url, json=body, headers=headers, follow_redirects=True)
        return 200 if answer.status_code == 201 else answer.status_code, answer.text
    with service.http.stream(method, f"{url}?after=0", headers=headers) as stream:
        said = next(stream.iter_text())
        return stream.status_code, said


@pytest.mark.parametrize("line", ACCESS, ids=" ".join)
def test_every_route_does_what_the_document_says(service: Service, made: list[Made], line: tuple[str, str]) -> None:
    method, path = line
    need = ACCESS[line]
    turns = made if need.reach.startswith("its") and ("{" in path or path in NAMING) else made[:1]
    for caller, turn in itertools.product([None, *CALLERS], turns):
        status, said = ask(service, method, path, caller, turn)
        assert status == expected(path, need, caller, turn), (caller, turn, said)
        for each in made:
            may_see = (
                caller is not None and caller.kind != "elsewhere" and (caller.has("read") or caller.kind == each.by)
            )
            assert may_see or f"a secret of {each.by}" not in said, (caller, said)
            may_name = may_see or path == "/v1/audit"  # which has the ids that its readers' namespace asked for
            assert may_name or status != 200 or each.inference_id not in said, (caller, said)


# ------------------------------------------------------------------------------------------------ users


def test_a_key_of_a_user_speaks_for_nobody_else(service: Service, made: list[Made]) -> None:
    headers = bearer(MAKERS["ada"])
    ada = made[1]
    recorded = service.turn(ada.inference_id)
    named = service.chat("hi", headers=headers, user="ada")
    assert service.turn(named.headers["x-onward-inference-id"]).user_id == recorded.user_id is not None
    said = {"inference_id": ada.inference_id, "metric_name": "accepted", "value": True}
    for answer in (
        service.chat("hi", headers=headers, user="bob"),
        service.post("/v1/feedback", {**said, "user": "bob"}, **headers),
    ):
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "another_user")
    assert service.post("/v1/feedback", {**said, "user": "ada"}, **headers).status_code == 200
    assert {outcome.user_id for outcome in service.outcomes() if outcome.inference_id == ada.inference_id} >= {
        recorded.user_id
    }


def test_a_key_of_a_user_has_no_part_in_others_sessions(service: Service, made: list[Made]) -> None:
    """Sending a turn to a session gives no right to see, end or judge it either."""
    ada, bob = bearer(MAKERS["ada"]), bearer(Caller("bob", "admin").key)
    refused = service.chat("hi", headers=bob, session_id="of-ada", max_tokens=10**9)
    assert refused.status_code == 400, "which takes no session's name"
    service.writing.clear()  # at first live state alone knows whose it is
    begun = service.chat("hi", headers=ada, session_id="of-ada")
    intruding = service.chat("hi", headers=bob, session_id="of-ada")
    service.writing.set()
    assert (intruding.status_code, intruding.json()["error"]["code"]) == (403, "another_user")
    service.turn(begun.headers["x-onward-inference-id"])
    service.live_state.forget()
    text = {"model": MODEL, "prompt": "hi", "session_id": "of-ada"}
    assert service.post("/v1/completions", text, **bob).status_code == 403
    service.chat("hi", headers=bearer(MAKERS["same name"]), session_id="shared")
    assert wait_for(lambda: service.chat("hi", headers=ada, session_id="shared").status_code == 403)
    about = {"session_id": "of-ada", "metric_name": "shipped", "value": True}
    for headers, status in ((bob, 404), (ada, 200)):
        assert service.post("/v1/feedback", about, **headers).status_code == status
        assert service.post("/v1/sessions/of-ada/end", {}, **headers).status_code == status


def test_what_a_key_of_a_user_says_is_not_taken_on_trust(service: Service, made: list[Made]) -> None:
    """While the store is unavailable, nothing can tell whose a turn is."""
    said = {"inference_id": made[0].inference_id, "metric_name": "accepted", "value": True}
    service.store.broken = True
    try:
        assert service.post("/v1/feedback", said, **bearer(MAKERS["ada"])).status_code == 503
        assert service.post("/v1/feedback", said, **bearer(MAKERS["same name"])).status_code in (200, 202)
    finally:
        service.store.broken = False


def test_nobody_replaces_what_another_key_said(service: Service, made: list[Made]) -> None:
    turn = made[0]
    amended = {"inference_id": turn.inference_id, "metric_name": "accepted", "value": False}
    first = {**amended, "feedback_id": "the-makers-word", "value": True}
    assert service.post("/v1/feedback", first, **bearer(MAKERS["same name"])).status_code == 200
    amended["supersedes"] = "the-makers-word"
    for key in (REVIEWER, Caller("another", "feedback").key):
        refused = service.post("/v1/feedback", amended, **bearer(key))
        assert (refused.status_code, refused.json()["error"]["param"]) == (404, "supersedes")
    assert service.get("/v1/feedback/the-makers-word", **bearer(REVIEWER)).json()["value"] is True
    assert service.delete("/v1/feedback/the-makers-word", **bearer(REVIEWER)).status_code == 404, (
        "to see is not to change"
    )
    assert service.post("/v1/feedback", amended, **bearer(MAKERS["same name"])).status_code == 200


def test_nobody_withdraws_what_the_service_concluded(service: Service, made: list[Made]) -> None:
    """A report of the same counts instead, and an administrator may."""
    turn = service.turn(made[1].inference_id)
    told = {"name": "plan_useful", "source": "derived", "user_id": turn.user_id, "key_id": None}
    concluded = made_events.outcome(turn, outcome_id=OutcomeId(DERIVED + "1"), namespace=turn.namespace, **told)
    with service.store.work() as work:
        work.outcomes.put([concluded])
    path, ada = f"/v1/feedback/{DERIVED}1", bearer(MAKERS["ada"])
    assert service.get(path, **ada).status_code == 200
    assert service.delete(path, **ada).status_code == 404
    amended = {
        "inference_id": turn.inference_id,
        "metric_name": "plan_useful",
        "value": False,
        "supersedes": DERIVED + "1",
    }
    assert service.post("/v1/feedback", amended, **ada).status_code == 404
    assert service.delete(path, **bearer(Caller("same name", "admin").key)).status_code == 200


def test_a_story_holds_what_its_reader_may_see(service: Service, made: list[Made]) -> None:
    """Even on one's own turn, feedback of others stays hidden."""
    turn = made[1]
    comment = {"inference_id": turn.inference_id, "metric_name": "comment", "value": "between us"}
    assert service.post("/v1/feedback", comment, **bearer(Caller("another", "admin").key)).status_code == 200
    paths = [f"/v1/turns/{turn.inference_id}", f"/v1/rewards/{turn.inference_id}", f"/v1/sessions/{turn.session_id}"]

    def told(key: str) -> list[bool]:
        return ["between us" in service.get(path, **bearer(key)).text for path in paths]

    wait_for(lambda: told(Caller("another", "read").key) == [True] * 3)
    assert told(MAKERS["ada"]) == [False] * 3


# ------------------------------------------------------------------------------------------------ names of keys


@pytest.mark.parametrize(
    ("first", "second", "what"),
    [
        ({"name": "guard"}, {}, r"keys\.0\.name: guard"),
        ({}, {"name": "keyless"}, r"keys\.1\.name: keyless"),
        ({"name": "x"}, {"name": "x", "namespace": "b"}, r"keys\.1\.name: x is the name"),
        ({"name": "x"}, {"name": "x", "user": "ada"}, r"keys\.1\.name: x is the name"),
    ],
)
def test_a_name_tells_one_party_from_others(first: dict[str, Any], second: dict[str, Any], what: str) -> None:
    both = ({"key": "first-key", "namespace": "a", **first}, {"key": "second-key", "namespace": "a", **second})
    with pytest.raises(ConfigError, match=what):
        KeyRing(ApiSettings(keys=both))  # type: ignore[arg-type]  # pydantic makes keys of them


def test_a_key_without_a_name_is_known_by_a_fingerprint_that_tells_nothing() -> None:
    def by(hash_key: str, **key: Any) -> str:
        ring = KeyRing(ApiSettings(keys=({"key": "first-key", "namespace": "a", **key},), user_hash_key=hash_key))  # type: ignore[arg-type]
        return ring.identify(b"Bearer first-key").by

    assert by("ours") == by("ours") != by("another's")
    assert re.fullmatch("#[0-9a-f]{12}", by("ours"))
    assert by("ours", name="ada-s.laptop") == "ada-s.laptop"
    with pytest.raises(ValueError, match="name"):
        by("ours", name="#5a1f09c2b7d3")
