"""What a user's edits demonstrate: which tokens stand where, and what of an answer they must not be."""

import pytest
from logged_world import make_turn

from core.events import Segment, TextEdit
from core.records.text_edits import are_sound
from learner.objective.demonstrations import demonstration

TURN = make_turn(0, prompt_token_ids=(1, 2), token_ids=(10, 11, 12, 13), logprobs=(-1.0,) * 4)


def edit(start: int, end: int, *token_ids: int) -> TextEdit:
    return TextEdit(start=start, end=end, token_ids=token_ids)


@pytest.mark.parametrize(
    ("edits", "answer", "taught"),
    [
        ([edit(1, 2, 50)], (10, 50, 12), (1, 2)),  # what follows says that no more is to be put there
        ([edit(0, 1, 50, 51)], (50, 51, 11), (0, 1, 2)),
        ([edit(2, 2, 50)], (10, 11, 50, 12), (2, 3)),
        ([edit(1, 3)], (10, 13), (1,)),
        ([edit(3, 4, 50)], (10, 11, 12, 50), (3,)),
        ([edit(2, 4)], (), ()),  # nothing stands there, nothing is demonstrated
        ([edit(4, 4, 50, 51)], (10, 11, 12, 13, 50, 51), (4, 5)),
        ([edit(0, 1), edit(1, 4)], (), ()),
        ([edit(0, 1, 50), edit(1, 2), edit(3, 4, 51)], (50, 12, 51), (0, 1, 2)),
    ],
)
def test_the_users_tokens_and_the_one_after_each_edit(
    edits: list[TextEdit], answer: tuple[int, ...], taught: tuple[int, ...]
) -> None:
    found = demonstration(TURN, edits, 3)
    assert found.token_ids == (1, 2, *answer)
    assert found.places == tuple(2 + place for place in taught)
    assert (found.turn, found.temperature) == (3, TURN.logprob_space.temperature)


def test_what_was_forced_demonstrates_nothing() -> None:
    forced = make_turn(
        0,
        prompt_token_ids=(1, 2),
        token_ids=(10, 11, 12, 13),
        logprobs=(-1.0,) * 4,
        segments=(Segment(start=2, end=3, kind="forced"),),
    )
    assert demonstration(forced, [edit(1, 2, 50)], 0).places == (3,)
    assert demonstration(forced, [edit(0, 1, 50)], 0).places == (2, 3)


def test_nothing_is_predicted_of_nothing() -> None:
    """A first token has nothing before it."""
    bare = make_turn(0, prompt_token_ids=(), token_ids=(10, 11), logprobs=(-1.0,) * 2)
    assert demonstration(bare, [edit(0, 1, 50)], 0).places == (1,)


@pytest.mark.parametrize(
    "edits",
    [[edit(2, 1)], [edit(0, 5)], [edit(-1, 1)], [edit(2, 3), edit(0, 1)], [edit(0, 2), edit(1, 3)], [edit(0, 1, 60)]],
)
def test_edits_that_are_of_no_tokens_of_the_turn_or_no_words_of_the_model(edits: list[TextEdit]) -> None:
    assert not are_sound(edits, len(TURN.token_ids), vocabulary=60)
    assert are_sound([edit(0, 1, 59), edit(1, 1, 3), edit(1, 4)], len(TURN.token_ids), vocabulary=60)
