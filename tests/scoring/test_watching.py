"""The stage that watches, over a real log and store: planted exploits, alarms that open once, restarts."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from core import telemetry
from core.alarms import StoredAlarm
from core.errors import ConfigError, LogUnavailable, StoreUnavailable
from core.events import Alarm, Completion, Event, OutcomeSource, Reward, ToolCall, Topic
from core.ids import Namespace, UserHash
from core.settings import MonitorSettings
from core.store import alarms
from scoring.watching import Watcher

ROOT = Path(__file__).resolve().parents[2]
TOOL = {"type": "function", "function": {"name": "edit_file", "parameters": {"required": ["path"]}}}
GOOD = ToolCall(id="c", name="edit_file", arguments='{"path": "a"}', index=0)
BROKEN = ToolCall(id="c", name="edit_file", arguments="{}", index=0)
SETTINGS = MonitorSettings(
    every_s=1e-6, window_turns=100, reference_turns=100, maturity_s=10, close_after_s=60, off=("feedback_rate",)
)


@dataclass
class Users:
    """Thirty of them, whose turns and rewards go into a world's log, a second each."""

    world: Any
    lab: ModuleType
    seconds: float = 0.0
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    def __post_init__(self) -> None:
        self.events = self.lab.Events()
        self.said: list[Event] = []
        self.rewards: list[Event] = []

    def work(
        self,
        count: int = 100,
        *,
        asks: float = 0.05,
        breaks: float = 0.05,
        drops: float = 0.05,
        lies: float = 0.0,
        value: float | None = None,
        **fields: Any,
    ) -> list[Completion]:
        """With these probabilities a turn asks, breaks its call, gets no reward, or is accepted and fails its tests."""
        turns = []
        for _ in range(count):
            self.seconds += 1.0
            turn = self._turn(self.rng.random() < asks, self.rng.random() < breaks, fields)
            turns.append(turn)
            self._say(turn, "accepted", True)
            self._say(turn, "tests_passed", self.rng.random() >= lies)
            if self.rng.random() >= drops:
                self._reward(turn, self.rng.gauss(0.5, 0.2) if value is None else value)
        self._append()
        return turns

    def wait(self, seconds: float) -> None:
        """Time passes for the log, too: a reward of another workload is decided."""
        self.seconds += seconds
        self._reward(self._turn(False, False, {"workload": "elsewhere"}), 0.5)
        self._append()

    def _append(self) -> None:
        self.world.append(*self.said)
        self.world.log.append_blocking(Topic.REWARDS, self.rewards)
        self.said, self.rewards = [], []
        self.world.clock.advance_to(self.lab.at(self.seconds))

    def _turn(self, asks: bool, breaks: bool, fields: dict[str, Any]) -> Completion:
        user = f"user-{self.rng.randrange(30)}"
        usual: dict[str, Any] = {
            "user_id": UserHash(user),
            "text": "Which file?" if asks else "done",
            "tools": (TOOL,),
            "tool_calls": () if asks else (BROKEN if breaks else GOOD,),
        }
        turn: Completion = self.events.turn(f"session-of-{user}", self.seconds, **(usual | fields))
        self.said.append(turn)
        return turn

    def _say(self, turn: Completion, name: str, value: bool, source: OutcomeSource = "user") -> None:
        self.said.append(self.events.outcome(turn, name, value, self.seconds, source=source))

    def _reward(self, turn: Completion, value: float) -> None:
        reward = Reward(
            inference_id=turn.inference_id,
            session_id=turn.session_id,
            namespace=turn.namespace,
            workload=turn.workload,
            revision=0,
            value=value,
            components={"accepted": value},
            outcome_ids=(),
            first_outcome_at=None,
            last_outcome_at=None,
            why="a test",
            spec="spec",
            final=True,
            decided_at=self.lab.at(self.seconds),
        )
        self.rewards.append(reward)


@dataclass
class Watching:
    world: Any
    lab: ModuleType
    watchers: list[Watcher] = field(default_factory=list)

    def start(self, settings: MonitorSettings = SETTINGS) -> Watcher:
        """A new process's: it has no memory."""
        watcher = Watcher(self.world.log, self.world.store, self.lab.SPEC, settings, self.world.clock)
        self.watchers.append(watcher)
        return watcher

    def look(self, watcher: Watcher | None = None) -> list[tuple[str, str]]:
        """Read all and look; (monitor, state) of the alarms in the store, the oldest first."""
        watcher = watcher or self.watchers[-1]
        while watcher.step(0) or watcher._behind != {} or self._is_behind(watcher):
            pass
        watcher._look_at_s = float("-inf")  # it spares the machine: not so soon after the last one
        watcher.step(0)
        return [(alarm.opening.monitor, alarm.state) for alarm in self.stored()]

    def _is_behind(self, watcher: Watcher) -> bool:
        reader = watcher._reader
        return any(reader.position(source) < self.world.log.end(source) for source in reader.assignment())

    def stored(self) -> list[StoredAlarm]:
        with self.world.store.read() as connection:
            return alarms.list_alarms(connection, None, None, 100, only_open=False)[::-1]

    def told(self) -> list[tuple[str, str]]:
        """(monitor, state), as the log has them: in order for each monitor."""
        reader = self.world.log.reader([Topic.ALARMS])
        try:
            found = [record.event for record in reader.poll(1000, 0)]
        finally:
            reader.close()
        return [(event.monitor, event.state) for event in found if isinstance(event, Alarm)]

    def acknowledge(self) -> None:
        with self.world.store.begin() as connection:
            for alarm in alarms.open_alarms(connection):
                alarms.acknowledge(connection, alarm.alarm_id, "ops", None, self.world.clock.now())


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


