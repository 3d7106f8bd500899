"""Log-probabilities of tokens as OpenAI's newer protocols show them.

(`gc=False`: such objects live for a request and are in no cycle; the collector need not walk them.)"""

import msgspec

from api.turns.turn import Turn
from core.ports import Renderer


class TopLogprob(msgspec.Struct, gc=False):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct, gc=False):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


def visible_end(renderer: Renderer, turn: Turn, end: int) -> int:
    """Return the end without the stop token, which belongs to the answer but is no part of its text."""
    return (
        end - 1
        if 0 < end == len(turn.capture.token_ids) and turn.capture.token_ids[-1] in renderer.stop_token_ids
        else end
    )


def token_logprobs(renderer: Renderer, turn: Turn, start: int, end: int) -> list[TokenLogprob]:
    """Return the log-probabilities of output tokens [start, end)."""
    content = []
    for place in range(start, visible_end(renderer, turn, end)):
        token_id = turn.capture.token_ids[place]
        top = turn.capture.top_logprobs[place] if place < len(turn.capture.top_logprobs) else ()
        content.append(
            TokenLogprob(
                renderer.token_text(token_id),
                turn.capture.logprobs[place],
                list(renderer.token_bytes(token_id)),
                [TopLogprob(renderer.token_text(i), value, list(renderer.token_bytes(i))) for i, value in top],
            )
        )
    return content
