"""What editors and agents report of their users: each report is joined to its turn and recorded, or counted."""

import json
import uuid
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from api.access.context import Context
from api.access.identity import Identity
from api.access.limits import admit
from api.feedback.body import FeedbackBody
from api.feedback.recording import is_known, record_feedback
from api.feedback.reports.joining import Clues, Unjoined, join
from core.errors import Conflict, RateLimited, RequestError
from core.ids import OutcomeId
from core.telemetry import JOINED_EVENTS, UNJOINED_EVENTS

_REPORTS = uuid.UUID("c9a7a2f4-6b1e-4f53-9d0e-0c7f6a1b5d21")  # names the ids of reports (RFC 9562, v5)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """An outcome that an event stands for, before anybody knows of which turn.

    `identity`: what tells this event from all others, and is the same when it is sent again."""

    source: str
    metric: str
    value: bool | float | str
    clues: Clues
    identity: Any
    evidence: str | None = None
    said_by: Literal["client", "user", "environment", "judge"] = "user"
    tags: Mapping[str, str] = {}


async def take_report(context: Context, identity: Identity, report: Report) -> str | None:
    """Join the report to its turn and record it; return None, or the reason why it became no outcome.

    Sent again, it counts once. Raises Unavailable, after which it may be sent again."""
    if await is_known(context.services, identity.namespace, _id_of(identity, report)):
        return None
    try:
        by = await _record(context, identity, report)
    except Unjoined as unjoined:
        return _unjoined(report, unjoined.reason)
    except Conflict:
        return _unjoined(report, "conflict")
    except RateLimited:
        return _unjoined(report, "rate_limited")
    except RequestError as error:
        return _unjoined(report, error.code or "refused")
    JOINED_EVENTS.labels(report.source, by).inc()
    return None


async def _record(context: Context, identity: Identity, report: Report) -> str:
    await admit(context.services.live_state, identity)
    joined = await join(context, identity, report.clues)
    body = FeedbackBody(
        feedback_id=_id_of(identity, report),
        inference_id=joined.inference_id,
        session_id=joined.session_id,
        metric_name=report.metric,
        value=report.value,
        tool_call_id=report.clues.tool_call if joined.by == "tool_call" else None,
        observed_at=report.clues.at,
        evidence=report.evidence,
        source=report.said_by,
        tags={"reported_by": report.source, **report.tags},
    )
    await record_feedback(context, identity, body)
    return joined.by


def _id_of(identity: Identity, report: Report) -> OutcomeId:
    """Return the id, which tells apart what different users say, so that none learns of what another said."""
    said = json.dumps([identity.user, report.source, report.metric, report.identity], sort_keys=True, default=str)
    return OutcomeId(str(uuid.uuid5(_REPORTS, said)))


def _unjoined(report: Report, reason: str) -> str:
    UNJOINED_EVENTS.labels(report.source, reason).inc()
    return reason
