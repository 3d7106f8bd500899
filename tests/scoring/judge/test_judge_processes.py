"""The judge as a process of its own, within a service, and on services of several machines."""

import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from judge_world import Endpoint, Judging, endpoint_of_our_own, judged_text, votes
from kafka_world import open_log, read, topics_of_our_own
from service_tree import Service
from services import require_services
from stores import database
from waiting import wait_for

from core.clock import ManualClock
from core.events import Outcome, Topic
from core.ports import EventLog, TopicPartition
from core.settings import Settings
from onward.directory.layout import SHIPPED_REWARDS, Layout
from onward.processes.tree import _children
from onward.wiring.foundation import open_foundation
from onward.wiring.log.archive import build_keeper
from onward.wiring.stages import wanted_readers

ROOT = Path(__file__).resolve().parents[3]
NEVER_GIVEN_UP = {"requests.timeout_s": 3600, "requests.give_up_s": 3600}  # in as long as a test may take


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with endpoint_of_our_own() as endpoint:
        yield endpoint


def settings_of(endpoint: Endpoint, more: Mapping[str, object] = {}) -> dict[str, object]:
    """Return settings as `--set` has them; the age limit allows for the tests' turns, which are old."""
    usual = {"enabled": "true", "base_url": endpoint.url, "model": "judge-1", "turns.max_age_s": 3e8}
    return {f"judge.{name}": value for name, value in {**usual, **more}.items()}


def command(directory: Path, settings: dict[str, object]) -> list[str]:
    line = [sys.executable, "-m", "onward", "judge", str(directory), "--child", "judge"]
    for name, value in settings.items():
        line += ["--set", f"{name}={value}"]
    return line


def test_processes_that_are_killed_and_stopped_judge_each_turn_once(
    world: Any, events: Any, endpoint: Endpoint
) -> None:
    """The first is killed and the second stopped, each while the endpoint hangs."""
    slow = {"answer 1", "answer 4"}
    endpoint.answer = lambda body: None if judged_text(body)["answer"]["text"] in slow else votes(1.0)
    turns = [events.turn(f"session-{number}", 1, text=f"answer {number}") for number in range(6)]
    world.append(*turns)
    judging = Judging(world, endpoint)
    line = command(world.directory, settings_of(endpoint, {"requests.under_way": 30, **NEVER_GIVEN_UP}))
    with subprocess.Popen(line, cwd=ROOT) as process:
        wait_for(lambda: len(judging.said()) == 4, process)
        wait_for(lambda: min(endpoint.asked_about(each) for each in slow) == 3, process)  # for each vote
        process.send_signal(signal.SIGKILL)
    with subprocess.Popen(line, cwd=ROOT) as process:
        wait_for(lambda: min(endpoint.asked_about(each) for each in slow) == 6, process)
        wait_for(Layout(world.directory).ready("judge").exists, process)
        process.terminate()
        assert process.wait(240) == 0
    endpoint.answer = lambda _: votes(0.25)
    with subprocess.Popen(line, cwd=ROOT) as process:
        wait_for(lambda: len({outcome.outcome_id for outcome in judging.said()}) == 6, process)
        process.terminate()
        assert process.wait(240) == 0
    assert {outcome.inference_id for outcome in judging.said()} == {turn.inference_id for turn in turns}


