"""The words of users on what is done with what they say, held against what feedback says.

Words in feedback on what may not be stored would say it again, so they are refused, and not dropped."""

from typing import Final

from api.access.context import Context
from api.access.identity import Identity
from api.feedback.body import FeedbackBody
from api.feedback.targets import NamedTurn, has_session
from api.turns.lookup import look_up, read
from core.errors import Forbidden, StoreUnavailable
from core.ids import Namespace, SessionId
from core.operations.consents import ALL, Allowed
from core.operations.erasures import is_erased

_TEXTS: Final = ("value", "final_text", "diff", "snapshot", "evidence")
_NOTHING: Final = Allowed(learn=False, store=False)
"""What is allowed of what was erased: whose it was is forgotten, and with it what they allow."""


async def obey_consent(
    context: Context, identity: Identity, body: FeedbackBody, named: NamedTurn, *, own_tags: bool
) -> None:
    """Let feedback teach nothing by its words where whoever gives it does not allow that.

    `own_tags`: its tags are the service's, and nobody's words. Raises Forbidden naming a field with words, where a
    user's word or a session's forbids that any are stored: the user's who gives the feedback, or those of the turn or
    the session that it is about. Raises StoreUnavailable where nobody can say now whose that is."""
    consents = context.consents
    await consents.refresh(context.services)
    if consents.are_all:
        return
    words = [name for name in _TEXTS if isinstance(getattr(body, name), str)]
    if body.tags and not own_tags:
        words.append("tags")
    if not words:
        return
    namespace, user = identity.namespace, context.keys.user_of(identity, body.user)
    session = None if body.session_id is None else SessionId(body.session_id)
    allowed = consents.of(namespace, user, session)
    body.learn = body.learn and allowed.learn
    if allowed.store:  # else it is refused without asking whose it is
        allowed = await _of_subject(context, namespace, session, named)
    if not allowed.store:
        why = "what is said here may not be stored, by the word of its user; send a value without words"
        raise Forbidden(f"{words[0]}: {why}", param=words[0], code="not_stored")


async def _of_subject(context: Context, namespace: Namespace, session: SessionId | None, named: NamedTurn) -> Allowed:
    """Return what is allowed of the turn or the session that feedback is about. Raises StoreUnavailable."""
    if session is not None:
        return await _of_session(context, namespace, session)
    turn = await named.load()
    if turn is not None:
        return _NOTHING if is_erased(turn) else context.consents.of(namespace, turn.user_id, turn.session_id)
    if await named.exists():
        raise StoreUnavailable("the store does not have this turn yet, and nobody can say whose it is: try again")
    return ALL


async def _of_session(context: Context, namespace: Namespace, session: SessionId) -> Allowed:
    """Return what all users allow who spoke in a session. Raises StoreUnavailable."""
    services = context.services
    users = await look_up(services, lambda view: view.turns.users_of(namespace, session))
    if None in (users or ()) and await read(services, lambda view: view.words.was_erased(namespace, session)):
        return _NOTHING
    if users is None and await has_session(services, namespace, session):
        raise StoreUnavailable("the store does not have this session yet, and nobody can say whose it is: try again")
    allowed = ALL
    for user in users or ():
        allowed = allowed.narrowed(context.consents.of(namespace, user, session))
    return allowed
