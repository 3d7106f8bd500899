"""What one organisation can see and change of another, by any route: nothing.

Each of four organisations has one of everything, in words of its own. Each then asks every route for what is another's,
by every name that the route takes, and hears what it hears of names that nothing has. Whoever was asked about sees and
has the same as before."""

from collections.abc import Callable, Iterator
from itertools import chain, permutations
from pathlib import Path
from typing import Any

import pytest
from api_harness import Service
from asked import GENERATING, ROUTES, Ask
from fastapi.routing import iter_route_contexts
from isolation_rows import IsolationRows
from planted_organisations import ORGANISATIONS, POLICIES, QUOTAS, SCOPES, Names, key, keys, nobody, plant
from told import Wire, differing, form, leaked, rows_of, view_of, written

from api.access.routes import ACCESS
from api.app import create_app
from serving.evals.mining.folder import SuiteFolder

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
PAIRS = list(permutations(ORGANISATIONS, 2))
TRAIL = ("GET", "/v1/audit")  # first: it is to tell the ids that its reader asks for
IN_TURN = [TRAIL, *(line for line in ROUTES if line not in (TRAIL, *GENERATING)), *GENERATING]
HIDDEN = {  # behind a user or a session of such a name
    ("DELETE", "/v1/users/{user:path}/consent"), ("DELETE", "/v1/sessions/{session_id:path}/consent"),
    ("DELETE", "/v1/sessions/{session_id:path}/end"), ("GET", "/v1/sessions/{session_id:path}/end"),
}  # fmt: skip
SAME_FOR_ALL = ("/", "/docs", "/docs/{path:path}", "/console/{name:path}", "/openapi.json")
TELLING = {
    "/v1/sessions/{session_id:path}", "/v1/turns/{inference_id}", "/v1/rewards/{inference_id}", "/v1/rewards",
    "/v1/rewards/stream", "/v1/alarms", "/v1/exclusions", "/v1/erasures", "/v1/erasures/{erasure_id}",
    "/v1/suite/drafts", "/v1/responses/{response_id}",
}  # fmt: skip
OF_POLICIES = {"/v1/experiments", "/v1/status", "/v1/organisations"}


@pytest.fixture
def service(tmp_path: Path, make_service: Callable[..., Service]) -> Service:
    parts: Any = {"policies": POLICIES, "quotas": QUOTAS, "drafts": SuiteFolder(tmp_path / "suite")}
    return make_service(keys=keys(), **parts)


@pytest.fixture
def planted(service: Service) -> dict[str, Names]:
    assert isinstance(service.services.drafts, SuiteFolder)
    return plant(service, service.services.drafts)


@pytest.fixture
def wire(service: Service) -> Iterator[Wire]:
    wire = Wire(service)
    yield wire
    wire.close()


@pytest.fixture(scope="module")
def rounds() -> Iterator[IsolationRows]:
    rounds = IsolationRows()
    yield rounds
    rounds.keep(len(ROUTES))


def test_every_route_of_the_service_is_asked(service: Service) -> None:
    app = create_app(service.services)
    found = [context.original_route for context in iter_route_contexts(app.routes)]
    lines = {(method, route.path) for route in found for method in (route.methods or set()) - {"HEAD"}}  # type: ignore[attr-defined]
    paths = app.openapi()["paths"]
    described = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert lines == set(ROUTES), "say in tests/api/isolation/parts/asked.py what of others each may name"
    assert described <= {(method, path.replace(":path", "")) for method, path in lines}