def test_another_workload_is_another_story(users: Users, watching: Watching) -> None:
    watching.start()
    users.work(120)
    users.work(120, workload="fix", asks=0.8)
    users.work(120, namespace=Namespace("ada"), asks=0.8)
    users.work(120, workload="fix", asks=0.8)
    assert watching.look() == [], "what was so from the beginning is no change"


@pytest.fixture
def asked(users: Users, watching: Watching) -> Watcher:
    """A watcher that has seen the model ask too much."""
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
    """Also where the log no longer reaches back to it."""
    watching.start()
    users.work(130)
    users.wait(20)
    watching.look()
    users.wait(SETTINGS.window_s + 7200)
    watching.start()
    users.work(110, asks=0.6)
    assert ("questions", "opened") in watching.look()


def test_a_reference_that_is_half_made_is_gone_on_with(users: Users, watching: Watching) -> None:
    watching.start()
    users.work(70)
    watching.look()
    watching.start()
    users.work(40)
    users.wait(20)
    watching.look()
    with users.world.store.read() as connection:
        record = alarms.get_reference(connection, Namespace("default"), "write")
    watching.start()
    users.work(110, asks=0.6)
    assert ("questions", "opened") in watching.look()
    with users.world.store.read() as connection:
        assert alarms.get_reference(connection, Namespace("default"), "write") == record, "it is ripe"


def test_a_reference_of_another_build_is_made_anew(users: Users, watching: Watching) -> None:
    with users.world.store.begin() as connection:
        alarms.put_references(connection, [(Namespace("default"), "write", b"of tomorrow")])
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


@pytest.mark.parametrize("fields", [{"finish_reason": "abort"}, {"arm": "holdback"}, {"purpose": "side"}])
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
    for name in ("read", "begin"):
        monkeypatch.setattr(world.store, name, sometimes(getattr(world.store, name), StoreUnavailable("gone")))
    for _ in range(200):
        watching.watchers[-1].step(0)
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


# ------------------------------------------------------------------------------------------ kill -9

WATCHER = """
import sys
from pathlib import Path
from core.clock import SystemClock
from core.reward_spec import RewardSpec
from core.settings import MonitorSettings
from core.store import open_sqlite
from ingest.sqlite_log import SqliteEventLog
from scoring.watching import Watcher

directory = Path(sys.argv[1])
log = SqliteEventLog(directory / "log.db", partitions=4, poll_s=0.001)
spec = RewardSpec.model_validate_json((directory / "spec.json").read_text())
settings = MonitorSettings.model_validate_json((directory / "settings.json").read_text())
watcher = Watcher(log, open_sqlite(directory / "store.db"), spec, settings, SystemClock())
while True:
    watcher.step(0.01)
    print("step", flush=True)
"""


def test_kill_9_opens_nothing_twice_and_forgets_no_reference(users: Users, watching: Watching, lab: ModuleType) -> None:
    """Killed again and again, at moments of no choosing, while the exploit is at work."""
    directory, rng = users.world.directory, random.Random(0)
    (directory / "spec.json").write_text(lab.SPEC.model_dump_json())
    settings = SETTINGS.model_copy(update={"window_s": 1e9, "close_after_s": 1e9})  # its clock is the wall's
    (directory / "settings.json").write_text(settings.model_dump_json())
    users.work(130)
    users.wait(20)
    for exploit in (0.05, 0.6, 0.6):
        users.work(100, asks=exploit)
        command = [sys.executable, "-c", WATCHER, str(directory)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(rng.randint(3, 8)):
                assert process.stdout.readline(), "the watcher ended by itself"
            time.sleep(rng.uniform(0, 0.01))
            process.send_signal(signal.SIGKILL)
    users.world.clock.advance(timedelta(days=365).total_seconds())
    watching.start(settings)
    found = watching.look()
    assert found.count(("questions", "opened")) == 1
    assert len(found) == len(set(found)), found
    assert set(watching.told()) == set(found)
