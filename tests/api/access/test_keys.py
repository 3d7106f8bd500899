"""Keys that the store holds: made, used, rotated, ended and revoked while the service runs."""

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from api_harness import Service, serve, serve_replicas, wait_for
from reward_stream import put

from api.access.identity import KeyRing
from core.errors import ConfigError, StoreUnavailable, Unauthorized
from core.ids import Namespace
from core.operations.keys import KeyWish, key_digest, make_key, revoked
from core.settings import ApiSettings
from core.store import open_sqlite
from onward.commands.accounts import keys as commands

ADMIN = {"authorization": "Bearer key-of-the-admin"}
KEYS: Any = ({"key": "key-of-the-admin", "namespace": "ours", "name": "root", "scopes": ("admin",)},)
WISH = {"namespace": "ours", "name": "plugin", "scopes": ["chat", "read"]}
NOW = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.access.stored_keys.LOOK_S", 0.05)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with serve(tmp_path / "service", keys=KEYS) as service:
        yield service


def create(service: Service, **fields: Any) -> dict[str, Any]:
    answer = service.post("/v1/keys", {**WISH, **fields}, **ADMIN)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def status(service: Service, key: str) -> tuple[int, str | None]:
    answer = service.get("/v1/sessions", **bearer(key))
    return answer.status_code, None if answer.is_success else answer.json()["error"]["code"]


def audited(service: Service) -> list[dict[str, Any]]:
    with service.store.look() as view:
        said = [msgspec.json.decode(entry.record) for entry in view.audit.in_order()]
    return [each for each in said if "keys" in each["what"]]


def test_a_key_works_from_the_moment_it_is_made_and_is_shown_once(service: Service) -> None:
    made = create(service)
    assert status(service, made["key"]) == (200, None)
    assert service.chat("hi", headers=bearer(made["key"])).status_code == 200
    assert service.post("/v1/feedback", {}, **bearer(made["key"])).status_code == 403
    listed = service.get("/v1/keys", **ADMIN)
    assert made["key"] not in listed.text
    assert key_digest(made["key"].encode()) not in listed.text
    (found,) = listed.json()["data"]
    assert (found["key_id"], found["state"], found["created_by"]) == (made["key_id"], "in force", "root")
    assert listed.json()["configured"] == 1
    (entry,) = audited(service)
    assert (entry["by"], entry["kind"], entry["objects"]) == ("root", "change", {"key_id": made["key_id"]})
    assert entry["namespace"] == "ours"


def test_a_revoked_key_is_refused_with_the_reason(service: Service) -> None:
    made = create(service)
    path = f"/v1/keys/{made['key_id']}/revoke"
    assert service.post(path, {}, **ADMIN).json()["state"] == "revoked"
    assert status(service, made["key"]) == (401, "revoked_api_key")
    again = service.post(path, {}, **ADMIN).json()
    assert (again["state"], again["revoked_by"]) == ("revoked", "root")
    assert service.post(f"/v1/keys/{made['key_id']}/rotate", {}, **ADMIN).json()["error"]["code"] == "key_is_over"
    assert service.post("/v1/keys/none/revoke", {}, **ADMIN).status_code == 404


def test_a_rotated_key_works_beside_its_successor_until_the_overlap_is_over(service: Service) -> None:
    made = create(service)
    path = f"/v1/keys/{made['key_id']}/rotate"
    successor = service.post(path, {"overlap_s": 3600}, **ADMIN).json()
    assert status(service, made["key"]) == status(service, successor["key"]) == (200, None)
    assert (successor["name"], successor["scopes"]) == (made["name"], made["scopes"])
    last = service.post(f"/v1/keys/{successor['key_id']}/rotate", {"overlap_s": 0}, **ADMIN).json()
    assert status(service, successor["key"]) == (401, "expired_api_key")
    assert status(service, last["key"]) == (200, None)
    assert audited(service)[-1]["objects"] == {"key_id": successor["key_id"], "successor": last["key_id"]}


def test_what_a_key_made_is_its_successors_too(service: Service) -> None:
    made = create(service, scopes=["chat"])
    turn = service.chat("hi", headers=bearer(made["key"])).headers["x-onward-inference-id"]
    service.turn(turn)
    successor = service.post(f"/v1/keys/{made['key_id']}/rotate", {}, **ADMIN).json()["key"]
    stranger = create(service, name="another", scopes=["chat"])["key"]
    assert service.get(f"/v1/turns/{turn}", **bearer(successor)).status_code == 200
    assert service.get(f"/v1/turns/{turn}", **bearer(stranger)).status_code == 404


