"""Feedback that was recorded: what it says, whether it still counts, and how it is withdrawn."""

import uuid

import msgspec

from api.access.context import ApiContext
from api.access.identity import Identity
from api.turns.lookup import look_up, read
from api.turns.session_ids import is_id
from core.errors import Conflict, NotFound
from core.events import Outcome
from core.ids import WITHDRAWAL, OutcomeId
from core.store.work import View

_WITHDRAWALS = uuid.UUID("5f0a8c2e-55a5-4f3e-9a55-1f2a2a9b7c11")  # names the ids of withdrawals (RFC 9562, v5)


async def describe_feedback(context: ApiContext, identity: Identity, outcome_id: OutcomeId) -> dict[str, object]:
    """Return the feedback as `GET /v1/feedback/{feedback_id}` shows it. Raises NotFound, StoreUnavailable."""
    outcome = await _known(context, identity, outcome_id)
    return _described(outcome, await read(context.services, lambda view: last_word(view, outcome)))


def last_word(view: View, outcome: Outcome) -> Outcome | None:
    """Return what holds instead of an outcome: the withdrawal of anything that it amends, or else its successor.

    Both a withdrawal and an amendment may have been taken at one moment; then no amendment after it counts, either."""
    of = outcome.namespace, outcome.outcome_id
    return view.outcomes.withdrawal_before(*of) or view.outcomes.successor(*of)


async def withdraw_feedback(context: ApiContext, identity: Identity, outcome_id: OutcomeId) -> None:
    """Withdraw the feedback, once. Raises NotFound, Conflict where it was superseded, LogUnavailable."""
    services, namespace = context.services, identity.namespace
    outcome = await _known(context, identity, outcome_id)
    if not identity.may_change(outcome):
        raise _unknown(outcome_id)
    successor = await read(services, lambda view: view.outcomes.successor(namespace, outcome_id))
    if successor is not None and not successor.withdrawn:
        raise Conflict(f"{outcome_id} was superseded by {successor.outcome_id}", code="superseded")
    if successor is None:
        now = services.clock.now()
        withdrawal = msgspec.structs.replace(
            outcome,
            outcome_id=OutcomeId(WITHDRAWAL + str(uuid.uuid5(_WITHDRAWALS, f"{namespace}\0{outcome_id}"))),
            value=None,
            supersedes=outcome_id,
            withdrawn=True,
            evidence=None,
            edits=(),
            key_id=identity.key_id,
            observed_at=now,
            received_at=now,
        )
        await context.background.insist(context.log.record(identity, withdrawal))


async def _known(context: ApiContext, identity: Identity, outcome_id: OutcomeId) -> Outcome:
    """Return the outcome, waiting for the writer as long as feedback does for an inference.

    Raises NotFound, also for what the caller may not see."""
    found = None
    if is_id(outcome_id):
        found = await look_up(context.services, lambda view: view.outcomes.get(identity.namespace, outcome_id))
    if found is None or found[0].withdrawn or not identity.sees(found[0]):
        raise _unknown(outcome_id)
    return found[0]


def _unknown(outcome_id: OutcomeId) -> NotFound:
    return NotFound(f"no feedback {outcome_id}", param="feedback_id", code="unknown_feedback")


def _described(outcome: Outcome, successor: Outcome | None) -> dict[str, object]:
    content = msgspec.to_builtins(outcome)
    status = "recorded" if successor is None else "withdrawn" if successor.withdrawn else "superseded"
    shown = ("inference_id", "session_id", "value", "target_range", "edits", "evidence", "source", "observed_at")
    return {
        "feedback_id": outcome.outcome_id,
        "status": status,
        "successor": None if successor is None or successor.withdrawn else successor.outcome_id,
        "metric_name": outcome.name,
        **{name: content[name] for name in shown},
        "tool_call_id": outcome.target_call and outcome.target_call.tool_call_id,
        "received_at": content["received_at"],
        "supersedes": outcome.supersedes,
        "tags": outcome.tags,
    }
