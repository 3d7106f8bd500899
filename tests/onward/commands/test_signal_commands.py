"""The commands for alarms and orders, for the stream of rewards, and for the story of one turn."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from api_harness import Service, serve, wait_for
from made_events import opening, reward

from core.errors import OnwardError
from core.events import Credit, Hint, PolicyVersion, TextEdit
from core.ids import OutcomeId
from onward.cli import GROUPS, app
from onward.commands import client
from onward.commands import rewards as told
from onward.commands.operators import alarms
from onward.directory.addresses import write_address
from onward.directory.layout import Layout

NOW = datetime(2026, 1, 2, tzinfo=UTC)
Seen = Callable[[], str]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "service"


@pytest.fixture
def service(directory: Path) -> Iterator[Service]:
    with serve(directory) as service:
        write_address(Layout(directory).address, service.url)
        yield service


@pytest.fixture
def seen(capsys: pytest.CaptureFixture[str]) -> Seen:
    return lambda: " ".join(capsys.readouterr().out.split())


def put_alarm(service: Service, name: str, **fields: Any) -> None:
    with service.store.work() as work:
        work.alarms.open(opening(name, **{"opened_at": NOW} | fields))


def put_reward(service: Service, inference_id: str, revision: int = 0, **fields: Any) -> None:
    usual: dict[str, Any] = {
        "revision": revision,
        "value": 0.75,
        "components": {"accepted": 1.0, "tests_passed": -0.25},
        "why": "accepted decides",
        "final": True,
        "decided_at": NOW + timedelta(days=3650),
    }
    with service.store.work() as work:
        work.rewards.put([(0, reward(inference_id, **usual | fields))])


# ---------------------------------------------------------------------------------------------- alarms


def test_alarms_are_listed_with_what_they_mean(service: Service, directory: Path, seen: Seen) -> None:
    for number in range(3):
        put_alarm(service, f"a{number}")
    with service.store.work() as work:
        work.alarms.close("a0", NOW)
    alarms.show_alarms(directory, None, everything=False, as_json=False)
    shown = seen()
    assert "a0" not in shown
    assert "a2: Questions instead of risky edits. recent 0.5, reference 0.125" in shown
    alarms.show_alarms(directory, None, everything=True, as_json=False)
    assert "a0: Questions" in seen()


def test_what_is_piped_is_whole(service: Service, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No line is folded or cut, and JSON is what the service answers."""
    name = "a-workload-with-a-name-" + "x" * 300
    put_alarm(service, "a", workload=name)
    alarms.show_alarms(directory, None, everything=False, as_json=False)
    assert any(name in line and "open" in line for line in capsys.readouterr().out.splitlines())
    for show, path in ((client.show_policies, "/v1/policies"), (client.show_fleet, "/v1/fleet")):
        show(directory, None, as_json=True)
        assert json.loads(capsys.readouterr().out) == service.get(path).json()
    alarms.show_alarms(directory, None, everything=False, as_json=True)
    assert json.loads(capsys.readouterr().out) == service.get("/v1/alarms").json()["alarms"]


def test_every_command_stands_in_one_group_of_the_help() -> None:
    shown = {name for name in app if not name.startswith("-") and app[name].show}
    assert Counter(name for names in GROUPS.values() for name in names) == Counter(shown)


def test_all_pages_are_listed(service: Service, directory: Path) -> None:
    for number in range(103):
        put_alarm(service, f"a{number}")
    found = [alarm["alarm_id"] for alarm in alarms._all(directory, None, "open")]
    assert found == [f"a{number}" for number in reversed(range(103))]


def test_an_acknowledgement_and_its_note(service: Service, directory: Path, seen: Seen) -> None:
    put_alarm(service, "a")
    alarms.acknowledge(directory, "a", "a new prompt", None)
    assert seen() == "a is acknowledged, by keyless"
    alarms.show_alarms(directory, None, everything=False, as_json=False)
    assert "acknowledged by keyless: a new prompt" in seen()
    with pytest.raises(OnwardError, match="no alarm nobody"):
        alarms.acknowledge(directory, "nobody", None, None)
    alarms.unacknowledge(directory, "a", None)
    assert seen() == "a is open, and nobody has acknowledged it; it holds: release"


def test_policies_say_what_they_wait_for(service: Service, directory: Path, seen: Seen) -> None:
    with service.store.work() as work:
        version = work.policies.allocate(NOW)
        policy = PolicyVersion(
            version=version, policy="base", digest="d", parent=None, manifest=None, weights="w", created_at=NOW
        )
        work.policies.put(policy)
    client.show_policies(directory, None, as_json=False)
    assert "wait" not in seen()
    put_alarm(service, "a")
    client.show_policies(directory, None, as_json=False)
    shown = seen()
    assert "releases wait for alarm a: `onward alarms ack a`" in shown
    assert service.get("/v1/releases").json()["held_by"] == [
        {"alarm_id": "a", "monitor": "questions", "meaning": "Questions instead of risky edits."}
    ]


