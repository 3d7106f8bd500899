"""Users at work in a world's log, and watchers of it, for tests of the monitors' stage."""

import random
import time
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import made_events
from stepping import step

from core.events import Alarm, Completion, Event, OutcomeSource, ToolCall, Topic
from core.ids import OutcomeId, UserHash
from core.operations.alarms import StoredAlarm
from core.reward_spec import RewardSpec
from core.settings import MonitorSettings
from scoring.watching import MonitorStage

TOOL = {"type": "function", "function": {"name": "edit_file", "parameters": {"required": ["path"]}}}
GOOD = ToolCall(id="c", name="edit_file", arguments='{"path": "a"}', index=0)
BROKEN = ToolCall(id="c", name="edit_file", arguments="{}", index=0)
SETTINGS = MonitorSettings(
    every_s=1e-6, window_turns=100, reference_turns=100, maturity_s=10, close_after_s=60, off=("feedback_rate",)
)


@dataclass
class Users:
    """Thirty users, whose turns and rewards go into a world's log, one a second."""

    world: Any
    lab: ModuleType
    taken: str = "accepted"  # what they say of what they take
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
        stalls: float = 0.0,
        value: float | None = None,
        **fields: Any,
    ) -> list[Completion]:
        """Append turns with these probabilities of each flaw.

        A turn may ask, break its call, get no reward, be accepted although its tests fail, or get the best reward by
        default."""
        turns = []
        for _ in range(count):
            self.seconds += 1.0
            turn = self._turn(self.rng.random() < asks, self.rng.random() < breaks, fields)
            turns.append(turn)
            self._say(turn, self.taken, True)
            self._say(turn, "tests_passed", self.rng.random() >= lies)
            if self.rng.random() < stalls:
                self._reward(turn, 1.0, by_default=True)
            elif self.rng.random() >= drops:
                self._reward(turn, self.rng.gauss(0.5, 0.2) if value is None else value)
        self._append()
        return turns

    def wait(self, seconds: float) -> None:
        """Let time pass for the log, too, by a reward of another workload."""
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
        about = {"source": source, "namespace": turn.namespace}
        self.said.append(self.events.outcome(turn, name, value, self.seconds, **about))

    def _reward(self, turn: Completion, value: float, by_default: bool = False) -> None:
        said = () if by_default else (OutcomeId("said"),)
        self.rewards.append(made_events.reward_of(turn, value, self.lab.at(self.seconds), outcome_ids=said))


@dataclass
class Watching:
    world: Any
    lab: ModuleType
    watchers: list[MonitorStage] = field(default_factory=list)

    def start(self, settings: MonitorSettings = SETTINGS, spec: RewardSpec | None = None) -> MonitorStage:
        """Start a watcher as a new process would: without any memory."""
        watcher = MonitorStage(self.world.log, self.world.store, spec or self.lab.SPEC, settings, self.world.clock)
        self.watchers.append(watcher)
        return watcher

    def look(self, watcher: MonitorStage | None = None) -> list[tuple[str, str]]:
        """Read everything and examine it; return (monitor, state) of the stored alarms, oldest first."""
        watcher = watcher or self.watchers[-1]
        while step(watcher, 0) or watcher._behind != {} or self._is_behind(watcher):
            pass
        watcher._look_at_s = float("-inf")  # it spares the machine: not so soon after the last one
        step(watcher, 0)
        return [(alarm.opening.monitor, alarm.state) for alarm in self.stored()]

    def _is_behind(self, watcher: MonitorStage) -> bool:
        reader = watcher._reader
        return any(reader.position(source) < self.world.log.end(source) for source in reader.assignment())

    def stored(self) -> list[StoredAlarm]:
        with self.world.store.look() as view:
            return view.alarms.newest(None, None, 100, only_open=False)[::-1]

    def told(self, least: int = 0) -> list[tuple[str, str]]:
        """Return (monitor, state) of the log's alarm events; wait for `least` of them.

        They are in order for each monitor."""
        reader, found = self.world.log.reader([Topic.ALARMS]), []
        try:
            deadline_s = time.monotonic() + 120
            while not found or len(found) < least:
                found += [record.event for record in reader.poll(1000, 0.1 if least else 0)]
                if not least or time.monotonic() > deadline_s:
                    break
        finally:
            reader.close()
        return [(event.monitor, event.state) for event in found if isinstance(event, Alarm)]

    def acknowledge(self) -> None:
        with self.world.store.work() as work:
            for alarm in work.alarms.that_are_open():
                work.alarms.acknowledge(alarm.alarm_id, "ops", None, self.world.clock.now())
