"""Turns and outcomes as the API would log them, in the amounts and orders that faults need."""

from collections.abc import Sequence
from datetime import UTC, datetime

import made_events
import msgspec
from fault_world import World
from service_tree import wait_for

from core.events import Completion, Event, Outcome, Topic
from core.ids import InferenceId, SessionId, new_inference_id, new_session_id

_AT_ONCE = 2000


def real_turn(world: World, inference_id: InferenceId) -> Completion:
    """Return a turn that was really sampled, once it is stored: its reward may be there before."""

    def stored() -> Completion | None:
        with world.foundation.store.look() as view:
            return view.turns.get_many([inference_id]).get(inference_id)

    found: Completion = wait_for(stored, 120, "a turn that was stored")
    return found


def another(turn: Completion, *, learns: bool, session_id: SessionId | None = None) -> Completion:
    """Return a copy under new ids; one that does not learn is rewarded all the same."""
    session_id = session_id or new_session_id()
    own = {"inference_id": new_inference_id(session_id), "session_id": session_id, "parent_id": None}
    silent = {} if learns else {"trainable": False, "untrainable_reasons": ("made",)}
    return msgspec.structs.replace(turn, received_at=datetime.now(UTC), transcript_digest=None, **own, **silent)


def judgement(turn: Completion) -> Outcome:
    now = datetime.now(UTC)
    return made_events.outcome(turn, observed_at=now, received_at=now)


def append(world: World, events: Sequence[Event]) -> None:
    """Append the events in this order.

    Raises LogUnavailable."""
    for start in range(0, len(events), _AT_ONCE):
        world.foundation.log.append_blocking(Topic.TURNS, events[start : start + _AT_ONCE])
