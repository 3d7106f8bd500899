"""Texts that users wrote in the place of an answer's own tokens, as sequences of which some tokens have weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from core.events import Completion, TextEdit
from core.records.text_edits import applied, are_sound
from learner.sequences.scored import ScoredTurn
from learner.sequences.tensors import Apart, sampled_places

Weights = dict[int, float]
"""Of tokens, by their place in a text."""


class UsersText(NamedTuple):
    """An answer after a user's edits, and the places of those of its tokens that are the user's.

    These are what an edit put in, and the token behind an edit, which the model had sampled behind something else."""

    token_ids: tuple[int, ...]
    places: tuple[int, ...]


@dataclass(frozen=True)
class WrittenLesson:
    """A sequence of prompt and text, in which tokens are taught (weights above 0) or taken back (below 0)."""

    sequence: Apart
    weights: tuple[float, ...]


def users_text(turn: Completion, edits: Sequence[TextEdit]) -> UsersText | None:
    """Return what edits make of an answer; None where they are not edits of it."""
    if not are_sound(edits, len(turn.token_ids)):
        return None
    sampled, places, longer = set(sampled_places(turn)), [], 0
    next_starts = [*(edit.start for edit in edits[1:]), len(turn.token_ids)]
    for edit, next_start in zip(edits, next_starts, strict=False):
        first = edit.start + longer
        longer += len(edit.token_ids) - (edit.end - edit.start)
        behind = edit.end + longer
        places += range(first, behind)
        if edit.end in sampled and edit.end < next_start:
            places.append(behind)
    return UsersText(applied(turn.token_ids, edits), tuple(places))


def lessons_of(number: int, scored: ScoredTurn, weight: float) -> list[WrittenLesson]:
    """Return what makes the turn's text stand with `weight`, and no other that was taught before.

    As far as both begin alike, only the difference of their weights is taught. `number`: of the turn in the batch."""
    turn, before = scored.turn, scored.applied
    new_ids, new = _weighed(turn, scored.reward.edits, weight)
    old_ids, old = _weighed(turn, before.edits, before.taught) if before is not None else ((), {})
    alike = _alike(new_ids, old_ids)
    kept = {place: each for place, each in old.items() if place < alike}
    wanted = {place: new.get(place, 0.0) - kept.get(place, 0.0) for place in sorted({*new, *kept})}
    gone = {place: -each for place, each in old.items() if place >= alike}
    lessons = [_lesson(number, turn, ids, weights) for ids, weights in ((new_ids, wanted), (old_ids, gone))]
    return [lesson for lesson in lessons if lesson.weights]


def _weighed(turn: Completion, edits: Sequence[TextEdit], weight: float) -> tuple[tuple[int, ...], Weights]:
    text = users_text(turn, edits) if weight else None
    return ((), {}) if text is None else (text.token_ids, dict.fromkeys(text.places, weight))


def _alike(one: Sequence[int], other: Sequence[int]) -> int:
    """Return with how many tokens both begin."""
    shorter = min(len(one), len(other))
    return next((place for place in range(shorter) if one[place] != other[place]), shorter)


def _lesson(number: int, turn: Completion, token_ids: Sequence[int], weights: Weights) -> WrittenLesson:
    """Return the lesson up to its last token that has a weight; what nothing predicts has none."""
    prompt = turn.prompt_token_ids
    told = {place: weight for place, weight in weights.items() if weight and len(prompt) + place > 0}
    whole = (*prompt, *token_ids[: max(told, default=-1) + 1])
    places = tuple(len(prompt) + place for place in told)
    return WrittenLesson(Apart(number, whole, places, turn.logprob_space.temperature), tuple(told.values()))
