"""Orders to exclude turns over HTTP: what they select, what they would change, who may give them, and their record."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from api_harness import Service, serve
from console_world import fill, inference_id, policy, turn
from learned_turns import learned
from sqlalchemy import delete

from core.events import Release
from core.ids import InferenceId, Namespace, base_ref
from core.operations.exclusions import Relearning, Selection
from core.store.database import tables

START = datetime(2026, 1, 2, tzinfo=UTC)
KEYS = (
    {"key": "key-that-reads", "namespace": "default", "scopes": ("read",)},
    {"key": "key-that-operates", "name": "night-shift", "namespace": "default", "scopes": ("operate", "read")},
    {"key": "key-that-others", "namespace": "other", "scopes": ("operate", "read")},
    {"key": "key-that-rules", "name": "ada", "namespace": "other", "scopes": ("admin",)},
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Service]:
    with serve(tmp_path / "service", keys=KEYS) as service:
        fill(service.store, START)
        yield service


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield a world in which nobody changes anything."""
    with serve(tmp_path_factory.mktemp("still") / "service", keys=KEYS) as service:
        fill(service.store, START)
        yield service


def post(service: Service, path: str, body: dict[str, Any], key: str = "operates") -> Any:
    return service.post(path, body, authorization=f"Bearer key-that-{key}")


def failed(answer: Any) -> tuple[int, str | None, str]:
    told = answer.json()["error"]
    return answer.status_code, told["param"], told["message"]


def listed(service: Service, key: str = "operates") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = service.get("/v1/exclusions", authorization=f"Bearer key-that-{key}").json()["data"]
    return found


def test_an_edge_says_that_orders_are_given_at_home(tmp_path: Path) -> None:
    with serve(tmp_path / "service", keys=KEYS, is_edge=True) as service:
        fill(service.store, START)
        answer = post(service, "/v1/exclusions", {"users": [turn(3, START).user_id], "why": "he asked"})
        assert failed(answer) == (
            409, None, "clusters.role is edge: local does not learn; exclude turns at home, which does"
        )  # fmt: skip
        assert answer.json()["error"]["code"] == "given_at_home"
        assert listed(service) == []


def test_an_order_is_recorded_listed_and_lifted(world: Service) -> None:
    user = turn(3, START).user_id
    body = {"users": [user], "since": "2026-01-02T00:00:00Z"}
    answer = post(world, "/v1/exclusions", {**body, "why": "a siege"})
    assert answer.status_code == 202
    (order,) = listed(world)
    assert order == answer.json()
    told = {name: order[name] for name in ("exclusion_id", "why", "by", "state", "lifted_at", "relearning")}
    assert told == {
        "exclusion_id": 1,
        "why": "a siege",
        "by": "night-shift",
        "state": "ordered",
        "lifted_at": None,
        "relearning": None,
    }
    assert order["selection"] == {"namespace": "default", "users": [user], "since": "2026-01-02T00:00:00Z"}
    with world.store.work() as work:
        work.exclusions.report(1, Relearning(updates=4, made_again=1, per_s=2.0, left_s=1.5, began_at=START))
    (order,) = listed(world)
    assert (order["state"], order["relearning"]["left_s"]) == ("relearning", 1.5)
    lifted = post(world, "/v1/exclusions/1/lift", {"why": "it was a test"}).json()
    assert (lifted["state"], lifted["lifted_by"], lifted["lifted_why"]) == ("lifted", "night-shift", "it was a test")
    assert failed(post(world, "/v1/exclusions/1/lift", {"why": "again"}))[0] == 409
    assert failed(post(world, "/v1/exclusions/7/lift", {"why": "x"}))[:2] == (404, "exclusion_id")


