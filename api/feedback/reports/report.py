"""What editors and agents report of their users: each report is joined to its turn and recorded, or counted."""

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from api.access.context import ApiContext
from api.access.identity import Identity
from api.access.quotas.limits import admit
from api.feedback.body import FeedbackBody, check_time
from api.feedback.recording import known_of, record_feedback
from api.feedback.reports.joining import Clues, Joined, Joining, Unjoined
from api.feedback.side_by_side import side_by_side
from api.feedback.values import check_level, check_value
from core.errors import Conflict, RateLimited, RequestError, Unavailable
from core.ids import Namespace, OutcomeId
from core.telemetry import JOINED_EVENTS, UNJOINED_EVENTS

LONGEST_EVIDENCE = 16_384
"""The most characters of a report's evidence: all events of an export may have the same."""
_HIDDEN = "unknown"
_OF_TURNS = frozenset(
    f"unknown_{what}" for what in ("conversation", "id", "inference", "session", "text", "tool_call")
) | {"ambiguous", "no_turn", "too_many_turns"}
_REPORTS = uuid.UUID("c9a7a2f4-6b1e-4f53-9d0e-0c7f6a1b5d21")  # names the ids of reports (RFC 9562, v5)


class ReportedOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """An outcome that an event stands for, before anybody knows of which turn.

    `digest`: what tells this event from all others, and is the same when it is sent again (`digest_of`)."""

    source: str
    metric: str
    value: bool | float | str
    clues: Clues
    digest: str
    evidence: str | None = None
    said_by: Literal["client", "user", "environment", "judge"] = "user"
    tags: Mapping[str, str] = {}


def digest_of(said: Any) -> str:
    """Return a digest of what an event says. It takes time in proportion: compute it on a thread."""
    text = json.dumps(said, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


async def take_reports(
    context: ApiContext, identity: Identity, reports: Sequence[ReportedOutcome], *, admitted: bool = False
) -> list[str | None]:
    """Join one request's reports to their turns and record them; return for each None, or why it became no outcome.

    What becomes an outcome counts against the limits, unless `admitted` says that it did before; sent again, it counts
    no more. What becomes none does not count: it would use up the limit each time that it comes again, and keep out for
    ever what stands behind it. Raises TooManyRequests and Unavailable, after which all may be sent again. The caller
    counts the reasons (`count_unjoined`) once it is sure that it will not ask for that."""
    ids = [_id_of(identity, report) for report in reports]
    known = await known_of(context.services, identity.namespace, set(ids))
    new = [report for report, own in zip(reports, ids, strict=True) if own not in known]
    joining = Joining(context, identity, [report.clues for report in new])
    failed: list[RateLimited | Unavailable] = []

    async def take(place: int) -> str | None:
        if failed or ids[place] in known:  # after a failure it all comes again
            return None
        try:
            reason = await _take(context, identity, joining, reports[place], ids[place], admitted=admitted)
        except (RateLimited, Unavailable) as error:
            failed.append(error)
            return None
        if reason is None:
            known.add(ids[place])
        return reason

    subjects = [(each.clues.answers, each.clues.tool_call, each.clues.conversation) for each in reports]
    reasons = await side_by_side(identity.caller, subjects, take)
    if failed:
        raise failed[0]
    return reasons


async def _take(
    context: ApiContext,
    identity: Identity,
    joining: Joining,
    report: ReportedOutcome,
    own: OutcomeId,
    *,
    admitted: bool,
) -> str | None:
    """Take one report, and return why it became no outcome. Raises TooManyRequests and Unavailable."""
    try:
        # Before the turn is sought: what is refused only where there is one would tell that there is.
        check_value(context.services.spec, report.metric, report.value)
        check_level(context.services.spec, report.metric, of_session=report.clues.about_session)
        check_time(context, report.clues.at)
        joined = await joining.join(report.clues)
        if not admitted:
            await admit(context.services.live_state, identity)
        await record_feedback(context, identity, _body(report, joined, own))
    except Unjoined as unjoined:
        return unjoined.reason
    except Conflict:
        return "conflict"
    except RateLimited:
        raise
    except RequestError as error:
        return error.code
    JOINED_EVENTS.labels(report.source, joined.by).inc()
    return None


def _body(report: ReportedOutcome, joined: Joined, own: OutcomeId) -> FeedbackBody:
    return FeedbackBody(
        feedback_id=own,
        inference_id=joined.inference_id,
        session_id=joined.session_id,
        metric_name=report.metric,
        value=report.value,
        tool_call_id=report.clues.tool_call if joined.by == "tool_call" else None,
        observed_at=report.clues.at,
        evidence=report.evidence and report.evidence[:LONGEST_EVIDENCE],
        source=report.said_by,
        tags={"reported_by": report.source, **report.tags},
    )


def count_unjoined(namespace: Namespace, source: str, reason: str, count: int = 1) -> None:
    UNJOINED_EVENTS.labels(namespace, source, reason).inc(count)


def told(identity: Identity, reason: str) -> str:
    """Return the reason as its client is told it: of a key that speaks for one user, not whether others' turns fit."""
    return _HIDDEN if identity.user is not None and reason in _OF_TURNS else reason


def _id_of(identity: Identity, report: ReportedOutcome) -> OutcomeId:
    """Return the id, which tells apart what different users say, so that none learns of what another said."""
    said = "\0".join((identity.user or "", report.source, report.metric, report.digest))
    return OutcomeId(str(uuid.uuid5(_REPORTS, said)))
