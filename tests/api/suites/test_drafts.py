"""The routes of drafts: an operator's key alone decides, in its namespace, and a wrong case is refused by field."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from api_harness import Service, serve
from made_drafts import CASE, draft

from serving.evals.mining.folder import SuiteFolder

KEYS = tuple(
    {"key": f"key-of-{name}", "name": name, "namespace": namespace, "scopes": scopes}
    for name, namespace, scopes in (
        ("ada", "default", ("read", "operate")),
        ("bob", "default", ("read", "chat", "feedback")),
        ("bot", "default", ("chat",)),
        ("eve", "other", ("read", "operate")),
        ("root", "other", ("admin",)),
    )
)


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("suite")


@pytest.fixture(scope="module")
def service(suite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = SuiteFolder(suite)
    folder.add(map(draft, ("one", "two", "three")))
    with serve(tmp_path_factory.mktemp("api"), drafts=folder, keys=KEYS) as service:
        yield service


def decide(service: Service, draft_id: str, key: str = "ada", **body: Any) -> Any:
    answer = service.post(f"/v1/suite/drafts/{draft_id}", body, authorization=f"Bearer key-of-{key}")
    return answer.status_code, answer.json()


def listed(service: Service, key: str) -> dict[str, str]:
    answer = service.get("/v1/suite/drafts", authorization=f"Bearer key-of-{key}")
    assert answer.status_code == 200, answer.text
    return {draft["draft_id"]: draft["state"] for draft in answer.json()["drafts"]}


def test_a_decision_is_carried_out_and_signed_with_the_keys_name(service: Service, suite: Path) -> None:
    case = msgspec.to_builtins(CASE) | {"name": "total", "group": "lists"}
    status, said = decide(service, "one", verdict="accept", note="as it is used", case=case)
    assert (status, said["state"], said["decided_by"], said["note"]) == (200, "accepted", "ada", "as it is used")
    assert said["file"] == "cases/total.toml"
    assert datetime.fromisoformat(said["decided_at"]) < datetime.now(UTC)
    assert 'group = "lists"' in (suite / said["file"]).read_text()
    assert '"by":"ada"' in (suite / "audit.jsonl").read_text()
    status, said = decide(service, "one", verdict="refuse")
    assert (status, said["error"]["code"]) == (409, "decided")
    assert listed(service, "ada")["one"] == "accepted"


def test_who_may_not_operate_decides_nothing_and_who_may_not_read_sees_nothing(service: Service) -> None:
    assert service.get("/v1/suite/drafts", authorization="Bearer key-of-bot").status_code == 403
    assert listed(service, "bob").keys() == {"one", "two", "three"}
    assert decide(service, "two", "bob", verdict="accept")[0] == 403
    assert listed(service, "eve") == {}
    assert decide(service, "two", "eve", verdict="accept")[0] == 404
    assert listed(service, "root").keys() == {"one", "two", "three"}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"verdict": "perhaps"}, "verdict"),
        ({"verdict": "accept", "because": "x"}, "because"),
        ({"verdict": "accept", "case": {"name": "x"}}, "case.kind"),
        ({"verdict": "accept", "case": msgspec.to_builtins(CASE) | {"checker": "{"}}, "case.checker"),
        ({"verdict": "refuse", "note": ""}, "note"),
    ],
)
def test_a_wrong_decision_names_the_field_and_changes_nothing(
    service: Service, body: dict[str, Any], param: str
) -> None:
    status, said = decide(service, "three", **body)
    assert (status, said["error"]["param"]) == (400, param)
    assert listed(service, "ada")["three"] == "waiting"


def test_where_no_suite_is_reviewed_there_are_no_drafts(tmp_path: Path) -> None:
    with serve(tmp_path, keys=KEYS) as service:
        assert listed(service, "ada") == {}
        assert decide(service, "one", verdict="accept")[0] == 404