def test_the_preview_says_what_changes_and_changes_nothing(world: Service) -> None:
    for version, numbers in {2: (0, 1), 3: (2, 3), 4: (4, 5), 5: (6, 3)}.items():
        learned(world, version, *numbers)
    before = listed(world)
    found = post(world, "/v1/exclusions/preview", {"turns": [inference_id(3), inference_id(200)]}).json()
    told = {name: found[name] for name in ("turns", "turns_learned", "first_use", "start", "updates", "seconds")}
    assert told == {"turns": 2, "turns_learned": 1, "first_use": 3, "start": 2, "updates": 4, "seconds": 4.0}
    assert (found["versions"], found["changed_updates"]) == ([3, 4, 5, 6], 2)
    assert (found["serves"], found["serves_what_is_excluded"], found["roll_back_to"]) == (5, True, 2)
    said = " ".join(found["says"])
    assert "versions 3 to 6 learned from 1 of them" in said
    assert "goes back to version 2 and makes 4 updates again, 2 of them changed" in said
    assert "about 4 s: so long did these updates take the first time" in said
    assert "`onward rollback 2`" in said
    assert listed(world) == before == []


def test_the_preview_finds_what_users_said_of_others_turns(world: Service) -> None:
    user = turn(3, START).user_id
    assert user is not None
    other = next(n for n in range(4, 40) if turn(n, START).user_id != user)
    learned(world, 2, other)
    learned(world, 3, other, said_by=(user,))
    found = post(world, "/v1/exclusions/preview", {"users": [user]}).json()
    assert (found["first_use"], found["turns_learned"], found["changed_updates"]) == (3, 1, 1)
    assert "and means what these users said of others', too" in found["says"][0]
    aside = {"users": [user], "turns": [inference_id(3)]}  # of others' turns only those among these are meant
    assert post(world, "/v1/exclusions/preview", aside).json()["first_use"] is None


def test_steps_to_a_version_that_was_refused_are_not_of_the_learners_line(world: Service) -> None:
    for version, numbers in {3: (2, 3), 5: (6, 7)}.items():
        learned(world, version, *numbers)
    with world.store.work() as work:
        step = work.policies.allocate(START)
        work.policies.put(policy(step.version, START), offered=False)
    body = {"turns": [inference_id(3)]}
    assert post(world, "/v1/exclusions/preview", body).json()["versions"] == [3, 4, 5, 6]
    post(world, "/v1/exclusions", {**body, "why": "x"})  # which a learner is about to obey, or does
    assert post(world, "/v1/exclusions/preview", body).json()["versions"] == [3, 4, 5, 6, step.version]


def test_what_touches_nothing_says_so(world: Service) -> None:
    learned(world, 5, 6)
    found = post(world, "/v1/exclusions/preview", {"turns": [inference_id(3)]}).json()
    assert found["says"][0].startswith("It selects 1 turn, and no version of the learner's line learned from any")
    assert (found["first_use"], found["updates"], found["serves_what_is_excluded"]) == (None, 0, False)
    empty = post(world, "/v1/exclusions/preview", {"since": "2031-01-01T00:00:00Z"}).json()
    assert empty["says"] == [
        "It selects no turn that there is: nothing is made again. Such turns never train when they come."
    ]


def test_what_a_version_learned_from_is_excluded_turn_by_turn(world: Service) -> None:
    learned(world, 3, 2, 3)
    order = post(world, "/v1/exclusions", {"learned_by": [3], "why": "x"}).json()
    assert order["selection"]["turns"] == [inference_id(2), inference_id(3)]


def test_of_what_a_version_learned_another_namespaces_turns_are_neither_excluded_nor_shown(world: Service) -> None:
    learned(world, 3, 2, 3, namespace="other")  # of which turns 2 and 3 are gone from the store
    found = failed(post(world, "/v1/exclusions", {"learned_by": [3], "why": "x"}))
    assert found == (
        400,
        "learned_by",
        "learned_by: version 3 learned from no turn of namespace default that is known here",
    )
    shown = post(world, "/v1/exclusions", {"learned_by": [3], "why": "x"}, "others").json()
    assert shown["selection"]["turns"] == [inference_id(2), inference_id(3)]


