"""The monitors' stage over a real log and store: planted exploits, alarms that open once, restarts."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from kafka_world import open_log, topics_of_our_own
from services import require_services
from stepping import step
from stores import database
from waiting import wait_for
from watched_world import SETTINGS, Users, Watching

from core import telemetry
from core.clock import ManualClock
from core.errors import ConfigError, LogUnavailable, StoreUnavailable
from core.events import Counts, Topic, VersionSpan
from core.ids import Namespace, base_ref
from onward.directory.layout import Layout
from scoring.watching import MonitorStage, stage
from scoring.watching.workload import _decode

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def users(world: Any, lab: ModuleType) -> Users:
    return Users(world, lab)


@pytest.fixture
def watching(world: Any, lab: ModuleType) -> Iterator[Watching]:
    watching = Watching(world, lab)
    yield watching
    for watcher in watching.watchers:
        watcher.close()


def test_a_clean_service_has_no_alarm(users: Users, watching: Watching) -> None:
    watching.start()
    for _ in range(6):
        users.work(100)
        assert watching.look() == []
    users.wait(30)
    assert watching.look() == []
    assert watching.told() == []


def test_what_one_organisation_says_of_anothers_turns_raises_no_alarm(users: Users, watching: Watching) -> None:
    """The API takes such feedback while nobody can tell whose the turns are."""
    watching.start()
    users.work(130, namespace=Namespace("bolt"))
    users.wait(20)
    turns = users.work(130, namespace=Namespace("bolt"))
    for turn in turns:
        users.said.append(users.events.outcome(turn, "tests_passed", False, users.seconds, namespace=Namespace("acme")))
    users.wait(20)
    assert watching.look() == []


def test_one_organisations_liars_raise_and_close_no_alarm_of_another(
    world: Any, users: Users, watching: Watching
) -> None:
    """Both ask for the same workload, under the same names of users."""
    watching.start()
    names = Namespace("acme"), Namespace("bolt")
    both = [users, Users(world, users.lab)]
    both[1].events = users.events  # one counter of ids

    def work(count: int, *exploits: dict[str, float]) -> None:
        for each, name, exploit in zip(both, names, exploits, strict=True):
            each.seconds = max(one.seconds for one in both)
            each.work(count, namespace=name, **exploit)
        both[0].seconds = both[1].seconds
        users.wait(20)

    def open_of(name: Namespace) -> set[str]:
        return {
            each.opening.monitor for each in watching.stored() if each.opening.namespace == name and not each.closed_at
        }

    work(130, {}, {})
    assert watching.look() == []
    work(130, {"lies": 0.6}, {})
    watching.look()
    assert open_of(names[0]) >= {"reported_against_verified"}
    assert open_of(names[1]) == set()
    work(130, {}, {"breaks": 0.6})
    watching.look()
    assert open_of(names[1]) >= {"invalid_calls"}
    for _ in range(4):
        work(130, {"lies": 0.6}, {"breaks": 0.6})
        watching.look()
    assert open_of(names[1]) >= {"invalid_calls"}, "another's many clean calls close nothing"
    assert "reported_against_verified" not in open_of(names[1])


@pytest.mark.parametrize(
    ("exploit", "monitor"),
    [
        ({"asks": 0.6}, "questions"),
        ({"breaks": 0.6}, "invalid_calls"),
        ({"drops": 0.7}, "dropped"),
        ({"lies": 0.6}, "reported_against_verified"),
    ],
)
def test_a_planted_exploit_opens_one_alarm(
    users: Users, watching: Watching, exploit: dict[str, float], monitor: str
) -> None:
    watching.start()
    users.work(130)
    users.wait(20)
    assert watching.look() == []
    users.work(130, **exploit)
    users.wait(20)
    assert (monitor, "opened") in watching.look()
    for _ in range(3):
        users.work(20, **exploit)
        users.wait(20)
        watching.look()
    opened = watching.look()
    assert len(opened) == len(set(opened)), opened
    assert sorted(watching.told()) == sorted(opened)
    (alarm,) = [alarm for alarm in watching.stored() if alarm.opening.monitor == monitor]
    assert (alarm.opening.holds, alarm.opening.workload, alarm.holds_releases) == (("release",), "write", True)
    assert len(alarm.opening.meaning) > 20
    assert alarm.opening.figures["recent"] > alarm.opening.figures["reference"]
    assert alarm.opening.window_start < alarm.opening.window_end <= alarm.opening.opened_at


@pytest.mark.parametrize(
    ("flaw", "monitor"), [({"lies": 0.7}, "reported_against_verified"), ({"stalls": 0.2}, "default_pays")]
)
def test_what_no_past_excuses_is_seen_before_there_is_one(
    users: Users, watching: Watching, flaw: dict[str, float], monitor: str
) -> None:
    """Seventy turns are fewer than the hundred that make a reference."""
    watching.start()
    users.work(70, asks=0.6, **flaw)
    users.wait(20)
    assert watching.look() == [(monitor, "opened")]


def test_another_workload_is_another_story(users: Users, watching: Watching) -> None:
    watching.start()
    users.work(120)
    users.work(120, workload="fix", asks=0.8)
    users.work(120, namespace=Namespace("ada"), asks=0.8)
    users.work(120, workload="fix", asks=0.8)
    assert watching.look() == [], "what was so from the beginning is no change"


@pytest.fixture
def asked(users: Users, watching: Watching) -> MonitorStage:
    """Return a watcher that has seen the model ask too much."""
    watcher = watching.start()
    users.work(130)
    users.wait(20)
    watching.look()
    users.work(110, asks=0.6)
    assert ("questions", "opened") in watching.look()
    return watcher


@pytest.mark.usefixtures("asked")
def test_a_stage_that_starts_again_opens_nothing_twice(users: Users, watching: Watching) -> None:
    before = watching.stored()
    for _ in range(2):
        watching.start()
        watching.look()
    assert watching.stored() == before
    users.work(60, asks=0.6)
    watching.look()
    assert [alarm.opening.monitor for alarm in watching.stored()].count("questions") == 1


def test_a_reference_outlives_the_stage(users: Users, watching: Watching) -> None:
    """The reference survives even if the log no longer reaches back to it."""
    watching.start()
    users.work(130)
    users.wait(20)
    watching.look()
    users.wait(SETTINGS.window_s + 7200)
    watching.start()
    users.work(110, asks=0.6)
    assert ("questions", "opened") in watching.look()


def test_who_earns_less_than_at_best_is_named_with_both_levels(users: Users, watching: Watching) -> None:
    """The best outlives the stage, and what is as good raises nothing."""
    watching.start()
    for _ in range(3):
        users.work(110, policy_versions=(VersionSpan(start=0, end=2, version=base_ref(3)),))
        users.wait(20)
        assert watching.look() == []
    watching.start()
    users.work(120, value=0.3, policy_versions=(VersionSpan(start=0, end=2, version=base_ref(8)),))
    users.wait(20)
    assert watching.look() == [("worse_than_best", "opened")]
    (alarm,) = watching.stored()
    assert (alarm.opening.severity, alarm.opening.holds) == ("warning", ())
    figures = alarm.opening.figures
    assert figures["recent"] == pytest.approx(0.3, abs=0.05)
    assert figures["reference"] == pytest.approx(0.5, abs=0.1)
    assert (figures["version"], figures["best_version"]) == (8, 3)


def test_a_reference_that_is_half_made_is_gone_on_with(users: Users, watching: Watching) -> None:
    watching.start()
    users.work(70)
    watching.look()
    watching.start()
    users.work(40)
    users.wait(20)
    watching.look()
    with users.world.store.look() as view:
        record = view.references.get(Namespace("default"), "write")
    watching.start()
    users.work(110, asks=0.6)
    assert ("questions", "opened") in watching.look()
    with users.world.store.look() as view:
        again = view.references.get(Namespace("default"), "write")
    assert record is not None
    assert again is not None
    assert _decode(again).turns == _decode(record).turns, "it is ripe"


def test_a_reference_of_another_build_is_made_anew(users: Users, watching: Watching) -> None:
    with users.world.store.work() as work:
        work.references.put([(Namespace("default"), "write", b"of tomorrow")])
    watching.start()
    users.work(130)
    users.wait(20)
    assert watching.look() == []
    users.work(110, asks=0.6)
    assert ("questions", "opened") in watching.look()


@pytest.mark.usefixtures("asked")
def test_an_alarm_closes_when_its_monitor_has_been_content_for_a_while(users: Users, watching: Watching) -> None:
    users.work(110)
    assert watching.look()[0][1] == "opened", "content, but not for long"
    users.work(30)
    assert watching.look()[0][1] == "opened"
    users.work(40)
    assert watching.look()[0] == ("questions", "closed")
    assert ("questions", "closed") in watching.told()
    users.work(110, asks=0.6)
    assert ("questions", "opened") in watching.look(), "another one"


@pytest.mark.usefixtures("asked")
def test_who_relapses_is_not_content(users: Users, watching: Watching) -> None:
    for _ in range(3):
        users.work(110)
        watching.start()  # forgets since when the monitor was content
        assert watching.look()[0][1] == "opened"
        users.work(110, asks=0.6)
        watching.look()
    assert watching.look()[0] == ("questions", "opened")


@pytest.mark.usefixtures("asked")
def test_contentment_is_counted_from_the_last_relapse(users: Users, watching: Watching) -> None:
    for _ in range(2):
        users.work(90)
        watching.look()
        users.work(50)
        assert watching.look()[0][1] == "opened"
        users.work(60, asks=1.0)
        watching.look()
    users.work(90)
    assert watching.look()[0] == ("questions", "opened")


@pytest.mark.usefixtures("asked")
def test_silence_is_no_improvement(users: Users, watching: Watching) -> None:
    users.wait(SETTINGS.window_s + 7200)
    watching.look()
    users.wait(1000)
    assert watching.look()[0] == ("questions", "opened")


@pytest.mark.usefixtures("asked")
def test_an_acknowledgement_reaches_the_log(users: Users, watching: Watching) -> None:
    watching.acknowledge()
    users.work(10, asks=0.6)
    assert watching.look()[0] == ("questions", "acknowledged")
    assert ("questions", "acknowledged") in watching.told()
    assert not any(alarm.holds_releases for alarm in watching.stored())
    users.work(200)
    watching.look()
    users.work(100)
    assert watching.look()[0] == ("questions", "closed")


def test_a_monitor_that_is_off_sees_nothing_and_its_alarm_is_closed(users: Users, watching: Watching) -> None:
    watching.start()
    users.work(130)
    users.work(110, asks=0.6)
    assert ("questions", "opened") in watching.look()
    off = SETTINGS.model_copy(update={"off": (*SETTINGS.off, "questions", "no_edits")})
    watching.start(off)
    assert ("questions", "closed") in watching.look()
    assert len(watching.look()) == len(watching.look())
    with pytest.raises(ConfigError, match=r"monitors\.off: no monitor nonsense; there are .*questions"):
        watching.start(SETTINGS.model_copy(update={"off": ("nonsense",)}))


def test_alarms_may_only_tell(users: Users, watching: Watching) -> None:
    watching.start(SETTINGS.model_copy(update={"hold_releases": False}))
    users.work(130)
    users.work(110, asks=0.6)
    watching.look()
    assert [alarm.holds_releases for alarm in watching.stored() if alarm.opening.monitor == "questions"] == [False]


def test_a_scorer_that_stands_still_drops_no_turns(users: Users, watching: Watching) -> None:
    watching.start()
    users.work(130)
    users.wait(20)
    watching.look()
    users.work(200, drops=1.0)
    users.world.clock.advance(3600)
    assert watching.look() == []


@pytest.mark.parametrize(
    "fields",
    [
        {"finish_reason": "abort"},
        {"arm": "holdback"},
        {"purpose": "side"},
        {"unstored": Counts(prompt_tokens=3, output_tokens=3, characters=3)},
    ],
)
def test_turns_that_say_nothing_of_the_model_are_left_out(
    users: Users, watching: Watching, fields: dict[str, Any]
) -> None:
    watching.start()
    users.work(130)
    users.work(130, asks=0.9, **fields)
    assert watching.look() == []


def test_log_and_store_may_be_away_at_any_time(
    users: Users, watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, world = random.Random(1), users.world

    def sometimes(call: Callable[..., Any], error: Exception) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            if rng.random() < 0.3:
                raise error
            return call(*arguments, **options)

        return wrapped

    watching.start()
    users.work(130)
    users.work(110, asks=0.6)
    for name in ("end", "offset_at", "append_blocking"):
        monkeypatch.setattr(world.log, name, sometimes(getattr(world.log, name), LogUnavailable("gone")))
    for name in ("look", "work"):
        monkeypatch.setattr(world.store, name, sometimes(getattr(world.store, name), StoreUnavailable("gone")))
    watcher = watching.watchers[-1]
    for _ in range(200):
        watcher.woken.set()  # it need not wait before it tries again
        step(watcher, 0)
    monkeypatch.undo()
    assert watching.look().count(("questions", "opened")) == 1
    assert set(watching.told()) == set(watching.look())


def test_memory_does_not_grow_with_traffic(users: Users, watching: Watching) -> None:
    watching.start()
    held = []
    for _ in range(4):
        users.work(400)
        watching.look()
        held.append(telemetry.WATCHED_NOW._value.get())
    assert max(held) <= 4 * 100, held


# ------------------------------------------------------------------------------------------ Kafka and Postgres


def test_one_users_workloads_crowd_nobody_elses_out(
    users: Users, watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "_MOST_WORKLOADS", 5)
    watching.start()
    users.work(130)
    watching.look()
    (watcher,) = watching.watchers
    (known,) = watcher._workloads
    for number in range(20):
        users.work(1, workload=f"of-mallory-{number}")
        watching.look()
    assert len(watcher._workloads) == 5
    assert known in watcher._workloads


def test_workloads_of_one_namespace_crowd_out_no_other_namespaces(
    users: Users, watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever names workloads names users, too; only her namespace is not hers to name."""
    monkeypatch.setattr(stage, "_MOST_WORKLOADS", 6)
    watching.start()
    for workload in ("chat", "suggestion"):
        users.work(20, workload=workload)
    watching.look()
    (watcher,) = watching.watchers
    known = set(watcher._workloads)
    for number in range(12):
        users.work(20, namespace=Namespace("mallory"), workload=f"of-mallory-{number}")
        watching.look()
        users.work(1, workload="new")  # few use it yet
        watching.look()
    assert len(watcher._workloads) == 6
    assert {*known, (next(iter(known))[0], "new")} <= set(watcher._workloads)


