"""A user's turns are taken out of learning: of a service that runs, by the command line, and of replays."""

import json
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kept_world import COUNT, START, append, past
from service_tree import Service, wait_for

from core.errors import ConfigError
from core.events import Completion, Outcome
from core.ids import Namespace, base_ref
from core.operations.exclusions import Selection
from learner.versions.probe import probe_of_model
from onward.cli import app
from onward.replays.as_lived import prove
from onward.replays.proof import lineage_of, prove_exactly_once
from onward.replays.propose import propose
from onward.replays.replay import replay_log
from onward.wiring.foundation import open_foundation
from serving.evals.gate import Bounds
from serving.evals.run import Limits
from serving.releases import ensure_anchor

MakeService = Callable[..., Service]


def say(service: Service, who: str, count: int) -> list[str]:
    """Chat as a user and accept every other answer; return the turns."""
    turns = []
    for number in range(count):
        answer = service.chat(f"[web] write total_{number}(xs): sum of xs", user=who, max_tokens=8)["onward"]
        turns.append(answer["inference_id"])
        accept(service, turns[-1], value=bool(number % 2))
    return turns


def accept(service: Service, turn: str, *, value: bool) -> None:
    service.post("/v1/feedback", {"inference_id": turn, "metric_name": "accepted", "value": value})


def run(*words: str) -> None:
    app(list(words), result_action="return_value")


def live(service: Service) -> int:
    return int(service.get("/v1/policies")["live"])


def order(service: Service) -> dict[str, Any]:
    found: dict[str, Any] = service.get("/v1/exclusions")["data"][0]
    return found


def test_what_a_user_taught_is_unlearned_and_what_serves_is_reproduced_to_the_bit(
    make_service: MakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    service = make_service(learner__batch__turns=8, learner__batch__min_turns=8).start()
    directory = str(service.directory)
    say(service, "alice", 8)
    wait_for(lambda: live(service) >= 2, 90, "a version of Alice's turns")
    bad = say(service, "mallory", 4)
    say(service, "alice", 4)
    wait_for(lambda: live(service) >= 3, 90, "a version of Mallory's turns, too")
    run("exclude", directory, "--user", "mallory", "--preview")
    foreseen = " ".join(capsys.readouterr().out.split())
    assert "It selects 4 turns, and means what these users said of others', too; version 3 learned from 4" in foreseen
    assert "goes back to version 2 and makes 1 update again, 1 of them changed" in foreseen
    assert service.get("/v1/exclusions")["data"] == []
    run("exclude", directory, "--user", "mallory", "--why", "a siege")
    run("exclusions", directory, "--follow")
    told = order(service)
    assert (told["state"], told["by"], told["why"]) == ("done", "keyless", "a siege")
    made = told["relearning"]["version"]
    wait_for(lambda: live(service) == made, 60, "the release of what is left")
    accept(service, bad[1], value=False)  # late, and heard by nobody
    say(service, "alice", 8)
    wait_for(lambda: live(service) > made, 90, "the next version")
    newest = live(service)
    service.stop()
    assert prove(service.directory, newest, service.overrides), "as lived, to the bit"
    with closing(open_foundation(service.directory, service.overrides)) as foundation:
        lineage = lineage_of(foundation, base_ref(newest))
    assert base_ref(made) in [step.version for step in lineage]
    assert prove_exactly_once(lineage) > 0
    assert not {reward.inference_id for step in lineage for reward in step.rewards} & set(bad)
    assert base_ref(3) not in [step.version for step in lineage]


def test_a_replay_is_one_of_a_log_that_never_had_it(tmp_path: Path) -> None:
    events = past(COUNT)
    excluded = {event.session_id for event in events[::10] if isinstance(event, Completion)}
    turns = {event.inference_id for event in events if isinstance(event, Completion) and event.session_id in excluded}
    append(tmp_path / "whole", events)
    append(tmp_path / "without", [e for e in events if of_turn(e) not in turns])
    replay_log(tmp_path / "whole", tmp_path / "before", None, None)
    with closing(open_foundation(tmp_path / "whole")) as source, source.store.work() as work:
        chosen = Selection(namespace=Namespace("default"), sessions=tuple(sorted(excluded)))
        work.exclusions.give(chosen, "a siege", "ops", START)
    release_the_given_model(tmp_path / "whole")
    with pytest.raises(ConfigError, match=rf"before: it learned from {len(turns)} rewards of turns that are excluded"):
        propose(tmp_path / "before", tmp_path / "whole", None, Limits(), Bounds(), 0.05)
    whole = replay_log(tmp_path / "whole", tmp_path / "one", None, None)
    without = replay_log(tmp_path / "without", tmp_path / "two", None, None)
    assert whole["weights_digest"] == without["weights_digest"]
    assert whole["version"] > 1
    report = json.loads((tmp_path / "one" / "report.json").read_text())
    assert report["excluded"] == len(turns) == len(excluded) > 1


def release_the_given_model(directory: Path) -> None:
    with closing(open_foundation(directory)) as made:
        recorded = partial(probe_of_model, device="cpu")
        ensure_anchor(made.store, made.log, made.weights, made.blobs, made.model, "tiny", "local", recorded)


def of_turn(event: object) -> object:
    assert isinstance(event, Completion | Outcome)
    return event.inference_id