def test_turns_that_are_gone_from_the_store_are_found_by_what_is_left_of_them_or_counted(world: Service) -> None:
    learned(world, 2, 0, 1)
    learned(world, 3, 3, 500, 501)
    learned(world, 4, 4)
    order = {"learned_by": [3]}
    with world.store.begin() as connection:
        connection.execute(delete(tables.turns).where(tables.turns.c.inference_id == inference_id(3)))
    found = post(world, "/v1/exclusions/preview", order).json()
    assert (found["turns"], found["turns_learned"], found["unknown"]) == (3, 3, 0)
    assert (found["first_use"], found["start"], found["versions"]) == (3, 2, [3, 4, 5, 6])
    by_session = post(world, "/v1/exclusions/preview", {"sessions": ["session-00000"]}).json()
    assert (by_session["first_use"], by_session["unknown"]) == (2, 0), "the others' rewards name another session"
    user = turn(4, START).user_id
    found = post(world, "/v1/exclusions/preview", {"users": [user]}).json()
    assert (found["turns_learned"], found["unknown"]) == (3, 3)
    assert (
        "3 turns that the line learned from are gone from the store: whether they are meant cannot be said."
        in found["says"]
    )
    untouched = post(
        world, "/v1/exclusions/preview", {"users": [turn(40, START).user_id], "since": "2026-01-01T00:00:00Z"}
    )
    assert untouched.json()["says"][0].startswith("3 turns that the line learned from are gone")


def test_an_update_that_others_were_part_of_is_made_again_for_admins_alone(world: Service) -> None:
    learned(world, 3, 2, 3)
    learned(world, 4, 150, namespace="other")
    body = {"turns": [inference_id(3)]}
    found = post(world, "/v1/exclusions/preview", body).json()
    assert found["needs_admin"]
    words = (
        "These updates learned from other namespaces' turns, too: an order that makes them again needs the scope admin."
    )
    assert words in found["says"]
    assert failed(post(world, "/v1/exclusions", {**body, "why": "x"})) == (403, None, words)
    assert listed(world) == []
    assert post(world, "/v1/exclusions", {"turns": [inference_id(9)], "why": "x"}).status_code == 202, (
        "none is made again"
    )
    assert post(world, "/v1/exclusions", {**body, "namespace": "default", "why": "x"}, "rules").status_code == 202


def test_the_preview_is_of_the_line_that_is_built_upon(world: Service) -> None:
    """Version 5 is live; 6 was its child. What descends from a version that was taken back is nobody's line."""
    for version, numbers in {3: (2, 3), 5: (6, 7), 6: (8,)}.items():
        learned(world, version, *numbers)
    with world.store.work() as work:
        made = [work.policies.allocate(START) for _ in range(3)]
        for version, parent in zip(made, (3, 6, 8), strict=True):
            work.policies.put(msgspec.structs.replace(policy(version.version, START), parent=base_ref(parent)))
    body = {"turns": [inference_id(3)]}
    assert post(world, "/v1/exclusions/preview", body).json()["versions"] == [3, 4, 5, 6, 8, 9]
    with world.store.work() as work:
        taken_back = {"cluster": "local", "state": "rolled_back", "why": "x", "by": "ops", "at": START}
        work.releases.put(Release(version=base_ref(6), **taken_back))
    assert post(world, "/v1/exclusions/preview", body).json()["versions"] == [3, 4, 5]
    with world.store.work() as work:  # made again upon version 2, and so not upon what serves
        again = work.policies.allocate(START)
        made_again = msgspec.structs.replace(policy(again.version, START), parent=base_ref(2), exclusions=1)
        work.policies.put(made_again)
    found = post(world, "/v1/exclusions/preview", body).json()
    assert (found["versions"], found["serves"], found["serves_what_is_excluded"]) == ([], 5, True)
    assert found["roll_back_to"] == 2
    with world.store.work() as work:
        work.releases.put(Release(version=again, **taken_back))
        child = work.policies.allocate(START)
        work.policies.put(msgspec.structs.replace(policy(child.version, START), parent=again, exclusions=1))
    assert post(world, "/v1/exclusions/preview", body).json()["versions"] == [3, 4, 5]


