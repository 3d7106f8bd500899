"""What is settled of a plan once it is known of which session its turns are."""

import msgspec

from api.access.context import Context
from api.turns.turn import TurnPlan
from core.operations.consents import ALL


def settled(context: Context, plan: TurnPlan) -> TurnPlan:
    """Return the plan as narrowed by the words of its user and on its session.

    Its answers get back values of the request, and of its session before."""
    allowed = context.consents.of(plan.intake.identity.namespace, plan.intake.user_id, plan.place.session_id)
    if allowed != ALL:
        intake = plan.intake
        intake = msgspec.structs.replace(
            intake, learn=intake.learn and allowed.learn, store=intake.store and allowed.store
        )
        plan = msgspec.structs.replace(plan, intake=intake)
    redaction = plan.redaction
    if redaction is None:
        return plan
    namespace, session_id = plan.intake.identity.namespace, plan.place.session_id
    values = redaction.values
    if context.redactors.restores(namespace):
        values = context.values.of(namespace, session_id) | values
        plan = msgspec.structs.replace(plan, values=values)
    context.values.put(namespace, session_id, redaction.values)
    return plan
