"""Logged sessions as a corpus of exact tokens: sampled and accepted tokens have weight, the rest is counted."""

from typing import Any

import msgspec
import pytest
from logged_world import make_reward, make_turn, tokenizer_digest

from core.events import Completion, Counts, Segment
from learner.batches.backlog import Bounds
from learner.midtraining.session_corpus import SessionCorpus
from learner.sequences.resemblance import KeptOut, SuiteSolutions


def documents(*pairs: tuple[Completion, float | None], **options: Any) -> tuple[list[dict[str, Any]], dict[str, int]]:
    suite = SuiteSolutions("suite", "digest", options.get("solutions", {}))
    rehearsal = SessionCorpus(Bounds(tokenizer_digest(), options.get("row_tokens", 256)), 0.5, KeptOut([suite]))
    rewards = {turn.inference_id: make_reward(turn, value) for turn, value in pairs if value is not None}
    return list(rehearsal.documents([turn for turn, _ in pairs], rewards)), dict(rehearsal.counts)


def continued(turn: Completion, number: int) -> Completion:
    """Return a next turn of the session: its prompt is everything before and some new tokens."""
    prompt = (*turn.prompt_token_ids, *turn.token_ids, 7, 8, 9)
    return make_turn(number, session=turn.session_id, prompt_token_ids=prompt, turn_index=turn.turn_index + 1)


def test_a_turn_weighs_where_it_was_sampled() -> None:
    turn = make_turn(0)
    (document,), counts = documents((turn, 1.0))
    size = len(turn.prompt_token_ids)
    assert document["token_ids"] == turn.prompt_token_ids + turn.token_ids
    assert document["spans"] == [(size, size + len(turn.token_ids))]
    assert counts == {"turns": 1, "taken": 1}


def test_what_was_forced_into_the_models_mouth_does_not_weigh() -> None:
    turn = make_turn(0, segments=(Segment(start=2, end=5, kind="forced"), Segment(start=5, end=12, kind="answer")))
    (document,), _ = documents((turn, 1.0))
    size = len(turn.prompt_token_ids)
    assert document["spans"] == [(size, size + 2), (size + 5, size + 12)]


def test_turns_that_continue_each_other_are_one_sequence_of_which_the_taken_weigh() -> None:
    first = make_turn(0)
    second = continued(first, 1)
    third = continued(second, 2)
    (document,), counts = documents((first, 1.0), (second, 0.49), (third, 0.5))
    ends = [len(turn.prompt_token_ids) for turn in (first, third)]
    assert document["token_ids"] == third.prompt_token_ids + third.token_ids
    assert document["spans"] == [(end, end + 12) for end in ends]
    assert counts == {"turns": 3, "taken": 2, "below_min_reward": 1}


@pytest.mark.parametrize(
    ("changes", "value", "why"),
    [
        ({}, None, "unrewarded"),
        ({}, 0.49, "below_min_reward"),
        ({"trainable": False, "untrainable_reasons": ("top_p",)}, 1.0, "untrainable"),
        ({"learn": False}, 1.0, "no_consent"),
        ({"unstored": Counts(prompt_tokens=3, output_tokens=3, characters=3)}, 1.0, "not_stored"),
        ({"tokenizer_digest": "another"}, 1.0, "other_tokenizer"),
        ({"prompt_token_ids": (5,) * 245}, 1.0, "over_context"),
        ({"text": "def add(a, b):\n    return a + b"}, 1.0, "eval_solution"),
    ],
)
def test_what_is_left_out_is_counted(changes: dict[str, Any], value: float | None, why: str) -> None:
    solutions = {"case": "def add(a, b):\n    return a + b"}
    left_out, taken = msgspec.structs.replace(make_turn(0), **changes), make_turn(1)
    found, counts = documents((left_out, value), (taken, 1.0), solutions=solutions)
    assert [document["token_ids"] for document in found] == [taken.prompt_token_ids + taken.token_ids]
    assert counts == {"turns": 2, "taken": 1, why: 1}
