"""Rewards from which no batch can be made: found turn by turn, and put among the dead letters."""

import logging
from datetime import timedelta
from typing import Final

from core.events import Reward, Topic
from core.ports import EventLog, LogReader, Record, TopicPartition
from core.records.handling import Culprits, words_of
from learner.sequences.joining import merge
from learner.sequences.masks import MasksOfTurns
from learner.sequences.scored import ScoredTurn
from learner.sequences.tensors import micro_batches

_SLACK: Final = timedelta(minutes=1)  # between the clocks of machines
_POLL_RECORDS: Final = 1024
_POLL_S: Final = 1.0
logger = logging.getLogger(__name__)


def try_to_pack(scored: ScoredTurn, masks: MasksOfTurns | None = None) -> None:
    """Pack the turn; raise what an update with this turn would raise."""
    micro_batches(merge([scored]), [scored], 1, "cpu", masks=masks)


def put_reward(culprits: Culprits, log: EventLog, reward: Reward, failure: Exception) -> None:
    """Put the reward's record among the culprits. Raises LogUnavailable, StoreUnavailable: try again then."""
    record = record_of(log, reward)
    if record is None:  # too old: the store has it, and `dropped_turns` counts it
        logger.error("the reward of %s cannot be learned from: %s", reward.inference_id, words_of(failure))
    else:
        culprits.put(record, failure)


def record_of(log: EventLog, reward: Reward) -> Record | None:
    """Return the reward's record; None when the log no longer has it. Raises LogUnavailable."""
    reader = log.reader([Topic.REWARDS])
    try:
        return _find(log, reader, reward)
    finally:
        reader.close()


def _find(log: EventLog, reader: LogReader, reward: Reward) -> Record | None:
    sources = [TopicPartition(Topic.REWARDS, number) for number in range(log.partitions(Topic.REWARDS))]
    ends = {source: log.end(source) for source in sources}
    for source in sources:
        reader.seek(source, max(log.offset_at(source, reward.decided_at - _SLACK), log.earliest(source)))
    while any(reader.position(source) < end for source, end in ends.items()):
        records = reader.poll(_POLL_RECORDS, _POLL_S)
        found = next((record for record in records if record.event == reward), None)
        if found is not None:
            return found
    return None
