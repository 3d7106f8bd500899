"""Completes a turn's plan once its session is known."""

import msgspec

from api.access.context import ApiContext
from api.turns.turn import TurnPlan


def settled(context: ApiContext, plan: TurnPlan) -> TurnPlan:
    """Return the plan with the values that its answers get back: those of its request, and of its session before."""
    redaction = plan.redaction
    if redaction is None:
        return plan
    namespace, session_id = plan.intake.identity.namespace, plan.place.session_id
    context.values.put(namespace, session_id, redaction.values)
    if not context.redactors.restores(namespace):
        return plan
    values = context.values.of(namespace, session_id) | redaction.values
    return msgspec.structs.replace(plan, values=values)
