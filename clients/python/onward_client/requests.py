"""The requests that are queued: feedback, and its withdrawal. Each may be sent any number of times and counts once."""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Literal
from urllib.parse import quote

from onward_client.answers import inference_id_of

_WITHDRAWAL = "withdrawal:"
Source = Literal["client", "user", "environment", "judge"]


@dataclass(frozen=True)
class Queued:
    """A request as it lies in the queue; `body` is JSON, or empty."""

    request_id: str
    method: str
    path: str
    body: str

    def ids(self) -> set[str]:
        """Return its own id, and that of the feedback that it withdraws or supersedes, which is to be told first."""
        if self.method == "DELETE":
            return {self.request_id, self.request_id.removeprefix(_WITHDRAWAL)}
        try:
            superseded = json.loads(self.body).get("supersedes")
        except (ValueError, AttributeError):  # damaged where it was stored: the service says so, and it is set aside
            superseded = None
        return {self.request_id} if superseded is None else {self.request_id, superseded}


def feedback_request(
    answer: Any = None,
    *,
    session_id: str | None = None,
    metric: str,
    value: bool | float | str | None = None,
    final_text: str | None = None,
    diff: str | None = None,
    snapshot: str | None = None,
    source: Source = "client",
    user: str | None = None,
    tags: Mapping[str, str] | None = None,
    supersedes: str | None = None,
    tool_call_id: str | None = None,
    evidence: str | None = None,
    observed_at: datetime | None = None,
) -> Queued:
    """Return the request for feedback on an answer or a session, with an id and a time of its own.

    Raises ValueError unless one of `answer` and `session_id`, and one of `value`, `final_text`, `diff` and `snapshot`,
    is given, and for a time without a zone."""
    if (answer is None) == (session_id is None):
        raise ValueError("feedback is about an answer or a session: give one of answer and session_id")
    said = {"value": value, "final_text": final_text, "diff": diff, "snapshot": snapshot}
    if sum(given is not None for given in said.values()) != 1:
        raise ValueError("give a value, or one of final_text, diff and snapshot")
    at = observed_at or datetime.now(timezone.utc)  # noqa: UP017 - of Python 3.11
    if at.tzinfo is None:
        raise ValueError("observed_at: give a time with its zone")
    feedback_id = str(uuid.uuid4())
    body: dict[str, Any] = {
        "feedback_id": feedback_id,
        "inference_id": None if answer is None else inference_id_of(answer),
        "session_id": session_id,
        "metric_name": metric,
        **said,
        "source": source,
        "user": user,
        "tags": None if tags is None else dict(tags),
        "supersedes": supersedes,
        "tool_call_id": tool_call_id,
        "evidence": evidence,
        "observed_at": at.isoformat(),
    }
    text = json.dumps({name: given for name, given in body.items() if given is not None}, allow_nan=False)
    return Queued(feedback_id, "POST", "/v1/feedback", text)


def withdrawal_request(feedback_id: str) -> Queued:
    return Queued(f"{_WITHDRAWAL}{feedback_id}", "DELETE", f"/v1/feedback/{quote(feedback_id, safe='')}", "")
