"""The stage that watches: it reads turns, outcomes and rewards, and runs monitors over windows of them in memory.

It is a reader without a group: at a start the windows are filled again from the end of the log, and what the log no
longer has is too old to matter, so retention need not wait for it. The store has what must outlive that: references,
and which alarms are open.

A turn ripens by the time of rewards, not by the wall clock, so no turns are lost while the scorer is stopped."""

import logging
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from operator import attrgetter
from typing import Final

import msgspec

from core import telemetry
from core.errors import ConfigError
from core.events import Completion, Event, Outcome, Reward, Topic
from core.ids import InferenceId, Namespace
from core.ports import Clock, EventLog, Record, Store, TopicPartition
from core.records.handling import Culprits, attempt, words_of
from core.reward_spec import RewardSpec
from core.settings import MonitorSettings
from core.settings.stages import RECORD_ATTEMPTS
from core.stages.sources import OwnRecords
from core.stages.stage import Stage, until
from scoring.monitors import MONITORS, Monitor, Window, hear, watch, with_reward
from scoring.watching.alarms import MonitorAlarms
from scoring.watching.turns import WatchedTurns
from scoring.watching.workload import Workload

_TOPICS: Final = (Topic.TURNS, Topic.REWARDS)
_POLL_RECORDS: Final = 512
_REBUILT_RECORDS: Final = 20_000  # of each topic, at a start
_MOST_WORKLOADS: Final = 100  # clients name them, so beyond it one is forgotten: see `_forget_one`
_MOST_EARLY: Final = 4096
_GRACE_S: Final = 5.0  # beyond a wait, until its reward is in the log
_LONGEST_MATURITY_S: Final = 3600.0
_MOST_LOOKING: Final = 0.05  # share of the time
_WATCHED: Final = frozenset({"turn", "suggestion"})
Key = tuple[Namespace, str]
logger = logging.getLogger(__name__)


