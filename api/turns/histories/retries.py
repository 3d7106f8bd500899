"""Retries: a request that a client sends again, since it got no answer to the first.

OpenAI's and Anthropic's libraries count them in a header. The answer to the first may have been sampled whole and been
lost on its way, so both are turns; as choices of one request they share its group, and none is a second thought of the
user's about the other. At the root they share the session, too. A retry names the same session as the first try, by an
id or by a hint, or none as it did."""

from typing import Final

from api.access.services import ApiServices
from api.http.asgi import Headers, hint_text
from api.turns.lookup import read
from core.errors import StoreUnavailable
from core.events import Completion
from core.ids import Namespace, SessionId

_COUNT: Final = b"x-stainless-retry-count"


def is_retry(headers: Headers) -> bool:
    return (hint_text(headers, _COUNT) or "0").strip("0").isdigit()


async def first_try(services: ApiServices, namespace: Namespace, mark: str) -> Completion | None:
    """Return the turn that answered the request of a mark before, if it is known and stored."""
    chain = await services.live_state.get_chain(namespace, (mark,))
    if chain is None:
        return None
    try:
        return await read(services, lambda view: view.turns.get(namespace, chain.inference_id))
    except StoreUnavailable:
        return None


def request_mark(digest: str, named_session: SessionId | None) -> str:
    """Return a request's mark, by its transcript's digest, which holds who speaks, and by the session that it names."""
    return f"request\0{named_session or ''}\0{digest}"
