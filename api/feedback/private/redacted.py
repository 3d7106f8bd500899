"""The words of feedback, redacted as those of the turn that it is about: one value has one placeholder in both."""

from typing import Final

from api.access.context import ApiContext
from api.access.identity import Identity
from api.feedback.body import FeedbackBody
from api.feedback.targets import NamedTurn
from api.redaction.placeholders import restored, spans
from api.redaction.redaction import Redaction
from api.turns.speakers import speaker_of
from core.errors import StoreUnavailable
from core.events import Completion
from core.ids import SessionId
from core.store.turns import SaidTurn

_TEXTS: Final = ("value", "final_text", "diff", "snapshot", "evidence")


async def redact_feedback(context: ApiContext, identity: Identity, body: FeedbackBody, named: NamedTurn) -> None:
    """Redact the body's words in place.

    Where its turn cannot be had, its placeholders are those of who says it."""
    if context.redactors.finder(identity.namespace) is None:
        return
    texts = {name: text for name in _TEXTS if isinstance(text := getattr(body, name), str)}
    turn = await _turn_of(named) if texts else None
    redaction = _begin(context, identity, body, turn)
    size = sum(map(len, texts.values()))

    def redact() -> list[str]:
        return [redaction.text(text) for text in texts.values()]

    is_slow = context.redactors.is_slow(identity.namespace, size)
    redacted = await context.aside.run(identity.caller, redact) if is_slow else redact()
    for name, text in zip(texts, redacted, strict=True):
        setattr(body, name, text)
    if body.tags:
        body.tags = {redaction.text(name): redaction.text(text) for name, text in body.tags.items()}


def are_the_same(context: ApiContext, identity: Identity, turn: SaidTurn, stored: str, said: str) -> bool:
    """Return whether a client says what is stored: as it is, or with the values that the client got."""
    if stored == said:
        return True
    if context.redactors.finder(identity.namespace) is None:
        return False
    first = next(iter(spans(stored)), None)
    if first is None or not said.startswith(stored[: first[0]]):  # there is nothing to look for
        return False
    values = context.values.of(identity.namespace, turn.session_id)
    if restored(stored, values) == said:
        return True
    redaction = context.redactors.begin(identity.namespace, speaker_of(turn.user_id, turn.key_id), values)
    return redaction is not None and redaction.text(said) == stored


async def _turn_of(named: NamedTurn) -> Completion | None:
    try:
        return await named.load()
    except StoreUnavailable:
        return None


def _begin(context: ApiContext, identity: Identity, body: FeedbackBody, turn: Completion | None) -> Redaction:
    session: SessionId | None
    if turn is not None:
        speaker, session = speaker_of(turn.user_id, turn.key_id), turn.session_id
    else:
        speaker = speaker_of(context.keys.user_of(identity, body.user), identity.key_id)
        session = None if body.session_id is None else SessionId(body.session_id)
    known = {} if session is None else context.values.of(identity.namespace, session)
    redaction = context.redactors.begin(identity.namespace, speaker, known)
    assert redaction is not None, "its namespace redacts"
    return redaction
