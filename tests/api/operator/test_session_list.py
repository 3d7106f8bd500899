"""The list of sessions: pages, searches, and bad words."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from api_harness import Service, serve, wait_for
from console_world import TURNS, fill

from api.operator import session_list
from core.ids import inference_id_at, new_inference_id, new_session_id

START = datetime(2026, 1, 2, tzinfo=UTC)
SESSIONS = TURNS // 3
MakeService = Callable[..., Service]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serve(tmp_path_factory.mktemp("sessions") / "service") as service:
        fill(service.store, START)
        yield service


def pages(service: Service, query: str = "") -> list[list[dict[str, Any]]]:
    found, before = [], ""
    while True:
        page = service.get(f"/v1/sessions?{query}{before}").json()
        found.append(page["data"])
        if page["next"] is None:
            return found
        before = f"&before={page['next']}"


def ids(service: Service, query: str = "") -> list[str]:
    return [session["session_id"] for page in pages(service, query) for session in page]


def test_each_session_is_there_once_the_newest_first(world: Service) -> None:
    wanted = [f"session-{number:05}" for number in reversed(range(SESSIONS))]
    assert ids(world) == wanted
    assert [len(page) for page in pages(world, "limit=30")] == [30, 30, 20]
    assert ids(world, "limit=30") == wanted


def test_a_session_at_the_edge_of_what_a_page_looks_at_is_shown_whole_and_once(
    world: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = pages(world)[0]
    monkeypatch.setattr(session_list, "_LOOKED_AT", 10)  # three sessions and a third
    found = [session for page in pages(world) for session in page]
    assert len(found) == SESSIONS
    assert found[: len(whole)] == whole


def test_a_session_says_what_it_is(world: Service) -> None:
    (session,) = world.get("/v1/sessions?session=session-00002").json()["data"]
    assert (session["turns"], session["rewarded"], session["has_feedback"], session["trainable"]) == (3, 3, True, 3)
    values = [turn["rewards"][-1]["value"] for turn in world.get("/v1/sessions/session-00002").json()["turns"]]
    assert session["reward"] == pytest.approx(sum(values) / 3)
    assert (session["lowest"], session["highest"]) == (min(values), max(values))
    assert (session["workloads"], session["protocols"], session["clients"]) == (["chat"], ["chat"], [])
    assert session["last_at"] == "2026-01-02T00:00:08Z"


def test_searches_find_what_fits(world: Service) -> None:
    every = [session for page in pages(world) for session in page]

    def fitting(fits: Callable[[dict[str, Any]], bool]) -> list[str]:
        found = [session["session_id"] for session in every if fits(session)]
        assert 0 < len(found) < SESSIONS
        return found

    assert ids(world, "client=codex") == fitting(lambda session: "codex" in session["clients"])
    assert ids(world, "workload=suggestion") == fitting(lambda session: "suggestion" in session["workloads"])
    assert ids(world, "user=0003") == fitting(lambda session: session["users"] == ["0003-of-a-user"])
    assert ids(world, "least_reward=0.5") == fitting(lambda session: session["reward"] >= 0.5)
    assert ids(world, "most_reward=-0.1") == fitting(lambda session: session["reward"] <= -0.1)
    assert ids(world, "since=2026-01-02T00:02:00Z") == fitting(lambda session: session["last_at"] >= "2026-01-02T00:02")
    both = ids(world, "client=codex&least_reward=0.5")
    assert set(both) == set(ids(world, "client=codex")) & set(ids(world, "least_reward=0.5"))
    assert ids(world, "session=session-0001") == [f"session-{number:05}" for number in reversed(range(10, 20))]
    assert ids(world, "session=session-0001&limit=4") == ids(world, "session=session-0001")
    assert ids(world, "workload=nothing") == ids(world, "session=another") == []


def test_feedback_is_what_somebody_said(service: Service) -> None:
    first = {name: service.chat("hi", session_id=name).json()["onward"] for name in ("quiet", "heard", "ended")}
    said = {"inference_id": first["heard"]["inference_id"], "metric_name": "accepted", "value": True}
    assert service.post("/v1/feedback", said).status_code == 200
    about = {"session_id": "ended", "metric_name": "shipped", "value": True}
    assert service.post("/v1/feedback", about).status_code == 200
    wait_for(lambda: len(ids(service)) == 3 and len(service.outcomes()) == 2)
    assert ids(service, "feedback=true") == ["ended", "heard"]
    assert ids(service, "feedback=false") == ["quiet"]


def test_a_time_leads_to_where_it_was(service: Service) -> None:
    """What came later is not read at all: an inference's id begins with its time."""
    first = service.chat("hi", session_id="first").json()["onward"]["inference_id"]
    received_at = service.turn(first).received_at
    service.chat("hi", session_id="second")
    wait_for(lambda: len(ids(service)) == 2)
    assert ids(service, "until=2020-01-01") == []
    later = received_at.replace(year=received_at.year + 1).isoformat().replace("+00:00", "Z")
    assert ids(service, f"until={later}") == ["second", "first"]
    bound = inference_id_at(int(datetime.now(UTC).timestamp() * 1000) + 1000)
    assert new_inference_id(new_session_id()) < bound
    assert inference_id_at(int(received_at.timestamp() * 1000) - 1000) < first < bound


def test_long_sessions_are_said_to_be_incomplete(world: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    assert world.get("/v1/sessions").json()["complete"] is True
    monkeypatch.setattr(session_list, "_MOST_TURNS", 5)
    assert world.get("/v1/sessions").json()["complete"] is False
    assert world.get("/v1/sessions?session=session-0001").json()["complete"] is False


def test_nobody_else_lists_them(make_service: MakeService) -> None:
    keys = [{"key": f"key-of-{name}", "namespace": name, "scopes": ("read",)} for name in ("ada", "bob")]
    service = make_service(keys=keys)
    fill(service.store, START, "ada")
    for query in ("", "?session=session-0"):
        counts = {
            name: len(service.get(f"/v1/sessions{query}", authorization=f"Bearer key-of-{name}").json()["data"])
            for name in ("ada", "bob")
        }
        assert counts == {"ada": 50, "bob": 0}


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("feedback=perhaps", "feedback"),
        ("since=yesterday", "since"),
        ("until=9999999", "until"),
        ("least_reward=much", "least_reward"),
        ("limit=201", "limit"),
        ("limit=0", "limit"),
        ("session=%00", "session"),
        ("before=%20", "before"),
        ("turns=3", "turns"),
    ],
)
def test_bad_words_are_named(world: Service, query: str, param: str) -> None:
    answer = world.get(f"/v1/sessions?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
