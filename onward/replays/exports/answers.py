"""The answers of a turn with their exact tokens: the one that was sampled, and the one that a user made of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from core.events import Completion, TextEdit


@dataclass(frozen=True)
class Answer:
    """An answer's tokens. A token that no model sampled has no log-probability.

    `logprobs` are of the policy that sampled, float32 values under the turn's temperature; `forced` tells of each token
    whether a grammar or the service put it there; where `is_edited` a user's own tokens are among them."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    forced: tuple[bool, ...]
    is_edited: bool = False


def sampled_answer(turn: Completion) -> Answer:
    """Return the answer as it was sampled; forced tokens have no log-probability."""
    places = {
        place for segment in turn.segments if segment.kind == "forced" for place in range(segment.start, segment.end)
    }
    forced = tuple(place in places for place in range(len(turn.token_ids)))
    known = turn.logprobs if len(turn.logprobs) == len(turn.token_ids) else (None,) * len(turn.token_ids)
    logprobs = (None if is_forced else each for is_forced, each in zip(forced, known, strict=True))
    return Answer(turn.token_ids, tuple(logprobs), forced)


def kept_answer(turn: Completion, edits: Sequence[TextEdit]) -> Answer:
    """Return the answer after a user's edits, as the scorer has put them: in order, and within its tokens."""
    sampled, at = sampled_answer(turn), 0
    columns: tuple[list[Any], list[Any], list[Any]] = [], [], []
    for edit in edits:
        theirs = edit.token_ids, (None,) * len(edit.token_ids), (False,) * len(edit.token_ids)
        _extend(columns, sampled, at, edit.start, theirs)
        at = edit.end
    _extend(columns, sampled, at, len(turn.token_ids), ((), (), ()))
    token_ids, logprobs, forced = map(tuple, columns)
    return Answer(token_ids, logprobs, forced, is_edited=True)


def _extend(columns: Sequence[list[Any]], sampled: Answer, start: int, end: int, more: Sequence[Sequence[Any]]) -> None:
    ours = sampled.token_ids, sampled.logprobs, sampled.forced
    for column, kept, new in zip(columns, ours, more, strict=True):
        column += (*kept[start:end], *new)
