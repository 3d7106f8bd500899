"""Whether the words of a turn may rest, asked at the moment at which it is recorded."""

from collections.abc import Sequence

from api.access.context import Context
from api.redaction.output import REDACTED, must_not_rest
from api.redaction.redaction import Redaction
from api.requests.wording import Wording
from api.turns.intake import Intake
from core.events import Completion
from core.ids import SessionId
from core.operations.consents import Allowed
from core.operations.erasures import tombstone_of_turn
from core.unstored import NOT_STORED, without_words


def at_rest(context: Context, turn: Completion, why: str | None) -> Completion:
    """Return a turn as it is recorded: whole, or without its words for this reason or since it was erased meanwhile."""
    if context.erased.means(turn):
        return tombstone_of_turn(turn)
    return turn if why is None else without_words(turn, why)


def allowed_of(context: Context, intake: Intake, session_id: SessionId) -> Allowed:
    """Return what is allowed of a turn, by its request and by the words that hold now, which may be newer."""
    narrowed = context.consents.of(intake.identity.namespace, intake.user_id, session_id)
    return Allowed(intake.learn, intake.store).narrowed(narrowed)


def why_not_at_rest(
    context: Context, redaction: Redaction | None, allowed: Allowed, words: Wording, token_ids: Sequence[int]
) -> str | None:
    """Return why an answer's words must not rest: nobody allows it, or the model said what is to be redacted."""
    if not allowed.store:
        return NOT_STORED
    if redaction is None:
        return None
    sampled = b"".join(map(context.services.renderer.token_bytes, token_ids))
    arguments = [call.arguments for call in words.tool_calls]
    return REDACTED if must_not_rest(redaction.finder, sampled, (words.text, words.reasoning), arguments) else None