def test_a_key_of_the_store_may_be_bound_to_a_user_and_limited(service: Service) -> None:
    made = create(service, user="ada", scopes=["chat"], requests_per_minute=60, burst=2)
    answers = [service.chat("hi", headers=bearer(made["key"]), user=user).status_code for user in ("bob", "ada", "ada")]
    assert answers == [403, 200, 429]
    with service.store.look() as view:
        (kept,) = view.keys.all()
    assert kept.user not in (None, "ada")


def test_a_wish_that_cannot_be_is_refused_with_its_field(service: Service) -> None:
    wishes: list[tuple[dict[str, Any], str]] = [
        ({"name": "guard"}, "name"),
        ({"name": "root", "namespace": "theirs"}, "name"),
        ({"name": "root", "user": "ada"}, "name"),
        ({"name": "spaces are none"}, "name"),
        ({"scopes": ["everything"]}, "scopes[0]"),
        ({"burst": 3}, "burst"),
        ({"requests_per_minute": 1e20}, "requests_per_minute"),
        ({"requests_per_minute": 1e-320}, "requests_per_minute"),
        ({"requests_per_minute": 1, "burst": 1 << 64}, "burst"),
        ({"expires_at": "2099-01-01T00:00:00"}, "expires_at"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, "expires_at"),
        ({"expires_at": "9999-12-31T23:59:59-14:00"}, "expires_at"),
        ({"colour": 1}, "colour"),
    ]
    for fields, param in wishes:
        answer = service.post("/v1/keys", {**WISH, **fields}, **ADMIN)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), fields


def test_every_replica_soon_knows_what_one_was_told(tmp_path: Path) -> None:
    with serve_replicas(tmp_path / "service", 2, keys=KEYS) as (first, second):
        made = create(first)
        wait_for(lambda: status(second, made["key"]) == (200, None))
        first.post(f"/v1/keys/{made['key_id']}/revoke", {}, **ADMIN)
        wait_for(lambda: status(second, made["key"]) == (401, "revoked_api_key"))


def test_a_use_is_noted_to_the_hour_and_once_for_many(service: Service) -> None:
    made = create(service)
    for _ in range(5):
        status(service, made["key"])

    def used_at() -> str | None:
        (found,) = service.get("/v1/keys", **ADMIN).json()["data"]
        return None if found["used_at"] is None else str(found["used_at"])

    assert datetime.fromisoformat(wait_for(used_at)).minute == 0


def test_the_first_key_of_the_store_ends_keyless_use_and_its_revocation_does_not_bring_it_back(tmp_path: Path) -> None:
    with serve(tmp_path / "service") as service:
        assert service.get("/v1/sessions").status_code == 200
        made = service.post("/v1/keys", {**WISH, "scopes": ["admin"]}).json()
        assert service.get("/v1/sessions").status_code == 401
        assert service.post(f"/v1/keys/{made['key_id']}/revoke", {}, **bearer(made["key"])).status_code == 200
        assert service.get("/v1/sessions").status_code == 401


def test_while_the_store_does_not_answer_known_keys_work_and_unknown_ones_wait(tmp_path: Path) -> None:
    ring = KeyRing(ApiSettings(keys=KEYS), None)
    assert ring.identify(b"Bearer key-of-the-admin").by == "root"
    for header in (b"Bearer another", None):
        with pytest.raises(StoreUnavailable):
            ring.identify(header)
    _, kept = make_key(KeyWish(namespace=Namespace("ours"), name="x"), "root", NOW)
    ring.learn([kept])
    with pytest.raises(Unauthorized):
        ring.identify(b"Bearer another")
    with pytest.raises(StoreUnavailable):
        KeyRing(ApiSettings(), None).identify(None)


def test_beyond_loopback_there_is_no_keyless_use(tmp_path: Path) -> None:
    fields: Any = {"host": "0.0.0.0", "user_hash_key": "ours"}
    with pytest.raises(ConfigError, match="onward keys create"):
        KeyRing(ApiSettings(**fields), [])
    text, kept = make_key(KeyWish(namespace=Namespace("ours"), name="x"), "root", NOW)
    ring = KeyRing(ApiSettings(**fields), [kept])
    assert ring.identify(f"Bearer {text}".encode()).by == "x"
    ring.learn([revoked(kept, "root", NOW)])
    for header in (f"Bearer {text}".encode(), None):
        with pytest.raises(Unauthorized):
            ring.identify(header)


