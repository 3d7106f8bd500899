"""Turns and outcomes as a fleet of APIs would log them."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from bench.embedded_log import TOKENS, turn
from core.events import Completion, Event, Outcome
from core.ids import SessionId, new_group_id, new_inference_id, new_outcome_id, new_session_id

TURNS = 3  # of a session
LAG = 64  # turns that come before the outcome of one
VOCABULARY = 50_000
_rng = random.Random(0)


def turns(count: int) -> Iterator[Completion]:
    """Each about 2 KB once encoded, no two alike: they compress as real ones do."""
    session_id = new_session_id()
    for number in range(count):
        if number % TURNS == 0:
            session_id = new_session_id()
        yield one_turn(session_id, number % TURNS)


def one_turn(session_id: SessionId, index: int = 0) -> Completion:
    return msgspec.structs.replace(
        turn(),
        inference_id=new_inference_id(session_id),
        session_id=session_id,
        group_id=new_group_id(),
        turn_index=index,
        prompt_token_ids=tuple(_rng.choices(range(VOCABULARY), k=TOKENS)),
        token_ids=tuple(_rng.choices(range(VOCABULARY), k=TOKENS)),
        logprobs=tuple(-_rng.expovariate(2.0) for _ in range(TOKENS)),
    )


def outcome_of(said: Completion) -> Outcome:
    now = datetime.now(UTC)
    return Outcome(
        outcome_id=new_outcome_id(),
        inference_id=said.inference_id,
        session_id=None,
        namespace=said.namespace,
        name="accepted",
        value=_rng.random() < 0.5,
        observed_at=now,
        received_at=now,
    )


def turns_and_outcomes(count: int) -> list[Event]:
    """`count` turns and an outcome of each, some turns later."""
    said = list(turns(count))
    events: list[Event] = []
    for number in range(count + LAG):
        if number < count:
            events.append(said[number])
        if number >= LAG:
            events.append(outcome_of(said[number - LAG]))
    return events
