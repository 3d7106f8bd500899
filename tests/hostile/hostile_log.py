"""Well-formed events that no client of the project would make, as they are in the log of an attacked service."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import product

import made_events
import msgspec
from hostile_values import ARGUMENTS, SCHEMAS

from core.events import Completion, Event, Outcome, ToolCall
from core.ids import Namespace, OutcomeId, SessionId, new_session_id

NAMESPACE = Namespace("strangers")
_FAR = timedelta(days=365 * 50)


def events() -> Iterator[Event]:
    """Yield a turn with each schema and arguments, then turns and outcomes with odd ids, texts and numbers."""
    for (name, schema), arguments in product(SCHEMAS.items(), ARGUMENTS.values()):
        turn = _turn(
            text=name, tools=(_tool(schema),), tool_calls=(ToolCall(id="c", name="f", arguments=arguments, index=0),)
        )
        yield from (turn, _accepted(turn))
    for turn in _odd_turns():
        yield from (turn, _accepted(turn))
        yield from _odd_outcomes(turn)


def _odd_turns() -> Iterator[Completion]:
    words = ("a" * 200_000, "tests pass " * 5_000, "\0" * 1_000, "\u202e" * 1_000, "é" * 50_000)
    yield from (_turn(text=text, messages=({"role": "user", "content": text},)) for text in words)
    itself = _turn()
    yield msgspec.structs.replace(itself, parent_id=itself.inference_id)
    yield _turn(parent_id=made_events.completion().inference_id)
    yield _turn(turn_index=-1)
    yield _turn(turn_index=2**31 - 1)
    yield _turn(received_at=datetime.now(UTC) + _FAR)
    yield _turn(received_at=datetime.now(UTC) - _FAR)
    yield _turn(messages=())
    yield _turn(messages=({"role": "nobody", "content": None}, {"role": "tool"}))
    yield _turn(messages=({"role": "user", "content": [{"type": "text", "text": "x"}] * 1_000},))
    yield _turn(tools=({}, {"type": "function"}, {"function": {"name": "f", "parameters": {}}}))
    yield _turn(token_ids=(), logprobs=(), policy_versions=())
    yield _turn(workload="x" * 60, tags={f"t{number}": "v" for number in range(1_000)})


def _odd_outcomes(turn: Completion) -> Iterator[Outcome]:
    said = made_events.outcome(turn, received_at=datetime.now(UTC))
    yield msgspec.structs.replace(said, name="x" * 1_000)
    yield msgspec.structs.replace(said, name="comment", value="é" * 50_000)
    yield msgspec.structs.replace(said, value=1e300)
    yield msgspec.structs.replace(said, value=-1e300)
    yield msgspec.structs.replace(said, supersedes=said.outcome_id)
    yield msgspec.structs.replace(said, outcome_id=OutcomeId("x" * 500), supersedes=OutcomeId("nobody's"))
    yield msgspec.structs.replace(said, observed_at=datetime.now(UTC) - _FAR)
    yield msgspec.structs.replace(said, inference_id=made_events.completion().inference_id)
    yield msgspec.structs.replace(said, inference_id=None, session_id=SessionId("x" * 500))
    yield msgspec.structs.replace(said, name="survived_1d", value=True)


def _turn(**changes: object) -> Completion:
    made = made_events.completion(new_session_id(), namespace=NAMESPACE, received_at=datetime.now(UTC))
    return msgspec.structs.replace(made, **changes)


def _accepted(turn: Completion) -> Outcome:
    return made_events.outcome(turn, received_at=datetime.now(UTC))


def _tool(schema: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": "f", "parameters": schema}}
