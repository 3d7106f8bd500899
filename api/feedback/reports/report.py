"""What editors and agents report of their users: each report is joined to its turn and recorded, or counted."""

import hashlib
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


async def take_report(context: Context, identity: Identity, report: Report, *, admitted: bool = False) -> str | None:
    """Join the report to its turn and record it; return None, or the reason why it became no outcome.

    `admitted`: it was counted against the limits before. Sent again, it counts once. Raises TooManyRequests and
    Unavailable, after which it may be sent again. The caller counts the reason (`count_unjoined`) once it is sure that
    it will not ask for that."""
    if await is_known(context.services, identity.namespace, _id_of(identity, report)):
        return None
    if not admitted:
        await admit(context.services.live_state, identity)
    try:
        by = await _record(context, identity, report)
    except Unjoined as unjoined:
        return unjoined.reason
    except Conflict:
        return "conflict"
    except RateLimited:
        raise
    except RequestError as error:
        return error.code or "refused"
    JOINED_EVENTS.labels(report.source, by).inc()
    return None


def count_unjoined(source: str, reason: str) -> None:
    UNJOINED_EVENTS.labels(source, reason).inc()


async def _record(context: Context, identity: Identity, report: Report) -> str:
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
    said = "\0".join((identity.user or "", report.source, report.metric, report.digest))
    return OutcomeId(str(uuid.uuid5(_REPORTS, said)))