def test_policies_say_of_anothers_alarm_that_there_is_one(directory: Path, seen: Seen) -> None:
    keys = [{"key": "key-of-ada", "namespace": "ada", "scopes": ("read",)}]
    with serve(directory, keys=keys) as service:
        write_address(Layout(directory).address, service.url)
        put_alarm(service, "a")
        client.show_policies(directory, "key-of-ada", as_json=False)
    assert "releases wait for an alarm of another namespace" in seen()


def test_an_order_says_who_gave_it(service: Service, directory: Path, seen: Seen) -> None:
    client.give_order(directory, "pin", 1, "users complain", None)
    assert seen() == "version 1: pinned, by keyless"
    service.orders.refuse_with = ("refused", "it never served")
    with pytest.raises(OnwardError, match="it never served"):
        client.give_order(directory, "hold", 2, "worse [bold]", None)
    client.show_policies(directory, None, as_json=False)
    shown = seen()
    assert "order: pin 1, by keyless: users complain (2" in shown
    assert "order: hold 2, by keyless: worse [bold] (it never served)" in shown


# ---------------------------------------------------------------------------------------------- rewards


def test_the_stream_is_followed_from_where_one_says(
    service: Service, directory: Path, seen: Seen, capsys: pytest.CaptureFixture[str]
) -> None:
    put_reward(service, "i1")
    put_reward(service, "i2", workload="fix")
    put_reward(service, "i3", value=-0.5, final=False)
    told.tail(directory, None, "write", 0, 2, as_json=False)
    shown = seen()
    assert "i1 write reward +0.750 revision 0: accepted +1, tests_passed -0.25 (accepted decides)" in shown
    assert "i3 write reward -0.500 revision 0, not final: " in shown
    assert "i2" not in shown
    told.tail(directory, None, "write", 0, 2, as_json=True)
    whole = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["inference_id"], each["value"], each["final"]) for each in whole] == [
        ("i1", 0.75, True),
        ("i3", -0.5, False),
    ]


def test_the_command_shows_what_comes(service: Service, directory: Path) -> None:
    command = [sys.executable, "-m", "onward", "rewards", "tail", str(directory), "--count", "1", "--after", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        put_reward(service, "i1")
        out, _ = process.communicate(timeout=240)
    assert process.returncode == 0
    assert "i1  write" in out


def test_the_story_of_one_turn(service: Service, directory: Path, seen: Seen) -> None:
    answer = service.chat("hi", session_id="s", headers={"x-onward-workload": "write"})
    inference_id = answer.headers["x-onward-inference-id"]
    service.turn(inference_id)
    for subject in ({"inference_id": inference_id}, {"session_id": "s"}):
        body = {**subject, "metric_name": "accepted", "value": True}
        assert service.post("/v1/feedback", body).status_code == 200
    wait_for(lambda: len(service.outcomes()) == 2)
    told.explain(directory, inference_id, None)
    assert seen().endswith("no reward yet")
    put_reward(service, inference_id)
    put_reward(service, inference_id, 1, value=-0.25, why="late: tests failed")
    told.explain(directory, inference_id, None)
    shown = seen()
    expected = ("session s", "workload write", "asked", "accepted: true, by client", "accepted of the session: true",
                "revision 0", "revision 1", "late: tests failed")  # fmt: skip
    assert [word for word in expected if word not in shown] == []
    assert shown.index("asked") < shown.index("accepted: true") < shown.index("revision 0")


def test_the_story_says_what_was_said_of_tokens(service: Service, directory: Path, seen: Seen) -> None:
    inference_id = service.chat("hi").headers["x-onward-inference-id"]
    service.turn(inference_id)
    body = {"inference_id": inference_id, "metric_name": "accepted", "value": False}
    assert service.post("/v1/feedback", {**body, "target_range": {"start": 0, "end": 2}}).status_code == 200
    wait_for(service.outcomes)
    put_reward(
        service,
        inference_id,
        credits=(Credit(start=0, end=2, value=-0.5),),
        edits=(TextEdit(start=1, end=2, token_ids=(7, 8, 9)),),
        hints=(Hint(start=0, end=2, text="use our logger", outcome_id=OutcomeId("o")),),
    )
    told.explain(directory, inference_id, None)
    shown = seen()
    expected = ("accepted: false, by client, of tokens [0, 2)", "tokens [0, 2) are credited -0.500",
                "tokens [1, 2) were replaced by 3 of the user's", 'tokens [0, 2): "use our logger"')  # fmt: skip
    assert [words for words in expected if words not in shown] == []


def test_a_turn_that_nobody_knows(service: Service, directory: Path) -> None:
    unknown = "018f0000-0000-7000-8000-000000000000"
    with pytest.raises(OnwardError, match=f"no inference {unknown}"):
        told.explain(directory, unknown, None)
    answer = service.get(f"/v1/rewards/{unknown}")
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (404, "inference_id", "unknown_inference")
    assert service.get(f"/v1/rewards/{unknown}?x=1").status_code == 400