def test_an_order_may_name_more_turns_than_a_query_takes(world: Service) -> None:
    names = [InferenceId(f"gone-{number}") for number in range(250_001)]
    chosen = Selection(namespace=Namespace("default"), turns=(*names, inference_id(3)))
    with world.store.look() as view:
        assert [name for name, _ in view.exclusions.selected(chosen)] == [inference_id(3)]


@pytest.mark.parametrize(
    ("body", "status", "param", "said"),
    [
        ({"users": ["nobody-here"]}, 404, "users", "there is no turn of user nobody-here in namespace default"),
        ({"sessions": ["lost"]}, 404, "sessions", "there is no turn of session lost in"),
        ({"turns": ["lost"]}, 404, "turns", "there is no turn lost in"),
        ({"keys": ["lost"]}, 404, "keys", "there is no turn of key lost in"),
        ({"workloads": ["lost"]}, 404, "workloads", "there is no turn of workload lost in"),
        ({"answered_by": [99]}, 404, "answered_by", "no policy version 99"),
        ({"learned_by": [1]}, 400, "learned_by", "version 1 learned from no turn"),
        ({}, 400, None, "say what to exclude: users, sessions"),
        ({"namespace": "default"}, 400, None, "say what to exclude"),
        ({"namespace": "other", "workloads": ["chat"]}, 403, "namespace", "this API key is of default"),
        ({"since": "2026-01-02T00:00:00"}, 400, "since", ""),
        ({"since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"}, 400, "until", "must be after since"),
        ({"since": "0001-01-01T00:00:00+14:00"}, 400, "since", "not in the years 1 to 9999"),
        ({"until": "9999-12-31T23:00:00-14:00"}, 400, "until", "not in the years 1 to 9999"),
        ({"user": ["x"]}, 400, "user", "unknown field"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(
    still: Service, body: dict[str, Any], status: int, param: str | None, said: str
) -> None:
    for path, whole in (("/v1/exclusions/preview", body), ("/v1/exclusions", {**body, "why": "x"})):
        found = failed(post(still, path, whole))
        assert found[:2] == (status, param)
        assert said in found[2]
    assert listed(still) == []


def test_keys_reach_their_own_namespace_and_admins_all(world: Service) -> None:
    body = {"turns": [inference_id(3)], "why": "x"}
    for path in ("/v1/exclusions", "/v1/exclusions/preview"):
        assert post(world, path, body, "reads").status_code == 403
    assert failed(post(world, "/v1/exclusions", body, "others"))[:2] == (404, "turns")
    assert post(world, "/v1/exclusions", {**body, "namespace": "default"}, "rules").json()["by"] == "ada"
    assert [listed(world, key)[:1] == [] for key in ("operates", "others", "rules")] == [False, True, False]
    assert post(world, "/v1/exclusions/1/lift", {"why": "x"}, "others").status_code == 404


@pytest.mark.parametrize(
    "criteria",
    [
        {"users": ("user-1",)},
        {"sessions": ("session-2",), "workloads": ("chat",)},
        {"keys": ("ada",)},
        {"versions": (base_ref(2),), "until": START + timedelta(seconds=70)},
        {"since": START + timedelta(seconds=230)},
    ],
)
def test_the_store_selects_what_the_learner_would(still: Service, criteria: dict[str, Any]) -> None:
    """Each reads the same words in its own way."""
    some = still.all_turns()
    if "users" in criteria:
        criteria = {"users": (some[0].user_id,)}
    if "sessions" in criteria:
        criteria |= {"sessions": (some[0].session_id,), "workloads": (some[0].workload,)}
    if "keys" in criteria:
        criteria = {"keys": (some[0].key_id,)} if some[0].key_id else {"versions": (base_ref(1),)}
    chosen = Selection(namespace=Namespace("default"), **criteria)
    with still.store.look() as view:
        found = {name for name, _ in view.exclusions.selected(chosen)}
    expected = {each.inference_id for each in some if chosen.selects(each)}
    assert found == expected
    assert 0 < len(found) < len(some)
