"""The learner's figures, shown where people look: it trains in a process of its own and says what it did in each
policy version, from which the service's metrics are set."""

import logging
import threading
from collections.abc import Set
from functools import partial

from core import telemetry
from core.errors import LogUnavailable
from core.events import PolicyVersion, Topic
from core.ids import Version
from core.ports import EventLog
from core.records.handling import attempt, words_of
from learner.timing import SECONDS
from learner.versions.manifest import TRAINED, UNTRAINED
from serving.releases import LoopTimer

_MAX_RECORDS = 64
_RETRY_S = 0.5
_DROPPED = "dropped_"
logger = logging.getLogger(__name__)


class PolicyObserver:
    """A stage: reads onward.policies from the beginning, so that counters survive a restart."""

    def __init__(self, log: EventLog, timer: LoopTimer) -> None:
        self._timer = timer
        self._reader = log.reader([Topic.POLICIES])
        self._closing = threading.Event()
        self._shown: set[str] = set()
        self._seen: set[Version] = set()  # a restarted learner says its newest version again

    def step(self, timeout_s: float) -> int:
        """Waits while the log is away. Raises NewerSchema."""
        try:
            records = self._reader.poll(_MAX_RECORDS, timeout_s)
        except LogUnavailable as error:
            logger.warning("the observer waits: %s", error)
            self._closing.wait(_RETRY_S)
            return 0
        for record in records:
            if isinstance(record.event, PolicyVersion) and record.event.version not in self._seen:
                self._seen.add(record.event.version)
                failure = attempt(partial(self._show, record.event))
                if failure is not None:
                    logger.error("version %d is not shown: %s", record.event.version, words_of(failure))
        self._timer.publish_quantiles()
        return len(records)

    def _show(self, policy: PolicyVersion) -> None:
        self._shown = observe(policy, self._shown)
        self._timer.published(policy)

    def close(self) -> None:
        self._closing.set()
        self._reader.close()


def observe(policy: PolicyVersion, shown: Set[str] = frozenset()) -> set[str]:
    """`shown`: figures of the version before. Returns those of this one."""
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
