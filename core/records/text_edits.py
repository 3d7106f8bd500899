"""A user's edits of an answer, in tokens: whether they can be, and what the answer is after them."""

from collections.abc import Sequence

from core.events import TextEdit


def are_sound(edits: Sequence[TextEdit], tokens: int) -> bool:
    """Return whether edits are of an answer's `tokens`, in order, none twice. A log may hold anything."""
    ends = [place for edit in edits for place in (edit.start, edit.end)]
    ids = [token for edit in edits for token in edit.token_ids]
    return ends == sorted(ends) and all(0 <= place <= tokens for place in ends) and min(ids, default=0) >= 0


def applied(token_ids: Sequence[int], edits: Sequence[TextEdit]) -> tuple[int, ...]:
    """Return the tokens of an answer after sound edits."""
    new: list[int] = []
    place = 0
    for edit in edits:
        new += [*token_ids[place : edit.start], *edit.token_ids]
        place = edit.end
    return (*new, *token_ids[place:])
