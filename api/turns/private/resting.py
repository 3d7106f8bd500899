"""Whether the words of an answer may be stored, decided when its turn is recorded."""

from collections.abc import Sequence

from api.redaction.output import REDACTED, must_not_rest
from api.redaction.redaction import Redaction
from api.requests.wording import Wording
from core.ports import Renderer
from core.unstored import NOT_STORED


def why_not_at_rest(
    renderer: Renderer, redaction: Redaction | None, words: Wording, token_ids: Sequence[int], *, store: bool
) -> str | None:
    """Return why its words must not rest; None when they may.

    Its request does not allow it (`store`), or the model itself said what is to be redacted."""
    if not store:
        return NOT_STORED
    if redaction is None:
        return None
    sampled = b"".join(map(renderer.token_bytes, token_ids))
    arguments = [call.arguments for call in words.tool_calls]
    return REDACTED if must_not_rest(redaction.finder, sampled, (words.text, words.reasoning), arguments) else None