def test_on_kafka_and_postgres_it_sees_the_same(lab: ModuleType, tmp_path: Path) -> None:
    with (
        database("postgres", tmp_path) as home,
        topics_of_our_own(require_services().kafka) as settings,
    ):
        log, store, clock = open_log(settings), home.open(), ManualClock(lab.START)
        world = SimpleNamespace(log=log, store=store, clock=clock)
        world.append = lambda *events: log.append_blocking(Topic.TURNS, events)
        users, watching = Users(world, lab), Watching(world, lab)
        try:
            watching.start()
            users.work(130)
            users.wait(20)
            assert watching.look() == []
            users.work(110, asks=0.6)
            found = watching.look()
            assert ("questions", "opened") in found
            watching.start()
            assert watching.look() == found
            users.work(10, asks=0.6)
            assert watching.look() == found
            assert sorted(watching.told(len(found))) == sorted(found)
        finally:
            for watcher in watching.watchers:
                watcher.close()
            log.close()
            store.close()


# ------------------------------------------------------------------------------------------ kill -9


def watch_command(directory: Path) -> list[str]:
    """Return the real command, which uses the wall clock."""
    settings = {
        "ingest.partitions": 4,
        "monitors.every_s": 0.01,
        "monitors.window_s": 1e9,
        "monitors.window_turns": SETTINGS.window_turns,
        "monitors.reference_turns": SETTINGS.reference_turns,
        "monitors.maturity_s": SETTINGS.maturity_s,
    }
    options = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    return [sys.executable, "-m", "onward", "watch", str(directory), "--child", "monitors", *options]


