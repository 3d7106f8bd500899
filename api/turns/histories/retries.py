"""Retries: a request that a client sends again, since it got no answer to the first.

OpenAI's and Anthropic's libraries count them in a header. The answer to the first may have been sampled whole and been
lost on its way, so both are turns; as choices of one request they share its group, and none is a second thought of the
user's about the other. At the root they share the session, too. A retry names the same session as the first try, by an
id or by a hint, or none as it did.

The header does not say which answer was missed. The first try may have been refused, of which nothing is known: then
the same words were perhaps answered long before, in another conversation. So a retry does not join an answer
that somebody has already continued, nor one that ended longer ago than a client waits."""

from datetime import datetime, timedelta
from typing import Final

from api.access.services import ApiServices
from api.http.asgi import Headers, hint_text
from api.turns.lookup import read
from core.errors import StoreUnavailable
from core.events import Completion
from core.ids import InferenceId, Namespace, SessionId
from core.store.work import View

_COUNT: Final = b"x-stainless-retry-count"
_PATIENCE: Final = timedelta(minutes=10)  # of OpenAI's and Anthropic's libraries, unless they are told otherwise


def is_retry(headers: Headers) -> bool:
    return (hint_text(headers, _COUNT) or "0").strip("0").isdigit()


async def first_try(services: ApiServices, namespace: Namespace, mark: str, now: datetime) -> Completion | None:
    """Return the turn that answered the request of a mark, if it is stored, and its client may have missed it."""
    chain = await services.live_state.get_chain(namespace, (mark,))
    if chain is None:
        return None
    try:
        return await read(services, lambda view: _missed(view, namespace, chain.inference_id, now))
    except StoreUnavailable:
        return None


def _missed(view: View, namespace: Namespace, inference_id: InferenceId, now: datetime) -> Completion | None:
    turn = view.turns.get(namespace, inference_id)
    if turn is None or now - (turn.received_at + timedelta(milliseconds=turn.latency_ms)) > _PATIENCE:
        return None
    return None if view.turns.following(turn, 1) else turn


def request_mark(digest: str, named_session: SessionId | None) -> str:
    """Return a request's mark, by its transcript's digest, which holds who speaks, and by the session that it names."""
    return f"request\0{named_session or ''}\0{digest}"