# ------------------------------------------------------------------------------------------ the settings' keys


def test_the_settings_may_hold_a_hash_and_an_end(tmp_path: Path) -> None:
    fields = {"namespace": "ours", "name": "old"}
    ring = KeyRing(
        ApiSettings(keys=({**fields, "hash": key_digest(b"onw_abc"), "expires_at": "2026-03-01T13:00:00Z"},)),  # type: ignore[arg-type]
        now=lambda: clock[0],
    )
    clock = [NOW]
    assert ring.identify(b"Bearer onw_abc").by == "old"
    with pytest.raises(Unauthorized, match="not known"):
        ring.identify(f"Bearer {key_digest(b'onw_abc')}".encode())
    clock[0] = NOW + timedelta(hours=1)
    with pytest.raises(Unauthorized, match="ended at"):
        ring.identify(b"Bearer onw_abc")


@pytest.mark.parametrize(
    ("key", "what"),
    [
        ({"hash": "0" * 64}, "name: a key that is known by its hash"),
        ({}, "key or hash"),
        ({"key": "long-enough", "hash": "0" * 64, "name": "n"}, "key or hash"),
        ({"hash": "short", "name": "n"}, "hash"),
        ({"key": "long-enough", "expires_at": "2026-03-01T13:00:00"}, "expires_at"),
    ],
)
def test_a_key_of_the_settings_is_one_key(key: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        ApiSettings(keys=({"namespace": "ours", **key},))  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------ the commands


def test_a_key_made_by_the_command_works_in_a_service_that_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve(tmp_path / "service", keys=KEYS) as service:
        check_commands(service, tmp_path / "service", capsys)


def check_commands(service: Service, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wished = {"namespace": "ours", "name": "plugin", "scopes": ["read"]}
    commands.create(directory, {}, wished)
    key = capsys.readouterr().out.strip()
    wait_for(lambda: status(service, key) == (200, None))
    with service.store.look() as view:
        (kept,) = view.keys.all()
    commands.rotate(directory, {}, kept.key_id, 3600)
    successor = capsys.readouterr().out.strip()
    commands.revoke(directory, {}, kept.key_id)
    wait_for(lambda: status(service, key) == (401, "revoked_api_key"))
    assert status(service, successor) == (200, None)
    capsys.readouterr()
    commands.show(directory, {}, as_json=False)
    shown = capsys.readouterr().out
    assert "plugin" in shown
    assert successor not in shown
    assert [each["what"] for each in audited(service)] == [
        "onward keys create",
        "onward keys rotate",
        "onward keys revoke",
    ]


def test_the_command_refuses_what_the_route_refuses(tmp_path: Path) -> None:
    for fields, what in (
        ({"name": "guard"}, "--name: guard"),
        ({"scopes": ["everything"]}, "everything"),
        ({"expires_at": "soon"}, "expires_at"),
    ):
        with pytest.raises(ConfigError, match=what):
            commands.create(tmp_path / "data", {}, {"namespace": "ours", "name": "plugin", **fields})
    with pytest.raises(ConfigError, match="no such key"):
        commands.revoke(tmp_path / "data", {}, "none")
    with closing(open_sqlite(tmp_path / "data" / "store.db")) as store, store.look() as view:
        assert (view.keys.all(), list(view.audit.in_order())) == ([], [])


def test_a_stream_ends_with_its_key(service: Service) -> None:
    made = create(service)
    with service.http.stream("GET", "/v1/rewards/stream", headers=bearer(made["key"])) as answer:
        lines = answer.iter_lines()
        assert next(lines) == ": open"
        service.post(f"/v1/keys/{made['key_id']}/revoke", {}, **ADMIN)
        put(service, 1, namespace="ours")
        assert not any(line.startswith("data: ") for line in lines)
    assert status(service, made["key"]) == (401, "revoked_api_key")


def test_a_key_that_ends_with_the_calendar_has_a_successor(service: Service) -> None:
    made = create(service, expires_at="9999-12-31T23:59:59.999999Z")
    successor = service.post(f"/v1/keys/{made['key_id']}/rotate", {}, **ADMIN)
    assert (successor.status_code, successor.json()["expires_at"]) == (201, made["expires_at"])
