"""What the learners of all policies use together."""

from dataclasses import dataclass

from core.ports import Blobs, Clock, EventLog, Store, TopicPartition, Weights
from core.records.handling import Culprits
from core.settings import LearnerSettings
from learner.policies.traces import VersionTraces
from learner.relearning.exclusions import Orders
from learner.sequences.kept_out import KeptOut
from learner.sequences.masks import MasksOfTurns
from learner.updates.states import States


@dataclass(frozen=True)
class Means:
    log: EventLog
    store: Store
    weights: Weights
    blobs: Blobs
    settings: LearnerSettings
    clock: Clock
    states: States
    kept_out: KeptOut
    masks: MasksOfTurns
    orders: Orders
    culprits: Culprits
    tokenizer_digest: str | None
    record_attempts: int
    traces: VersionTraces
    begins: dict[TopicPartition, int]
    """Where a learner begins to read that has no journal yet."""