def test_a_judge_that_is_not_enabled_says_so(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "onward", "judge", str(tmp_path)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "judge.enabled is false" in done.stderr


def test_a_tree_of_processes_has_one_where_it_is_enabled(tmp_path: Path) -> None:
    judge = {"enabled": True, "base_url": "http://127.0.0.1:1/v1", "model": "m"}
    names = [
        {child.name for child in _children(Layout(tmp_path), Settings.model_validate(settings))}
        for settings in ({}, {"judge": judge})
    ]
    assert names[1] - names[0] == {"judge"}


def test_retention_waits_for_it_where_it_is_enabled(tmp_path: Path, events: Any) -> None:
    judge = {"ENABLED": "true", "BASE_URL": "http://127.0.0.1:1/v1", "MODEL": "m"}
    overrides = {f"ONWARD_JUDGE__{name}": value for name, value in judge.items()}
    foundation = open_foundation(tmp_path, {"ONWARD_ARCHIVE__RETENTION_DAYS": "0", **overrides})
    try:
        foundation.log.append_blocking(Topic.TURNS, [events.turn("session", number) for number in range(5)])
        (source,) = {source for source in sources_of(foundation.log) if foundation.log.end(source)}
        keeper = build_keeper(foundation, wanted_readers(foundation.settings))
        for group, left in (("writer", 0), ("scorer", 0), ("judge", 4)):
            with foundation.store.work() as work:
                work.offsets.put(group, source, 4)
            assert keeper._retention is not None
            assert keeper._retention.delete(source) == left
    finally:
        foundation.close()


def sources_of(log: EventLog) -> list[TopicPartition]:
    return [TopicPartition(Topic.TURNS, number) for number in range(log.partitions(Topic.TURNS))]


def test_on_kafka_and_postgres_a_restart_judges_what_is_left(tmp_path: Path, events: Any, lab: Any) -> None:
    with (
        endpoint_of_our_own() as endpoint,
        topics_of_our_own(require_services().kafka) as settings,
        database("postgres", tmp_path) as home,
    ):
        log, store = open_log(settings), home.open()
        judging = Judging(SimpleNamespace(log=log, store=store, clock=ManualClock(lab.START)), endpoint)
        try:
            turns = [events.turn(f"session-{number}", 1, text=f"answer {number}") for number in range(20)]
            log.append_blocking(Topic.TURNS, turns[:10])
            first = judging.start(requests={"votes": 1})
            judging.run(first, lambda: len(endpoint.asked) == 10 and not first._under_way and not first._unsaid)
            judging.close(first)
            log.append_blocking(Topic.TURNS, turns[10:])
            second = judging.start(requests={"votes": 1})
            judging.run(second)
            judging.close(second)
            assert [endpoint.asked_about(turn.text) for turn in turns] == [1] * 20
            reader = log.reader([Topic.TURNS])
            said = [record.event for record in read(reader, 40, 50)]
            reader.close()
            assert len({each.outcome_id for each in said if isinstance(each, Outcome)}) == 20
            with store.look() as view:
                noted = view.offsets.of_group("judge")
            assert noted == {source: log.end(source) for source in sources_of(log)}
        finally:
            endpoint.ended.set()
            for judge in judging.judges:
                judge.close()
            log.close()
            store.close()


def test_within_a_service_it_reaches_the_reward_and_hangs_nobody(tmp_path: Path, endpoint: Endpoint) -> None:
    """A judgement becomes part of a reward; then the endpoint hangs while users go on, and the service stops."""
    directory = tmp_path / "service"
    directory.mkdir()
    weightless = "[outcomes.judgement]\n"
    spec = SHIPPED_REWARDS.read_text()
    assert weightless in spec
    (directory / "rewards.toml").write_text(spec.replace(weightless, f"{weightless}weight = 0.5\ndecides = true\n"))
    endpoint.answer = lambda _: votes(0.75, "it does what was asked")
    service = Service(directory, {"learner.enabled": "false", **settings_of(endpoint, NEVER_GIVEN_UP)})
    try:
        service.start()
        body = {"model": "onward-tiny", "messages": [{"role": "user", "content": "[web] write total(xs)"}]}
        service.post("/v1/chat/completions", body)
        wait_for(lambda: service.get("/v1/rewards")["data"])
        (reward,) = service.get("/v1/rewards")["data"]
        assert (reward["value"], reward["components"]) == (0.375, {"judgement": 0.375})
        assert "judgement +0.38" in reward["why"]
        wait_for(lambda: 'onward_judge_turns_total{result="judged"} 1.0' in service.text("/metrics"))
        endpoint.answer = lambda _: None
        asked = len(endpoint.asked)
        service.post("/v1/chat/completions", body)
        wait_for(lambda: len(endpoint.asked) > asked)
        service.post("/v1/chat/completions", body)
        assert service.get("/readyz")["components"]["judge"] == "ok"
    finally:
        service.stop()