@pytest.mark.parametrize("asks", ORGANISATIONS)
def test_nobody_hears_or_changes_anything_of_others(
    service: Service, wire: Wire, planted: dict[str, Names], rounds: IsolationRows, asks: str
) -> None:
    others = [of for name, of in planted.items() if name != asks]
    assert_sees_its_own(wire, planted[asks])
    views = [view_of(wire, of, chain(*own_things(of).values())) for of in others]
    written(service)
    rows = [rows_of(service, of) for of in others]
    before_asking = wire.asked
    wrong = [each for of in others for line in IN_TURN for each in attack(wire, asks, of, line)]
    asked = wire.asked - before_asking
    written(service)
    for of, before, seen in zip(others, rows, views, strict=True):
        after = rows_of(service, of)
        wrong += [f"{of.namespace} lost {row}" for row in before - after]
        wrong += [f"{of.namespace} has {row}" for row in after - before]
        now = view_of(wire, of, chain(*own_things(of).values()))
        wrong += [f"{of.namespace} sees {each}" for each in differing(seen, now)]
    rounds.tell(asked, len(others), wrong)
    assert wrong == []


def assert_sees_its_own(wire: Wire, of: Names) -> None:
    """Otherwise nothing would be found, wherever it is looked for."""
    own = own_things(of).items()
    seen = {path for path, asks in own if any(of.word in wire.ask("GET", ask, key(of.namespace)).text for ask in asks)}
    assert seen >= (TELLING if of.namespace not in POLICIES else TELLING | OF_POLICIES)


def own_things(of: Names) -> dict[str, list[Ask]]:
    """Return what an organisation asks to see all that is its own, by route."""
    return {
        path: [ask for ask in asks(of) if not ask.query or path == "/v1/rewards/stream"]
        for (method, path), asks in ROUTES.items()
        if method == "GET" and path not in (*SAME_FOR_ALL, "/metrics", "/v1/audit")
    }


def attack(wire: Wire, asks: str, of: Names, line: tuple[str, str]) -> Iterator[str]:
    """Ask one route about another organisation, and about nobody, with each key that it takes.

    Yields what is wrong with the answers."""
    method, path = line
    none, scopes = nobody(of), [scope for scope in SCOPES if ACCESS[line].scope in (None, scope)]
    for place, (real, unreal) in enumerate(zip(ROUTES[line](of), ROUTES[line](none), strict=True)):
        for by in [key(asks), *(key(asks, scope) for scope in scopes if place == 0)]:
            answer, what = wire.ask(method, real, by), f"{asks}: {method} {real}"
            if path not in SAME_FOR_ALL:
                yield from (f"{what} tells the {secret} of {of.namespace}" for secret in leaked(answer, real, of))
            if answer.status >= 500:
                yield f"{what}: {answer}"
            if real != unreal and (by == key(asks) or method == "PUT"):  # what is put is put of both as often
                other = wire.ask(method, unreal, by)
                if form(answer, of) != form(other, none):
                    yield f"{what}: {answer}, and of nobody: {other}"


def test_a_preview_has_the_numbers_of_its_own_orders_alone(service: Service, planted: dict[str, Names]) -> None:
    for name, of in planted.items():
        headers = {"authorization": f"Bearer {key(name)}"}
        for path, what in (
            ("/v1/exclusions/preview", {"until": "2020-01-01T00:00:00Z"}),
            ("/v1/erasures/preview", {"session": of.session_id}),
        ):
            under_way = service.post(path, what, **headers).json()["under_way"]
            assert int(of.exclusion_id) in under_way
            with service.store.look() as view:
                orders = [view.exclusions.get(number) for number in under_way]
            assert {order.selection.namespace for order in orders if order is not None} == {name}


def test_no_route_has_a_method_that_nobody_thought_of(wire: Wire, planted: dict[str, Names]) -> None:
    """A method that is not in the table is refused, whosever things the path names."""
    asks, about = PAIRS[0]
    for path in {path for _, path in ROUTES} - {"/v1/rewards/stream"}:  # to others it is a reward's id
        first = next(each for line, each in ROUTES.items() if line[1] == path)
        ask = next(iter(first(planted[about])))
        for method in METHODS:
            if (method, path) not in ROUTES and (method, path) not in HIDDEN:
                answer = wire.ask(method, Ask(ask.path), key(asks))
                assert answer.status in (404, 405), (method, path, answer)