def test_kill_9_opens_nothing_twice_and_forgets_no_reference(users: Users, watching: Watching) -> None:
    """`onward watch` is killed at random moments while the exploit is at work."""
    directory, rng = users.world.directory, random.Random(0)
    ready = Layout(directory).ready("monitors")

    def is_ready(process: "subprocess.Popen[bytes]") -> bool:
        with suppress(FileNotFoundError):  # it takes away what the one before it left
            return ready.read_text() == str(process.pid)
        return False

    users.work(130)
    users.wait(20)
    for exploit in (0.05, 0.6, 0.6):
        with subprocess.Popen(watch_command(directory), cwd=ROOT) as process:
            wait_for(lambda: is_ready(process), process)
            users.work(100, asks=exploit)
            time.sleep(rng.uniform(0, 0.2))
            process.send_signal(signal.SIGKILL)
    with subprocess.Popen(watch_command(directory), cwd=ROOT) as process:
        wait_for(lambda: ("questions", "opened") in watching.told(), process)
        users.work(100, asks=0.6)
        wait_for(lambda: is_ready(process), process)
        # One before it may have been killed once it had opened another alarm and before it told of it: this one does,
        # but not before it has read the past and looked, and it is ready sooner.
        wait_for(
            lambda: {(each.opening.monitor, each.state) for each in watching.stored()} == set(watching.told()), process
        )
        process.terminate()
        assert process.wait(240) == 0
    found = [(alarm.opening.monitor, alarm.state) for alarm in watching.stored()]
    assert found.count(("questions", "opened")) == 1
    assert len(found) == len(set(found)), found
    assert set(watching.told()) == set(found)
