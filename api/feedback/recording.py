"""Records an outcome: checks it against what is known, and appends it to the log once, however often it is sent."""

from collections.abc import Collection

import msgspec

from api.access.context import ApiContext
from api.access.identity import Identity
from api.access.quotas.limits import admit_user
from api.access.services import ApiServices
from api.feedback.body import FeedbackBody, check_body, outcome_of, said_by, subject_of
from api.feedback.private.redacted import redact_feedback
from api.feedback.targets import NamedTurn, Subject, check_is_own, check_superseded, check_target, find_subject
from api.turns.answer_ids import inference_in
from api.turns.lookup import look_up, read
from core.errors import Conflict, LogUnavailable, StoreUnavailable, Unfinished
from core.events import Outcome
from core.ids import Namespace, OutcomeId
from core.store.outcomes import outcome_digest
from core.telemetry import OUTCOMES
from core.tracing import trace


class Recorded(msgspec.Struct, frozen=True):
    """The outcome is in the log.

    `pending`: it is not known yet whether what it is about exists, whole or the part that it names, or whether its id
    was given to other content."""

    outcome_id: OutcomeId
    pending: bool = False


async def record_feedback(context: ApiContext, identity: Identity, body: FeedbackBody) -> Recorded:
    """Record what somebody made of a turn or a session, from wherever it was told.

    Raises RequestError naming the field at fault, TooManyRequests, LogUnavailable."""
    if body.inference_id is not None:
        body.inference_id = inference_in(body.inference_id)
    check_body(context, body)
    inference_id, session_id = subject_of(body)
    named = NamedTurn(context.services, identity.namespace, inference_id)
    await context.quotas.admit_record(identity, context.keys.user_of(identity, body.user))
    await _admit_user(context, identity, body, named)
    await check_is_own(context.services, identity, named, session_id)
    await redact_feedback(context, identity, body, named)
    outcome = outcome_of(context, identity, body, await said_by(context, identity, body, named))
    own_id = body.feedback_id is not None
    return await context.background.insist(_record(context, identity, outcome, named, own_id=own_id))


async def _admit_user(context: ApiContext, identity: Identity, body: FeedbackBody, named: NamedTurn) -> None:
    """Count the feedback against its user's limit. Raises TooManyRequests."""
    services, namespace = context.services, identity.namespace
    per_minute = services.settings.feedback.user_per_minute
    if per_minute is None:
        return
    user: str | None = context.keys.user_of(identity, body.user)
    if user is None and body.inference_id is not None:
        user = await named.user()
    await admit_user(services.live_state, namespace, user or body.session_id or str(body.inference_id), per_minute)


async def _record(
    context: ApiContext, identity: Identity, outcome: Outcome, named: NamedTurn, *, own_id: bool
) -> Recorded:
    """Check the outcome against what is known, then append it; it is durable when this returns.

    `own_id` says that its id is the client's."""
    services, namespace = context.services, outcome.namespace
    digest = outcome_digest(outcome)
    may_supersede = outcome.supersedes is None or "admin" in identity.scopes
    try:
        known = await read(services, lambda view: view.outcomes.get(namespace, outcome.outcome_id)) if own_id else None
        if known is not None:
            return _answer(outcome, known[1], digest)
        await check_superseded(services, identity, outcome)
        may_supersede = True
        subject: Subject = await find_subject(services, outcome, named)
        await check_target(outcome, subject, named)
        answer = Recorded(outcome.outcome_id)
    except (StoreUnavailable, Unfinished):
        if not may_supersede:  # nobody can tell whose feedback it would replace
            raise
        # Nothing is lost by accepting it unchecked: feedback on an unknown inference is never joined to a turn.
        answer = Recorded(outcome.outcome_id, pending=True)
    if own_id:
        answer = await _append_once(context, identity, outcome, digest, answer)
    else:
        await context.log.record(identity, outcome)
    OUTCOMES.labels(outcome.name).inc()
    if outcome.inference_id is not None:
        about = {"onward.outcome": outcome.name, "onward.source": outcome.source}
        ended_at = services.clock.now()
        trace(outcome.inference_id, "outcome", outcome.received_at, ended_at, outcome.outcome_id, about=about)
    return answer


async def known_of(services: ApiServices, namespace: Namespace, outcome_ids: Collection[OutcomeId]) -> set[OutcomeId]:
    """Return those of the outcomes that are in the log, by this replica or another. Raises StoreUnavailable.

    A claim alone does not say so: whoever made it may have died before the append, or may still fail."""
    live_state = services.live_state
    known = {each for each in outcome_ids if await live_state.claim_of(namespace, _log_key(each)) is not None}
    rest = set(outcome_ids) - known
    return known | await read(services, lambda view: view.outcomes.which_of(namespace, rest)) if rest else known


def _claim_key(outcome_id: OutcomeId) -> str:
    return f"feedback:{outcome_id}"


def _log_key(outcome_id: OutcomeId) -> str:
    """Return the key of the mark that says that the outcome is in the log."""
    return f"recorded:{outcome_id}"


async def _append_once(
    context: ApiContext, identity: Identity, outcome: Outcome, digest: str, answer: Recorded
) -> Recorded:
    """Append the outcome unless the same id has other content, even at the same moment and at another replica.

    Live state knows, and may forget between any two lines here: so it is asked again afterwards, and where it does
    not know, the store does once the writer has caught up. The first in the log is the one that counts."""
    services = context.services
    claim = outcome.namespace, _claim_key(outcome.outcome_id), digest
    if await services.live_state.claim(*claim) not in (digest, None):
        raise _other_content(outcome.outcome_id)
    try:
        await context.log.record(identity, outcome)
    except LogUnavailable:
        await services.live_state.release_claim(*claim)
        raise
    await services.live_state.claim(outcome.namespace, _log_key(outcome.outcome_id), digest)
    if await services.live_state.claim(*claim) == digest:
        return answer
    try:
        known = await look_up(services, lambda view: view.outcomes.get(outcome.namespace, outcome.outcome_id))
    except StoreUnavailable:
        known = None
    return Recorded(outcome.outcome_id, pending=True) if known is None else _answer(outcome, known[1], digest)


def _answer(outcome: Outcome, known_digest: str, digest: str) -> Recorded:
    """Return the answer for an outcome that is known, or raise Conflict if its content differs."""
    if known_digest != digest:
        raise _other_content(outcome.outcome_id)
    return Recorded(outcome.outcome_id)


def _other_content(outcome_id: OutcomeId) -> Conflict:
    return Conflict(
        f"feedback_id: {outcome_id} is known with other content; amend with a new id that supersedes it",
        param="feedback_id",
        code="idempotency_conflict",
    )
