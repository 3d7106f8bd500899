"""The learner's figures, shown where people look: it trains in a process of its own and says what it did in each
policy version, from which the service's metrics are set."""

from core import telemetry
from core.events import PolicyVersion, Topic
from core.ports import EventLog

_MAX_RECORDS = 64


class PolicyObserver:
    """A stage: reads onward.policies from the beginning, so that counters survive a restart."""

    def __init__(self, log: EventLog) -> None:
        self._consumer = log.consumer("observer", [Topic.POLICIES])
        for source in self._consumer.assignment():
            self._consumer.seek(source, log.earliest(source))

    def step(self, timeout_s: float) -> int:
        records = self._consumer.poll(_MAX_RECORDS, timeout_s)
        for record in records:
            if isinstance(record.event, PolicyVersion):
                observe(record.event)
        return len(records)

    def close(self) -> None:
        self._consumer.close()


def observe(policy: PolicyVersion) -> None:
    telemetry.UPDATES.inc(policy.updates)
    telemetry.LEARNED_TURNS.labels(kind="first").inc(policy.turns)
    for figure, value in policy.metrics.items():
        telemetry.LEARNER.labels(figure=figure).set(value)
