"""Drafts of eval cases over HTTP: who sees which, and what becomes of those that somebody decides on."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_harness import Service, serve
from made_drafts import SUMS, agent_draft, board, draft

from core.settings import ApiKey
from serving.evals.cases import load_suite, read_suite

KEYS = (
    ApiKey(key="key-that-reads", namespace="acme", scopes=("read", "operate")),
    ApiKey(key="key-of-ada", name="ada", namespace="acme", scopes=("admin", "audit")),
    ApiKey(key="key-of-bob", name="bob", namespace="acme", scopes=("admin",)),
    ApiKey(key="key-of-eve", name="eve", namespace="others", scopes=("admin",)),
)
PATH = "/v1/drafts/mined-1"


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer key-{name}"}


READER, ADA, BOB, EVE = map(bearer, ("that-reads", "of-ada", "of-bob", "of-eve"))


def error(answer: Any) -> tuple[int, str | None, str | None]:
    return answer.status_code, answer.json()["error"]["param"], answer.json()["error"]["code"]


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    return tmp_path / "suite"


@pytest.fixture
def service(tmp_path: Path, suite: Path) -> Iterator[Service]:
    def learned(turn: str, _since: object) -> str | None:
        return f"version 9 has learned {turn}" if turn == "learned" else None

    shown = board(
        suite, draft(), draft("learned", turn="learned"), draft("theirs", namespace="others"), learned=learned
    )
    with serve(tmp_path / "service", keys=KEYS, drafts=shown) as service:
        yield service


def one(service: Service, suite: Path, name: str = "mined-1", **headers: str) -> Any:
    return service.http.get(f"/v1/drafts/{name}", params={"suite": str(suite)}, headers=headers or READER).json()


def test_a_draft_is_shown_whole_to_its_own_namespace(service: Service, suite: Path) -> None:
    found = service.get("/v1/drafts", **READER).json()
    assert (found["suites"], found["counts"]) == ([str(suite)], {"waiting": 2, "decided": 0})
    assert {each["name"] for each in found["waiting"]} == {"mined-1", "learned"}
    assert (found["decided"], found["problems"], found["unlisted"]) == ([], [], 0)
    shown = one(service, suite)
    assert len(shown.pop("seen")) == 64
    assert shown == {
        "suite": str(suite),
        "name": "mined-1",
        "state": "waiting",
        "namespace": "acme",
        "asks": "Add them.",
        "received_at": "2026-01-02T03:04:05.000006Z",
        "reward": 0.75,
        "outcomes": ["accepted: True"],
        "edited": False,
        "decision": None,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Add them."}],
        "solution": "def total(xs):\n    return sum(xs)",
        "session": "s",
        "turn": "t",
        "versions": ["3"],
        "reward_spec": "spec",
        "work": None,
        "user": None,
        "key": "k",
        "only_for": "evaluation",
    }
    assert [each["name"] for each in service.get("/v1/drafts", **EVE).json()["waiting"]] == ["theirs"]
    assert len(service.get("/v1/drafts?limit=1", **READER).json()["waiting"]) == 1
    for path, headers, refused in (
        (f"{PATH}?suite={suite}", EVE, (404, "name", "unknown_draft")),
        (f"{PATH}?suite=elsewhere", READER, (404, "name", "unknown_draft")),
        (f"/v1/drafts/..%2Fsuite?suite={suite}", READER, (404, None, "no_such_route")),
        (PATH, READER, (400, "suite", "missing_field")),
        ("/v1/drafts?state=all", READER, (400, "state", "unknown_field")),
    ):
        assert error(service.get(path, **headers)) == refused, path


def test_of_two_who_accept_and_reject_the_second_is_told(service: Service, suite: Path) -> None:
    """The first decision can be undone by anybody who sees how it stands, and then made otherwise."""
    about = {"suite": str(suite), "seen": one(service, suite)["seen"]}
    accepted = service.post(f"{PATH}/accept", about | {"checker": SUMS, "group": "sums"}, **ADA)
    assert accepted.status_code == 200
    assert accepted.json()["state"] == "accepted"
    decision = accepted.json()["decision"]
    assert (decision["by"], decision["checker"], decision["group"]) == ("ada", SUMS, "sums")
    (case,) = load_suite(suite).cases
    assert (case.name, case.group) == ("mined-1", "sums")
    late = service.post(f"{PATH}/reject", about | {"why": "it names a customer"}, **BOB)
    assert error(late) == (409, "name", "draft_decided")
    assert re.search("mined-1 is decided: ada accepted it at 20", late.json()["error"]["message"])
    assert load_suite(suite).cases == (case,)
    assert error(service.post(f"{PATH}/undo", about, **BOB)) == (409, "name", "draft_changed")
    assert error(service.post(f"{PATH}/undo", about, **EVE)) == (404, "name", "unknown_draft")
    (listed,) = service.get("/v1/drafts", **READER).json()["decided"]
    undone = service.post(f"{PATH}/undo", about | {"seen": listed["seen"]}, **BOB).json()
    assert (undone["state"], undone["seen"], undone["decision"]) == ("waiting", about["seen"], None)
    rejected = service.post(f"{PATH}/reject", about | {"why": "it names a customer"}, **BOB).json()
    assert (rejected["state"], rejected["decision"]["why"]) == ("rejected", "it names a customer")
    assert error(service.post(f"{PATH}/accept", about | {"checker": SUMS}, **ADA)) == (409, "name", "draft_decided")
    assert service.post(f"{PATH}/undo", about | {"seen": rejected["seen"]}, **ADA).json()["state"] == "waiting"
    of_learned = {"suite": str(suite), "seen": one(service, suite, "learned")["seen"]}
    seen = service.post("/v1/drafts/learned/reject", of_learned | {"why": "no"}, **ADA).json()["seen"]
    refused = service.post("/v1/drafts/learned/undo", of_learned | {"seen": seen}, **ADA)
    assert error(refused) == (409, "name", "undo_refused")
    deeds = service.get("/v1/audit?limit=1000", **ADA).json()["data"]
    done = [(deed["by"], deed["what"].rpartition("/")[2]) for deed in deeds if deed["kind"] == "change"]
    assert sorted(done)[:2] == [("ada", "accept"), ("ada", "accept")]
    assert ("bob", "undo") in done


@pytest.mark.parametrize(
    ("kind", "body", "refused"),
    [
        ("accept", {"checker": '{ kind = "exact", text = "5" }'}, (400, "checker", "invalid_checker")),
        ("accept", {"checker": '{ kind = "command", argv = ["true"] }'}, (400, "checker", "invalid_checker")),
        ("accept", {"checker": "[" * 9999}, (400, "checker", "invalid_checker")),
        ("accept", {"checker": "x" * 10_001}, (400, "checker", "invalid_field")),
        ("accept", {"checker": SUMS, "weight": 2}, (400, "weight", "unknown_field")),
        ("accept", {}, (400, "checker", "missing_field")),
        ("accept", {"checker": SUMS, "seen": "0" * 64}, (409, "name", "draft_changed")),
        ("accept", {"checker": SUMS, "suite": "/etc"}, (404, "name", "unknown_draft")),
        ("reject", {"why": " "}, (400, "why", "invalid_field")),
        ("reject", {"why": "no", "checker": SUMS}, (400, "checker", "unknown_field")),
        ("undo", {"why": "no"}, (400, "why", "unknown_field")),
        ("undo", {}, (404, "name", "unknown_draft")),
    ],
)
def test_what_is_refused_changes_nothing(
    service: Service, suite: Path, kind: str, body: dict[str, Any], refused: tuple[int, str, str]
) -> None:
    """Nor does it where the caller may only read, whatever the body."""
    before = read_suite(suite).drafts
    about = {"suite": str(suite), "seen": one(service, suite)["seen"]} | body
    assert error(service.post(f"{PATH}/{kind}", about, **READER))[::2] == (403, "missing_scope")
    assert error(service.post(f"{PATH}/{kind}", about, **ADA)) == refused
    assert read_suite(suite).drafts == before
    assert not read_suite(suite).cases


def test_an_agents_work_is_accepted_without_a_checker_and_only_as_things_stand_now(tmp_path: Path) -> None:
    suite, why = tmp_path / "suite", list[str]()
    known = agent_draft(tmp_path / "task")
    unknown = agent_draft(tmp_path / "task", "mined-3", state=None)
    shown = board(suite, known, unknown, draft(), unusable=lambda _draft: why[0] if why else None)
    with serve(tmp_path / "service", keys=KEYS, drafts=shown) as service:
        seen = one(service, suite, "mined-2")
        assert [each["doubt"] for each in seen["work"]["commands"]] == [None, "network", None]
        about = {"suite": str(suite), "seen": seen["seen"]}

        def accepted(name: str = "mined-2", **body: Any) -> Any:
            given = about | {"seen": one(service, suite, name)["seen"]} | body
            return service.post(f"/v1/drafts/{name}/accept", given, **ADA)

        assert error(accepted(checker=SUMS)) == (400, "checker", "invalid_checker")
        assert error(accepted(tests=[2])) == (400, "tests", "invalid_field")
        assert error(accepted(tests=[])) == (400, "tests", "invalid_field")
        assert error(accepted(instruction=" ")) == (400, "instruction", "invalid_field")
        assert error(accepted(state="/etc")) == (400, "state", "unknown_field")
        assert error(accepted("mined-3")) == (409, "name", "state_unknown")
        assert error(accepted("mined-1", tests=[1], checker=SUMS)) == (400, "tests", "invalid_field")
        why.append("its session may not be learned from")
        assert error(accepted("mined-1", checker=SUMS)) == (409, "name", "not_usable")
        refused = accepted()
        assert error(refused) == (409, "name", "not_usable")
        assert why.pop() in refused.json()["error"]["message"]
        done = accepted(instruction="Mend add.", tests=[3], group="agents").json()
        assert (done["state"], done["decision"]["group"], done["decision"]["checker"]) == ("accepted", "agents", None)
        assert [each["chosen"] for each in done["work"]["commands"]] == [False, False, True]
        assert load_suite(suite).asked() == {"mined-2": "Mend add.\n"}
        undone = service.post("/v1/drafts/mined-2/undo", about | {"seen": done["seen"]}, **BOB).json()
        assert (undone["state"], undone["messages"][0]["content"]) == ("waiting", "Mend add.")


def test_a_broken_file_stands_against_a_case_and_a_service_without_suites_has_none(
    service: Service, suite: Path, tmp_path: Path
) -> None:
    (suite / "mine.toml").write_text("[[case]")
    about = {"suite": str(suite), "seen": one(service, suite)["seen"], "checker": SUMS}
    assert error(service.post(f"{PATH}/accept", about, **ADA)) == (409, None, "suite_unreadable")
    assert one(service, suite)["state"] == "waiting"
    (suite / "mine.toml").unlink()
    (suite / "mined-1.toml.partial").mkdir()  # as on a disk that is full, or that nobody may write to
    unwritten = service.post(f"{PATH}/accept", about, **ADA)
    assert error(unwritten) == (409, None, "suite_unreadable")
    assert "mined-1.toml: cannot be written (Is a directory)" in unwritten.json()["error"]["message"]
    assert one(service, suite)["state"] == "waiting"
    (suite / "drafts" / "rejected").write_text("somebody's")
    (problem,) = service.get("/v1/drafts", **READER).json()["problems"]
    assert "rejected: cannot be read (Not a directory)" in problem
    with serve(tmp_path / "without") as bare:
        assert bare.get("/v1/drafts").json()["counts"] == {"waiting": 0, "decided": 0}
        assert error(bare.post(f"{PATH}/accept", about)) == (404, "name", "unknown_draft")
