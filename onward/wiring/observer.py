"""The observer, which sets the service's metrics from the learner's figures.

The learner trains in a process of its own, and each policy version carries what it did."""

import logging
from collections.abc import Callable, Sequence, Set
from functools import partial

from core import telemetry
from core.clock import SystemClock
from core.events import PolicyVersion, Topic
from core.ids import PolicyRef
from core.ports import Clock, EventLog, Record, Store
from core.records.handling import attempt, words_of
from core.stages.sources import PlainRecords
from core.stages.stage import Stage
from learner.timing import SECONDS
from learner.versions.manifest import TRAINED, UNTRAINED
from serving.releases import LoopTimer

_SHOWN_EVERY_S = 1.0  # quantiles of what a timer measured
_DROPPED = "dropped_"
logger = logging.getLogger(__name__)


class PolicyObserver(Stage):
    """A stage that reads onward.policies from the beginning, so that counters survive a restart.

    It also tells the timer while releases of `cluster` are held."""

    def __init__(self, log: EventLog, timer: LoopTimer, store: Store, cluster: str, clock: Clock | None = None) -> None:
        super().__init__()
        self._timer, self._store, self._cluster = timer, store, cluster
        self._clock = clock or SystemClock()
        self.on_version: Callable[[], None] | None = None  # called when versions were published
        self.source = PlainRecords(log.reader([Topic.POLICIES]))
        self._shown: set[str] = set()
        self._seen: set[PolicyRef] = set()  # a restarted learner says its newest version again

    def handle(self, records: Sequence[Record]) -> None:
        if self.on_version is not None:
            self.on_version()
        for record in records:
            if isinstance(record.event, PolicyVersion) and record.event.version not in self._seen:
                self._seen.add(record.event.version)
                failure = attempt(partial(self._show, record.event))
                if failure is not None:
                    logger.error("version %s is not shown: %s", record.event.version, words_of(failure))

    def tick(self) -> float:
        with self._store.look() as view:
            switches = view.fleet.switches(self._cluster)
            states = view.policies.states_of(switches.held)
            holds_alarm = bool(view.alarms.holding_releases())
        if switches.pinned is not None or holds_alarm or "canary" in states.values():
            self._timer.held_until(self._clock.now())  # behind a canary that is held all others wait
        for version, state in states.items():
            if state == "candidate":  # the others go on
                self._timer.held(version)
        self._timer.publish_quantiles()
        return _SHOWN_EVERY_S

    def _show(self, policy: PolicyVersion) -> None:
        self._shown = observe(policy, self._shown)
        self._timer.published(policy)


def observe(policy: PolicyVersion, shown: Set[str] = frozenset()) -> set[str]:
    """Set the metrics from a version's figures, and return the names of those that it has.

    `shown` are the names that the version before had."""
    now: dict[str, float] = {}
    telemetry.UPDATES.inc(policy.updates)
    late = policy.metrics.get("late_turns", 0.0)
    telemetry.LEARNED_TURNS.labels(kind="first").inc(policy.turns - late)
    telemetry.LEARNED_TURNS.labels(kind="late").inc(late)
    telemetry.LEARNED_TOKENS.inc(policy.metrics.get("tokens", 0.0))
    for figure, value in policy.metrics.items():
        if figure.startswith(_DROPPED):
            telemetry.DROPPED_TURNS.labels(reason=figure.removeprefix(_DROPPED)).inc(value)
        elif figure.startswith(SECONDS):
            telemetry.LEARNER_SECONDS.labels(doing=figure.removeprefix(SECONDS)).inc(value)
        elif figure.startswith(TRAINED):
            telemetry.REWARD_MASS_AGE.labels(age=figure.removeprefix(TRAINED)).inc(value)
        elif figure.startswith(UNTRAINED):
            telemetry.UNTRAINED_MASS_AGE.labels(age=figure.removeprefix(UNTRAINED)).inc(value)
        else:
            now[figure] = value
    for gone in shown - now.keys():  # this update cannot say it, and an older one's would be taken for its
        telemetry.LEARNER.remove(gone)
    for figure, value in now.items():
        telemetry.LEARNER.labels(figure=figure).set(value)
    return set(now)
