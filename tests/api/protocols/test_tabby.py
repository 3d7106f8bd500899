"""Tabby's protocol: its plugins ask for suggestions and say what became of them, down to the reward."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from api_harness import MODEL, Service, serve, wait_for
from byte_renderer import END, MIDDLE, PREFIX, SUFFIX, ids
from ready_stores import open_in_memory
from scripted_policy import says

from core.events import Completion, Reward, Topic
from core.ids import InferenceId
from core.ports import Record
from core.reward_spec import load_reward_spec
from onward.directory.layout import SHIPPED_REWARDS
from scoring.ledger.transaction import LedgerTransaction

SPEC = load_reward_spec(SHIPPED_REWARDS)
UNKNOWN = "0192f0c1-2345-7890-abcd-0123456789ab"
BODY: dict[str, Any] = {"language": "python", "segments": {"prefix": "def f(", "suffix": "return x"}}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with serve(tmp_path / "service", spec=SPEC) as service:
        yield service


def suggest(service: Service, text: str = "x):", **fields: Any) -> str:
    """Return the id of a suggestion."""
    service.policy.scripts.append(says(text))
    answer = service.post("/tabby/v1/completions", {**BODY, **fields})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def happened(service: Service, kind: str, completion_id: str, **fields: Any) -> int:
    event = {"type": kind, "completion_id": completion_id, "choice_index": 0, "view_id": "v1", "elapsed": 12, **fields}
    answer = service.post("/tabby/v1/events", event)
    assert (answer.content == b"") == (answer.status_code == 200)
    return answer.status_code


def turn_of(service: Service, completion_id: str) -> Completion:
    return service.turn(completion_id.removeprefix("cmpl-"))


def rewards(service: Service, completion_id: str, outcomes: int, after_s: float) -> list[Reward]:
    """Score the turn and what was reported of it, so many seconds later."""
    turn = turn_of(service, completion_id)
    said = wait_for(lambda: len(found := service.outcomes()) == outcomes and found) if outcomes else []
    log = [turn, *sorted(said, key=lambda outcome: outcome.received_at)]
    records = [
        Record(topic=Topic.TURNS, partition=0, offset=place, appended_at=turn.received_at, raw=b"", event=event)
        for place, event in enumerate(log)
    ]
    store, made = open_in_memory(), []
    for step in ("take", "pass"):
        transaction = LedgerTransaction(SPEC)
        with store.work() as work:
            if step == "take":
                transaction.take(work, records)
            else:
                transaction.let_pass(work, {0: turn.received_at + timedelta(seconds=after_s)})
        made += transaction.rewards
    store.close()
    return made


def test_it_answers_as_tabbys_server_does(service: Service) -> None:
    health = service.get("/tabby/v1/health").json()
    assert (health["model"], health["chat_model"], health["cuda_devices"]) == (MODEL, None, [])
    assert health["version"].keys() == {"build_date", "build_timestamp", "git_sha", "git_describe"}
    major, minor, _ = health["version"]["git_describe"].removeprefix("v").split(".")
    assert (int(major), int(minor)) >= (0, 9), "older ones are not asked for their settings"
    assert service.get("/tabby/v1beta/server_setting").json() == {"disable_client_side_telemetry": True}


def test_a_suggestion_is_a_turn_with_its_exact_tokens(service: Service) -> None:
    service.policy.scripts.append(says("x):"))
    answer = service.post("/tabby/v1/completions", {**BODY, "user": "ada", "temperature": 0.5, "seed": 7}).json()
    inference_id = answer["onward"]["inference_id"]
    assert (answer["id"], answer["choices"]) == (f"cmpl-{inference_id}", [{"index": 0, "text": "x):"}])
    turn = service.turn(inference_id)
    assert turn.prompt_token_ids == (PREFIX, *ids("def f("), SUFFIX, *ids("return x"), MIDDLE)
    assert (turn.token_ids, turn.sampling.temperature, turn.sampling.seed) == ((*ids("x):"), END), 0.5, 7)
    assert (turn.purpose, turn.workload, turn.tags) == ("suggestion", "suggestion", {"reports": "shown"})
    assert turn.user_id is not None
    assert turn.sampling.max_tokens == 64


def test_parts_of_other_files_come_first_and_the_rest_is_named(service: Service) -> None:
    segments = {
        **BODY["segments"],
        "filepath": "a.py",
        "git_url": "git@example.org:a",
        "clipboard": "secret",
        "declarations": [{"filepath": "b.py", "body": "def g(): ..."}],
        "relevant_snippets_from_changed_files": [{"filepath": "c.py", "body": "C = 1", "score": 0.5}],
    }
    service.policy.scripts.append(says("x):"))
    answer = service.post("/tabby/v1/completions", {"segments": segments})
    ignored = answer.headers["x-onward-ignored"].split(",")
    assert ignored == ["segments.filepath", "segments.git_url", "segments.clipboard"]
    turn = turn_of(service, answer.json()["id"])
    assert turn.messages[0]["content"] == "b.py\ndef g(): ...\nc.py\nC = 1\ndef f("
    assert "secret" not in str(turn)


def test_a_raw_prompt_takes_the_place_of_segments(service: Service) -> None:
    completion_id = suggest(service, segments=None, debug_options={"raw_prompt": "raw", "return_prompt": False})
    assert turn_of(service, completion_id).messages == ({"role": "prompt", "content": "raw"},)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("completions", {"language": "python"}, "segments"),
        ("completions", {"segments": {"suffix": "x"}}, "segments.prefix"),
        ("completions", {"segments": {"prefix": "x" * 3000}}, "segments.prefix"),
        ("completions", {"debug_options": {"raw_prompt": "x" * 3000}}, "debug_options.raw_prompt"),
        ("completions", {**BODY, "temperature": 3}, "temperature"),
        ("completions", {**BODY, "mode": "next_edit_suggestion"}, "mode"),
        ("events", {"type": "look", "completion_id": "c", "choice_index": 0}, "type"),
        ("events", {"type": "view", "completion_id": "c", "choice_index": 1}, "choice_index"),
        ("events", {"type": "view", "choice_index": 0}, "completion_id"),
        ("events", {"type": "view", "completion_id": "c", "choice_index": 0, "elapsed": 1 << 63}, "elapsed"),
    ],
)
def test_a_refusal_names_the_field(quick_service: Service, path: str, body: dict[str, Any], param: str) -> None:
    answer = quick_service.post(f"/tabby/v1/{path}", body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_what_nobody_saw_is_not_ignored(service: Service) -> None:
    assert rewards(service, suggest(service), 0, after_s=3600) == []


def test_what_was_viewed_and_left_is_ignored(service: Service) -> None:
    completion_id = suggest(service)
    assert happened(service, "view", completion_id) == 200
    (reward,) = rewards(service, completion_id, 1, after_s=3600)
    assert reward.components == {"ignored": -0.05}


@pytest.mark.parametrize(("kind", "component"), [("select", {"accepted": 1.0}), ("dismiss", {"rejected": -0.5})])
def test_what_was_taken_or_turned_down_is_rewarded_so(service: Service, kind: str, component: dict[str, float]) -> None:
    completion_id = suggest(service)
    for event in ("view", kind, kind, "view"):  # plugins send events again
        assert happened(service, event, completion_id) == 200
    (reward,) = rewards(service, completion_id, 2, after_s=3600)
    assert reward.components == component


def test_the_first_line_alone_is_a_part(service: Service) -> None:
    completion_id = suggest(service, "\nab\ncdefg")
    assert happened(service, "select", completion_id, select_kind="line") == 200
    (reward,) = rewards(service, completion_id, 1, after_s=60)
    assert reward.components == {"partially_accepted": 0.25}


def test_what_nobody_saw_is_not_ignored_though_its_words_are_not_stored(service: Service) -> None:
    service.http.headers["x-onward-store"] = "false"
    unseen, viewed = suggest(service), suggest(service)
    assert rewards(service, unseen, 0, after_s=3600) == []
    assert happened(service, "view", viewed) == 200
    (reward,) = rewards(service, viewed, 1, after_s=3600)
    assert reward.components == {"ignored": -0.05}


def test_the_first_line_of_what_is_not_stored_is_taken_without_its_share(service: Service) -> None:
    service.http.headers["x-onward-store"] = "false"
    completion_id = suggest(service, "ab\ncdefg")
    assert happened(service, "select", completion_id, select_kind="line") == 200
    (reward,) = rewards(service, completion_id, 1, after_s=60)
    assert reward.components == {"accepted": 1.0}


def test_how_long_it_was_shown_is_kept(service: Service) -> None:
    completion_id = suggest(service)
    assert happened(service, "dismiss", completion_id, elapsed=1200) == 200
    assert happened(service, "view", completion_id, elapsed=None) == 200
    shown = wait_for(lambda: len(found := service.outcomes()) == 2 and found)
    assert {each.name: each.tags.get("elapsed_ms") for each in shown} == {"rejected": "1200", "shown": None}


def test_events_count_against_the_limits_before_any_work(tmp_path: Path) -> None:
    keys = [{"key": "key-of-ada", "namespace": "ours", "requests_per_minute": 1, "burst": 1}]
    with serve(tmp_path / "service", spec=SPEC, keys=keys) as service:
        service.http.headers["authorization"] = "Bearer key-of-ada"
        answers = [happened(service, "select", f"cmpl-{UNKNOWN}", select_kind="line") for _ in range(2)]
        assert answers == [404, 429]


def test_events_of_what_nobody_suggested(service: Service) -> None:
    for completion_id in (f"cmpl-{UNKNOWN}", "nonsense"):
        assert happened(service, "view", completion_id) == 404
        assert happened(service, "select", completion_id, select_kind="line") == 404
    assert service.outcomes() == []


def test_events_are_joined_to_nobody_elses_turns(tmp_path: Path) -> None:
    keys = [{"key": f"key-of-{name}", "namespace": "ours", "user": name} for name in ("ada", "bob")]
    with serve(tmp_path / "service", spec=SPEC, keys=keys) as service:
        service.http.headers["authorization"] = "Bearer key-of-ada"
        completion_id = suggest(service)
        service.http.headers["authorization"] = "Bearer key-of-bob"
        assert happened(service, "select", completion_id) == 404
        assert InferenceId(completion_id) not in {outcome.inference_id for outcome in service.outcomes()}
