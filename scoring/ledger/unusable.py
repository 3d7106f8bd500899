"""Outcomes that become dead letters, whole and with the reason: unusable ones, and those whose turn never came.

`onward dead-letters` shows them, and brings one back once the spec, or the log, has what it lacked."""

from collections.abc import Container, Sequence
from datetime import datetime

from core.codec import encode
from core.events import DeadLetter, Outcome, Topic
from core.ids import inference_routing
from core.operations.ledger import Heard
from core.ports import EventLog, Store, TopicPartition
from core.records.handling import set_aside
from core.store.work import Work


def letter_of(heard: Heard, partition: int, reason: str) -> DeadLetter:
    return DeadLetter(
        topic=Topic.TURNS,
        partition=partition,
        offset=heard.offset,
        reason=reason,
        raw=encode(heard.outcome),
        at=heard.outcome.received_at,
    )


def overdue(
    store: Store, log: EventLog, ended: Container[TopicPartition], oldest: datetime
) -> list[tuple[TopicPartition, Heard]]:
    """Return the outcomes that arrived before `oldest` and still wait for their turn.

    Their partition, one of `ended`, is read to its end. Raises StoreUnavailable, LogUnavailable."""
    with store.look() as view:
        waiting = [heard for heard in view.ledger.waiting_outcomes() if heard.outcome.received_at < oldest]
    sources = [(_source(heard.outcome, log), heard) for heard in waiting]
    return [(source, heard) for source, heard in sources if source in ended]


def give_up(work: Work, log: EventLog, waiting: Sequence[tuple[TopicPartition, Heard]]) -> None:
    """Make waiting outcomes dead letters. Raises LogUnavailable: then the transaction must not be committed."""
    set_aside(work, log, [letter_of(heard, source.partition, _why(heard.outcome)) for source, heard in waiting])
    work.ledger.forget_outcomes([heard.outcome for _, heard in waiting])


def _why(outcome: Outcome) -> str:
    return f"its turn {outcome.inference_id} never came; it waited since {outcome.received_at:%Y-%m-%d %H:%M:%S} UTC"


def _source(outcome: Outcome, log: EventLog) -> TopicPartition:
    assert outcome.inference_id is not None
    return TopicPartition(Topic.TURNS, inference_routing(outcome.inference_id) % log.partitions(Topic.TURNS))