class MonitorStage(Stage):
    """The monitors as a stage. Raises ConfigError for an unknown monitor."""

    def __init__(
        self,
        log: EventLog,
        store: Store,
        spec: RewardSpec,
        settings: MonitorSettings,
        clock: Clock,
        record_attempts: int = RECORD_ATTEMPTS,
    ) -> None:
        super().__init__()
        unknown = set(settings.off) - {monitor.name for monitor in MONITORS}
        if unknown:
            names = ", ".join(monitor.name for monitor in MONITORS)
            raise ConfigError(f"settings: monitors.off: no monitor {', '.join(sorted(unknown))}; there are {names}")
        self._log, self._store, self._spec, self._settings, self._clock = log, store, spec, settings, clock
        self._monitors = [monitor for monitor in MONITORS if monitor.name not in settings.off]
        self._alarms = MonitorAlarms(log, store, settings, clock)
        self._culprits = Culprits("monitors", log, store, clock, record_attempts)
        self._reader = log.reader(_TOPICS)
        self.source = OwnRecords(self._reader, self._culprits)
        self._behind: dict[TopicPartition, int] = {}  # where the log ended when we came, and not yet read so far
        self._past: list[Record] = []  # what is read of it, until all is
        self._waiting: deque[Record] = deque()  # read, and not taken yet
        self._turns = WatchedTurns()
        self._workloads: OrderedDict[Key, Workload] = OrderedDict()  # the one that spoke last is last
        self._early: OrderedDict[InferenceId, Reward] = OrderedDict()
        self._rewarded_s = float("-inf")
        self._look_at_s = float("-inf")

    def tick(self) -> float:
        self._catch_up()
        while self._waiting:
            record = self._waiting[0]
            self._culprits.tried(record, partial(self._take_one, record.event))
            self._waiting.popleft()
        if time.monotonic() >= self._look_at_s and not self._behind:
            took_s = self._look()
            self._look_at_s = time.monotonic() + max(self._settings.every_s, took_s / _MOST_LOOKING)
        return until(self._look_at_s)

    # ------------------------------------------------------------------------------------------ reading

    def begin(self) -> None:
        """Start reading as far back as windows may reach."""
        self._alarms.load(frozenset(monitor.name for monitor in self._monitors))
        oldest = self._clock.now() - timedelta(seconds=self._settings.window_s + _LONGEST_MATURITY_S)
        behind = {}
        for topic in _TOPICS:
            count = self._log.partitions(topic)
            for source in (TopicPartition(topic, number) for number in range(count)):
                end = self._log.end(source)
                start = max(self._log.offset_at(source, oldest), end - _REBUILT_RECORDS // count)
                self._reader.seek(source, max(start, self._log.earliest(source)))
                behind[source] = end
        self._behind = behind

    def handle(self, records: Sequence[Record]) -> None:
        """Queue the past as a whole and in order of time, since partitions are not read side by side.

        Then queue what arrives."""
        readable = [record for record in records if record.event is not None]
        if self._behind:
            self._past += readable
        else:
            self._waiting += readable

    def _catch_up(self) -> None:
        self._behind = {source: end for source, end in self._behind.items() if self._reader.position(source) < end}
        if self._behind or not self._past:
            return
        turns = [record for record in self._past if isinstance(record.event, Completion)]
        self._waiting += sorted(turns, key=attrgetter("event.received_at"))
        self._waiting += [record for record in self._past if not isinstance(record.event, Completion)]
        self._past = []

    def _take_one(self, event: Event | None) -> None:
        match event:
            case Completion() if event.inference_id not in self._turns:  # the log may hold it twice
                self._take_turn(event)
            case Outcome():
                for inference_id in self._turns.about(event):
                    self._turns.change(inference_id, partial(hear, outcome=event, roles=self._spec.roles))
            case Reward():
                self._take_reward(event)

    def _take_turn(self, turn: Completion) -> None:
        """Add a turn to its workload's windows.

        Turns of users who went away, of failed engines, or that were not stored say nothing of the model; the holdback
        is served by an older version."""
        if (
            turn.purpose not in _WATCHED
            or turn.finish_reason in ("abort", "error")
            or turn.unstored is not None
            or turn.arm not in ("live", "canary")
        ):
            return
        patterns = self._spec.rules(turn.workload, turn.namespace).derived
        self._workload(turn).add(watch(turn, patterns))
        telemetry.WATCHED_TURNS.inc()
        early = self._early.pop(turn.inference_id, None)
        if early is not None:
            self._take_reward(early)

    def _take_reward(self, reward: Reward) -> None:
        self._rewarded_s = max(self._rewarded_s, reward.decided_at.timestamp())
        if self._turns.change(reward.inference_id, lambda turn: with_reward(turn, reward)):
            return
        self._early[reward.inference_id] = reward
        if len(self._early) > _MOST_EARLY:
            self._early.popitem(last=False)

    # ------------------------------------------------------------------------------------------ workloads

    def _workload(self, turn: Completion) -> Workload:
        key = turn.namespace, turn.workload
        if key not in self._workloads:
            self._workloads[key] = self._make(key)
            if len(self._workloads) > _MOST_WORKLOADS:
                self._forget_one(key)
        self._workloads.move_to_end(key)
        return self._workloads[key]

    def _forget_one(self, newcomer: Key) -> None:
        """Forget the most silent workload of the newcomer's namespace that few users use.

        Where it has none, forget one of the namespace that has the most: again one that few use, or the most silent.
        Else one user, by naming many, has others' forgotten. She names their users, too, but no other namespaces."""
        heaviest = Counter(namespace for namespace, _ in self._workloads).most_common(1)[0][0]
        silent = [key for key in self._workloads if key != newcomer]
        unused = [key for key in silent if not self._workloads[key].has_users]
        own = [key for key in unused if key[0] == newcomer[0]]
        of_heaviest = [key for keys in (unused, silent) for key in keys if key[0] == heaviest]
        self._workloads.pop((own or of_heaviest)[0]).close()

    def _make(self, key: Key) -> Workload:
        with self._store.look() as view:
            reference = view.references.get(*key)
        make = partial(Workload, self._turns, self._settings, self._maturity_s(key), self._spec.roles)
        try:
            return make(reference)
        except msgspec.DecodeError as error:
            logger.warning("monitors: the reference of workload %s of %s is made anew: %s", key[1], key[0], error)
            return make(None)

    def _maturity_s(self, key: Key) -> float:
        if self._settings.maturity_s is not None:
            return self._settings.maturity_s
        namespace, workload = key
        rules = self._spec.rules(workload, namespace)
        longest_s = max((rules.suggestion.wait_s, *(outcome.wait_s for outcome in rules.outcomes.values())))
        return min(longest_s, _LONGEST_MATURITY_S) + _GRACE_S

    # ------------------------------------------------------------------------------------------ looking

    def _look(self) -> float:
        """Run the monitors; return how long it took, in seconds."""
        began_s, now_s = time.monotonic(), self._clock.now().timestamp()
        for key, workload in self._workloads.items():
            workload.pass_time(now_s, self._rewarded_s)
            if workload.has_news:
                self._examine_all(key, workload)
                workload.has_news = False
        self._save()
        self._alarms.tell()
        self._alarms.count()
        telemetry.WATCHED_NOW.set(len(self._turns))
        telemetry.WATCH_LAG.set(
            sum(self._log.end(source) - self._reader.position(source) for source in self._reader.assignment())
        )
        took_s = time.monotonic() - began_s
        telemetry.LOOK_SECONDS.set(took_s)
        return took_s

    def _examine_all(self, key: Key, workload: Workload) -> None:
        """Run all monitors on a workload; one that fails does not affect the others, nor other workloads."""
        windows, sides = {ripe: workload.window(ripe=ripe) for ripe in (False, True)}, workload.sides()
        for monitor in self._monitors:
            window = sides if monitor.of_sides else windows[monitor.ripe]
            failure = attempt(partial(self._examine, monitor, key, window))
            if failure is not None:
                telemetry.MONITOR_FAILURES.labels(monitor=monitor.name).inc()
                logger.error(
                    "monitor %s of workload %s of %s: %s",
                    monitor.name,
                    key[1],
                    key[0],
                    words_of(failure),
                    exc_info=failure,
                )

    def _examine(self, monitor: Monitor, key: Key, window: Window) -> None:
        self._alarms.judge(monitor, (monitor.name, *key), monitor.examine(window), window)

    def _save(self) -> None:
        """Save references as far as they have grown; small ones can be filled from the log again."""
        grown = [(key, workload) for key, workload in self._workloads.items() if workload.is_unsaved]
        if not grown:
            return
        with self._store.work() as work:
            work.references.put([(*key, workload.reference()) for key, workload in grown])
        for _, workload in grown:
            workload.mark_saved()
