"""Turns and outcomes as a fleet of APIs would log them."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from bench.log.embedded_log import TOKENS, turn
from core.events import Completion, Event, Outcome
from core.ids import SessionId, new_group_id, new_inference_id, new_outcome_id, new_session_id

ASKED = (  # one after the other, in each session
    "[repo] write total(prices): the sum of all prices that are positive",
    "Refunds come with a reason now: leave those out whose reason is fraud.",
    "And a test for an empty list, please",
)
LAG = 64  # turns that come before the outcome of one
VOCABULARY = 50_000
_rng = random.Random(0)


def turns(count: int) -> Iterator[Completion]:
    """Yield turns of about 2 KB once encoded, no two alike: they compress as real ones do."""
    before: Completion | None = None
    for _ in range(count):
        if before is None or before.turn_index == len(ASKED) - 1:
            before = one_turn(new_session_id())
        else:
            before = one_turn(before.session_id, before)
        yield before


def one_turn(session_id: SessionId, before: Completion | None = None) -> Completion:
    """Return a turn that continues `before`."""
    index = 0 if before is None else before.turn_index + 1
    past = () if before is None else (*before.messages, {"role": "assistant", "content": before.text})
    return msgspec.structs.replace(
        turn(),
        inference_id=new_inference_id(session_id),
        session_id=session_id,
        group_id=new_group_id(),
        turn_index=index,
        parent_id=None if before is None else before.inference_id,
        messages=(*past, {"role": "user", "content": ASKED[index % len(ASKED)]}),
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
    """Return `count` turns and an outcome of each, some turns later."""
    said = list(turns(count))
    events: list[Event] = []
    for number in range(count + LAG):
        if number < count:
            events.append(said[number])
        if number >= LAG:
            events.append(outcome_of(said[number - LAG]))
    return events
