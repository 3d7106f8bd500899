"""Recently served turns from the log: the facts by which canaries and guards are judged.

They are read from the log, where every turn, reward and alarm is, and not from the store, whose writer may be behind.
While an experiment runs nothing is committed, so that the next controller reads its evidence again."""

import logging
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

import msgspec

from core import telemetry
from core.errors import GroupBusy
from core.events import Alarm, Completion, Purpose, Reward, Topic
from core.ids import InferenceId, PolicyRef
from core.ports import Clock, Consumer, EventLog, Record, TopicPartition
from core.records.handling import attempt, words_of

_GROUP = "releases"
_TOPICS = (Topic.TURNS, Topic.REWARDS, Topic.ALARMS)
_POLL_RECORDS = 512
_JOIN_RETRY_S = 5.0
_UNMATCHED = 100_000
logger = logging.getLogger(__name__)


class ServedTurn(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The part of a `Completion` that judgement needs."""

    inference_id: InferenceId
    unit: str  # the user, or the session where there is none: what an arm is assigned to
    experiment_id: str | None
    arm: str
    arm_assigned: str
    version: PolicyRef | None  # of the first token
    received_at_s: float  # UTC, seconds since 1970
    workload: str
    purpose: Purpose
    finish_reason: str
    invalid_call: bool  # it began a tool call that never became a whole one
    latency_ms: float
    ttft_ms: float | None
    tokens: int
    empty: bool
    over_long: bool  # cut off by the limit
    not_finite: PolicyRef | None = None  # the version that computed no finite numbers for it
    waited_for: bool = True  # False: of low priority, and as slow as others made it


def served_turn(turn: Completion) -> ServedTurn:
    return ServedTurn(
        inference_id=turn.inference_id,
        unit=turn.user_id or turn.session_id,
        experiment_id=turn.experiment_id,
        arm=turn.arm,
        arm_assigned=turn.arm_assigned,
        version=turn.policy_versions[0].version if turn.policy_versions else None,
        received_at_s=turn.received_at.timestamp(),
        workload=turn.workload,
        purpose=turn.purpose,
        finish_reason=turn.finish_reason,
        invalid_call=turn.broken_calls > 0,
        latency_ms=turn.latency_ms,
        ttft_ms=turn.ttft_ms,
        tokens=turn.num_output_tokens,
        empty=_is_empty(turn),
        over_long=turn.finish_reason == "length",
        not_finite=turn.not_finite,
        waited_for=turn.priority == "normal",
    )


def _is_empty(turn: Completion) -> bool:
    said = bool(turn.text.strip()) if turn.unstored is None else turn.num_characters > 0
    return not said and not turn.tool_calls


class Observations:
    """The observations of one thread.

    `on_turn` and `on_reward` are called in the log's order; a reward may come before its turn, and again when it is
    revised."""

    def __init__(
        self,
        log: EventLog,
        clock: Clock,
        on_turn: Callable[[ServedTurn], None],
        on_reward: Callable[[ServedTurn, Reward], None],
    ) -> None:
        self._log, self._clock = log, clock
        self._on_turn, self._on_reward = on_turn, on_reward
        self._consumer: Consumer | None = None
        self._join_at_s = float("-inf")
        self._turns: OrderedDict[InferenceId, ServedTurn] = OrderedDict()
        self._early: OrderedDict[InferenceId, Reward] = OrderedDict()
        self.alarms: dict[str, Alarm] = {}  # open, and not acknowledged

    @property
    def is_open(self) -> bool:
        return self._consumer is not None

    def read(self) -> bool:
        """Take what is new. Whether there may be more now; not while another controller still reads."""
        if self._consumer is None and not self._join():
            return False
        assert self._consumer is not None
        records = self._consumer.poll(_POLL_RECORDS, 0)
        for record in records:
            failure = attempt(partial(self._take, record))
            if failure is not None:  # no evidence, then; who scores and writes it sets it aside
                telemetry.STAGE_FAILED_RECORDS.labels(part=_GROUP).inc()
                logger.error("%s offset %d is no evidence: %s", record.source, record.offset, words_of(failure))
        return len(records) == _POLL_RECORDS

    def _take(self, record: Record) -> None:
        match record.event:
            case Completion() as turn:
                self._take_turn(served_turn(turn))
            case Reward() as reward:
                self._take_reward(reward)
            case Alarm() as alarm:
                self._take_alarm(alarm)

    def commit(self) -> None:
        """Commit what was read: no experiment needs it again."""
        if self._consumer is not None:
            self._consumer.commit({source: self._consumer.position(source) for source in self._consumer.assignment()})

    def forget(self, before_s: float) -> None:
        """Forget turns received before then: their rewards no longer count."""
        while self._turns and next(iter(self._turns.values())).received_at_s < before_s:
            self._turns.popitem(last=False)

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _join(self) -> bool:
        if self._clock.monotonic() < self._join_at_s:
            return False
        try:
            self._consumer = self._log.consumer(_GROUP, _TOPICS, listener=self)
        except GroupBusy as error:
            logger.warning("releases are judged without new turns: %s", error)
            self._join_at_s = self._clock.monotonic() + _JOIN_RETRY_S
            return False
        return True

    def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Note the partitions of the log's group, whose only member is the leading controller."""
        assert self._consumer is not None
        for source in partitions:
            if self._consumer.committed(source) is None:  # nobody judged here before: history is no evidence
                self._consumer.seek(source, self._log.end(source))

    def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Do nothing: what was not committed is read again by the next controller."""

    def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        """Do nothing, as above."""

    def _take_turn(self, turn: ServedTurn) -> None:
        if turn.inference_id in self._turns:
            return  # readers know a turn by its id: the log may hold it twice
        self._turns[turn.inference_id] = turn
        self._on_turn(turn)
        early = self._early.pop(turn.inference_id, None)
        if early is not None:
            self._on_reward(turn, early)

    def _take_reward(self, reward: Reward) -> None:
        turn = self._turns.get(reward.inference_id)
        if turn is not None:
            self._on_reward(turn, reward)
            return
        self._early[reward.inference_id] = reward
        if len(self._early) > _UNMATCHED:
            self._early.popitem(last=False)

    def _take_alarm(self, alarm: Alarm) -> None:
        """One that is acknowledged has been answered, by people."""
        if alarm.state == "opened":
            self.alarms[alarm.alarm_id] = alarm
        else:
            self.alarms.pop(alarm.alarm_id, None)
