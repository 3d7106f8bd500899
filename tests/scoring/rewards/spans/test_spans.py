"""Credits, hints and demonstrations: which tokens an outcome speaks of, and what a token's credit is."""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.events import (
    Completion,
    Credit,
    Hint,
    Outcome,
    Reward,
    Segment,
    TextEdit,
    TokenRange,
    ToolCall,
    ToolCallTarget,
)
from core.reward_spec import RewardSpec
from scoring.rewards.facts import MOST_CLAIMS, facts_of

TOKENS = 12
SPEC = RewardSpec.model_validate(
    {
        "outcomes": {
            "accepted": {"type": "boolean", "weight": 1.0, "false_weight": -0.25, "decides": True},
            "rejected": {"type": "boolean", "weight": -0.5, "decides": True},
            "edited": {"type": "number", "weight": 0.5, "measure": "kept", "role": "edit", "decides": True},
            "distance": {"type": "number", "weight": 0.5, "measure": "distance", "optimize": "min", "decides": True},
            "survived": {"type": "number", "weight": 0.5, "measure": "survived", "decides": True},
            "points": {"type": "number", "weight": 1.0, "aggregation": "sum", "decides": True},
            "tests_passed": {"type": "boolean", "weight": 0.25, "false_weight": -0.25, "role": "check"},
            "comment": {"type": "text"},
            "demonstration": {"type": "text"},
            "broken": {"type": "boolean", "role": "void"},
        },
        "penalties": {"malformed_call": -0.5},
        "clip": [-100, 100],
    }
)
CALLS = (
    ToolCall(id="a", name="read_file", arguments="{}", index=0, token_range=TokenRange(start=3, end=6)),
    ToolCall(id="b", name="edit_file", arguments="{}", index=1, token_range=TokenRange(start=6, end=10)),
)
TOOLS = tuple({"type": "function", "function": {"name": call.name}} for call in CALLS)
SEGMENTS = (
    Segment(start=0, end=1, kind="thinking"),
    Segment(start=1, end=3, kind="answer"),
    Segment(start=3, end=10, kind="tool"),
    Segment(start=10, end=12, kind="answer"),
)


def a_turn(events: Any, **fields: object) -> Completion:
    tokens = tuple(range(TOKENS))
    turn: Completion = events.turn(
        "s", 0, token_ids=tokens, logprobs=(-0.5,) * TOKENS, tool_calls=CALLS, tools=TOOLS, segments=SEGMENTS, **fields
    )
    return turn


def by_token(reward: Reward) -> list[float]:
    """Return each token's reward, as the learner has it."""
    found = [reward.value] * TOKENS
    for credit in reward.credits:
        found[credit.start : credit.end] = [credit.value] * (credit.end - credit.start)
    return found


def of(start: int, end: int) -> dict[str, object]:
    return {"target_range": TokenRange(start=start, end=end)}


def on(call: str) -> dict[str, object]:
    return {"target_call": ToolCallTarget(tool_call_id=call)}


def edit(start: int, end: int, *token_ids: int) -> TextEdit:
    return TextEdit(start=start, end=end, token_ids=token_ids)


def last(lab: ModuleType, turn: Completion, *said: Outcome) -> Reward:
    rewards: list[Reward] = lab.score(SPEC, [turn, *said])
    return rewards[-1]


@pytest.mark.parametrize("target", [of(3, 6), on("a")])
def test_an_outcome_with_a_target_is_credited_to_it_alone(lab: ModuleType, target: dict[str, object]) -> None:
    events = lab.Events()
    turn = a_turn(events)
    reward = last(
        lab, turn, events.outcome(turn, "accepted", True, 1), events.outcome(turn, "rejected", True, 2, **target)
    )
    assert reward.value == 0.5  # the turn as a whole: everything once
    assert reward.credits == (
        Credit(start=0, end=3, value=1.0), Credit(start=3, end=6, value=0.5), Credit(start=6, end=12, value=1.0)
    )  # fmt: skip


def test_a_reward_names_who_was_heard_and_who_wrote_its_text(lab: ModuleType) -> None:
    """Orders to exclude a user find by it what that user said of others' turns, and shares of an update whose it is."""
    events = lab.Events()
    turn = a_turn(events, user_id="alice")
    ada = events.outcome(turn, "accepted", True, 1, user_id="ada")
    text = events.outcome(turn, "edited", 0.5, 2, user_id="bob", edits=(edit(1, 2, 7),))
    comment = events.outcome(turn, "comment", "no", 3, user_id="carl")
    unnamed = events.outcome(turn, "demonstration", "x", 4)
    reward = last(lab, turn, ada, text, comment, unnamed)
    assert (reward.said_by, reward.edited_by, reward.edits) == (("ada", "bob", "carl"), None, ())
    gone = events.amendment(unnamed, None, 5)
    reward = last(lab, turn, ada, text, comment, unnamed, msgspec.structs.replace(gone, withdrawn=True))
    assert (reward.said_by, reward.edited_by, reward.edits) == (("ada", "bob", "carl"), "bob", (edit(1, 2, 7),))
    broken = last(lab, turn, ada, events.outcome(turn, "broken", True, 6, user_id="eve"))
    assert (broken.void, broken.said_by) == (True, ("eve",))


def test_words_and_texts_without_consent_are_none_and_take_the_place_of_those_before(lab: ModuleType) -> None:
    """The number that comes with them counts as any other."""
    events = lab.Events()
    turn = a_turn(events)
    given = events.outcome(turn, "edited", 0.75, 1, edits=(edit(1, 2, 7),))
    said = [
        events.outcome(turn, "comment", "no", 2, learn=False),
        events.outcome(turn, "rejected", True, 3, evidence="use our logger", learn=False),
        events.outcome(turn, "edited", 0.5, 4, edits=(edit(2, 3, 8),), learn=False),
    ]
    assert last(lab, turn, given).edits == (edit(1, 2, 7),)
    reward = last(lab, turn, given, *said)
    assert (reward.hints, reward.edits, reward.edited_by) == ((), (), None)
    assert {"rejected", "edited"} <= reward.components.keys()


def test_what_nobody_says_of_tokens_is_no_reason_for_credits(lab: ModuleType) -> None:
    events = lab.Events()
    turn = a_turn(events)
    for said in (
        events.outcome(turn, "rejected", True, 1),
        events.outcome(turn, "rejected", True, 1, **of(0, TOKENS)),
        events.outcome(turn, "rejected", True, 1, **on("of another turn")),
        events.outcome(turn, "rejected", True, 1, **of(20, 30)),
        events.outcome(turn, "edited", 0.5, 1, edits=(edit(5, 99),)),  # a log may hold anything
    ):
        reward = last(lab, turn, said)
        assert (reward.credits, reward.edits) == ((), ())
        assert reward.value == {"rejected": -0.5, "edited": 0.25}[said.name]


@pytest.mark.parametrize(
    ("name", "value", "kept", "lost"),
    [("edited", 0.5, 0.5, 0.0), ("distance", 0.5, 0.0, -0.5), ("survived", 0.5, 0.5, 0.0)],
)
def test_kept_tokens_are_worth_keeping_and_others_losing(
    lab: ModuleType, name: str, value: float, kept: float, lost: float
) -> None:
    """Thinking and calls, of which an edit of the answer's text says nothing, are worth what it says of the whole."""
    events = lab.Events()
    turn = a_turn(events)
    reward = last(lab, turn, events.outcome(turn, name, value, 1, edits=(edit(2, 3, 7), edit(11, 11, 8))))
    whole = reward.value
    assert by_token(reward) == [whole, kept, lost, *[whole] * 7, kept, kept]
    assert reward.edits == (() if name == "survived" else (edit(2, 3, 7), edit(11, 11, 8)))


def test_an_edit_of_a_call_speaks_of_the_call(lab: ModuleType) -> None:
    events = lab.Events()
    turn = a_turn(events)
    said = events.outcome(turn, "edited", 0.75, 1, edits=(edit(7, 8, 7),), **on("b"))
    assert by_token(last(lab, turn, said)) == [0.0] * 6 + [0.5, 0.0, 0.5, 0.5] + [0.0] * 2


def test_a_tool_that_refuses_a_call_blames_that_call(lab: ModuleType) -> None:
    events = lab.Events()
    unknown = msgspec.structs.replace(CALLS[0], name="no_tool")
    turn = msgspec.structs.replace(a_turn(events), tool_calls=(unknown, CALLS[1]))
    reward = last(lab, turn, events.outcome(turn, "accepted", True, 1))
    assert (reward.value, by_token(reward)) == (0.5, [1.0] * 3 + [0.5] * 3 + [1.0] * 6)


def test_a_claim_without_evidence_blames_its_words(lab: ModuleType) -> None:
    claim = {"says": "tests pass", "needs": "^run_tests"}
    spec = RewardSpec.model_validate(
        {"outcomes": {"accepted": {"type": "boolean", "weight": 1.0, "decides": True}}, "claims": [claim],
         "penalties": {"unbacked_claim": -0.5}}
    )  # fmt: skip
    events = lab.Events()
    text = "Done. All tests pass. Bye."
    ends = (0, 2, 5, 10, 15, 17, 20, 21, 24, 26, 26, 26)  # "tests pass" is [10, 20)
    for recorded, expected in ((ends, [1.0] * 4 + [0.5] * 3 + [1.0] * 5), ((), [0.5] * TOKENS)):
        turn = a_turn(events, text=text, text_ends=recorded)
        reward = lab.score(spec, [turn, events.outcome(turn, "accepted", True, 1)])[-1]
        assert (reward.value, by_token(reward)) == (0.5, expected)
    untold = events.turn("s", 1, token_ids=(), logprobs=(), text=text)
    assert lab.score(spec, [untold, events.outcome(untold, "accepted", True, 2)])[-1].value == 0.5


@pytest.mark.parametrize(("times", "kept"), [(MOST_CLAIMS, MOST_CLAIMS), (MOST_CLAIMS + 1, 0)])
def test_the_places_of_claims_have_a_bound(lab: ModuleType, times: int, kept: int) -> None:
    """Beyond it the whole turn is blamed: its facts are stored, and it is cut into no more parts anyway."""
    claim = {"says": "tests pass", "needs": "run_tests"}
    spec = RewardSpec.model_validate({**SPEC.model_dump(), "claims": [claim], "penalties": {"unbacked_claim": -0.5}})
    text = "tests pass. " * times
    ends = tuple(range(1, len(text) + 1))
    turn = lab.Events().turn("s", 0, token_ids=ends, logprobs=(-0.5,) * len(ends), text=text, text_ends=ends)
    found = facts_of(turn, None, spec.rules(turn.workload, turn.namespace))
    assert (found.unbacked_claim, len(found.claims)) == (True, kept)


def test_a_late_target_makes_a_revision_though_the_value_stays(lab: ModuleType) -> None:
    events = lab.Events()
    turn = a_turn(events)
    first = events.outcome(turn, "rejected", True, 1)
    amended = events.outcome("", "rejected", True, 2, supersedes=first.outcome_id, inference_id=turn.inference_id,
                             session_id=None, **on("b"))  # fmt: skip
    one, two, three = lab.score(SPEC, [turn, first, amended, events.withdrawal(amended, 3)])
    assert (one.value, one.credits) == (-0.5, ())
    assert (two.value, two.revision, by_token(two)) == (-0.5, 1, [0.0] * 6 + [-0.5] * 4 + [0.0] * 2)
    assert "corrects what it says of some tokens" in two.why
    assert (three.value, three.credits) == (0.0, ())


def test_a_credit_is_clipped_as_a_value_is(lab: ModuleType) -> None:
    events = lab.Events()
    turn = a_turn(events)
    spec = SPEC.model_copy(update={"clip": (-1.0, 1.0)})
    said = [events.outcome(turn, "accepted", True, 1), events.outcome(turn, "points", 1.0, 1, **of(0, 3))]
    assert (lab.score(spec, [turn, *said])[-1].value, lab.score(spec, [turn, *said])[-1].credits) == (1.0, ())
    reward = lab.score(spec, [turn, *said, events.outcome(turn, "rejected", True, 1)])[-1]
    assert (reward.value, by_token(reward)) == (1.0, [1.0] * 3 + [0.5] * 9)


def test_a_void_turn_speaks_of_no_tokens(lab: ModuleType) -> None:
    events = lab.Events()
    turn = a_turn(events)
    said = [
        events.outcome(turn, "rejected", True, 1, **on("a"), evidence="why?"),
        events.outcome(turn, "demonstration", "x", 2, edits=(edit(1, 2),)),
        events.outcome(turn, "broken", True, 3),
    ]
    before, *_, after = lab.score(SPEC, [turn, *said])
    assert before.credits
    assert before.hints
    assert (after.void, after.value, after.credits, after.hints, after.edits) == (True, 0.0, (), (), ())


def test_more_spans_than_can_be_told_apart_share_the_value(lab: ModuleType) -> None:
    events = lab.Events()
    turn = events.turn("s", 0, token_ids=tuple(range(600)), logprobs=(-0.5,) * 600)
    said = [events.outcome(turn, "points", 1.0, 1, **of(place, place + 1)) for place in range(0, 600, 2)]
    assert lab.score(SPEC, [turn, *said[:60]])[-1].credits
    assert lab.score(SPEC, [turn, *said])[-1].credits == ()


def test_a_turn_of_which_very_much_is_said_shares_the_value(lab: ModuleType) -> None:
    """Else each outcome would be looked up for each part of the turn, again with each outcome that comes."""
    events = lab.Events()
    turn = events.turn("s", 0, token_ids=tuple(range(300)), logprobs=(-0.5,) * 300)
    edits = tuple(edit(4 * place, 4 * place + 2, 7) for place in range(64))
    said = [events.outcome(turn, "edited", 0.5, 1, edits=edits) for _ in range(70)]
    assert lab.score(SPEC, [turn, *said[:60]])[-1].credits
    assert lab.score(SPEC, [turn, *said])[-1].credits == ()


# ------------------------------------------------------------------------------------------ conservation

SPANS = st.tuples(st.integers(0, TOKENS - 1), st.integers(1, TOKENS)).filter(lambda span: span[0] < span[1])
SAID = st.lists(
    st.tuples(st.integers(-8, 8).map(lambda eighths: eighths / 8), st.none() | SPANS), min_size=1, max_size=6
)


@settings(max_examples=30, deadline=None)
@given(said=SAID)
def test_each_point_is_on_its_tokens_once(lab: ModuleType, said: list[tuple[float, tuple[int, int] | None]]) -> None:
    """Where names add up, a token has what was said of it, and the value has everything once."""
    events = lab.Events()
    turn = a_turn(events)
    outcomes = [events.outcome(turn, "points", points, 1, **(of(*span) if span else {})) for points, span in said]
    reward = last(lab, turn, *outcomes)
    expected = [
        sum(points for points, span in said if span is None or span[0] <= place < span[1]) for place in range(TOKENS)
    ]
    assert by_token(reward) == expected
    assert reward.value == sum(points for points, _ in said)
    ends = [end for credit in reward.credits for end in (credit.start, credit.end)]
    assert not ends or ends == [0, *sorted(ends[1:-1]), TOKENS]  # every token is in one credit


@settings(max_examples=30, deadline=None)
@given(
    said=SAID,
    fates=st.lists(st.sampled_from(["stays", "amended", "withdrawn"]), min_size=6, max_size=6),
    seed=st.randoms(),
)
def test_revisions_come_to_what_stands(
    lab: ModuleType, said: list[tuple[float, tuple[int, int] | None]], fates: Sequence[str], seed: Any
) -> None:
    """What each revision adds to a token adds up to the last, which is what the standing outcomes alone say at once."""
    events = lab.Events()
    turn = a_turn(events)
    outcomes = [events.outcome(turn, "points", points, 1, **(of(*span) if span else {})) for points, span in said]
    changes, stand = [], []
    for outcome, fate in zip(outcomes, fates, strict=False):
        if fate == "withdrawn":
            changes.append(events.withdrawal(outcome, 1))
        elif fate == "amended":
            changes.append(
                msgspec.structs.replace(events.amendment(outcome, 0.5, 1), target_range=TokenRange(start=2, end=5))
            )
            stand.append(msgspec.structs.replace(changes[-1], supersedes=None))
        else:
            stand.append(outcome)
    order = [*outcomes, *changes]
    seed.shuffle(order)
    revisions = lab.score(SPEC, [turn, *order])
    applied = [0.0] * TOKENS
    for before, reward in zip([None, *revisions], revisions, strict=False):
        was = [0.0] * TOKENS if before is None else by_token(before)
        applied = [sum_ + now - then for sum_, now, then in zip(applied, by_token(reward), was, strict=True)]
    at_once = lab.score(SPEC, [turn, *stand])
    assert applied == (by_token(at_once[-1]) if at_once else [0.0] * TOKENS)
    assert (revisions[-1].value if revisions else 0.0) == (at_once[-1].value if at_once else 0.0)


# ------------------------------------------------------------------------------------------ words


def test_words_are_hints_where_they_are_about(lab: ModuleType) -> None:
    events = lab.Events()
    turn = a_turn(events)
    said = [
        events.outcome(turn, "comment", " use our logger ", 1, **on("b")),
        events.outcome(turn, "rejected", True, 2, evidence="too long"),
        events.outcome(turn, "tests_passed", False, 3, evidence="E assert 1 == 2"),
        events.outcome(turn, "tests_passed", True, 4, evidence="1 passed"),
        events.outcome(turn, "edited", 0.5, 5, evidence="the text itself"),
        events.outcome("s", "comment", "of the session", 6),
    ]
    reward = last(lab, turn, *said)
    assert reward.hints == tuple(
        Hint(start=start, end=end, text=text, outcome_id=said[place].outcome_id)
        for place, (start, end, text) in enumerate(
            [(6, 10, "use our logger"), (0, 12, "too long"), (0, 12, "E assert 1 == 2")]
        )
    )


def test_words_wait_for_a_reward_and_correct_one(lab: ModuleType) -> None:
    events = lab.Events()
    turn = a_turn(events)
    early, late = (events.outcome(turn, "comment", text, at) for text, at in (("a", 1), ("b", 3)))
    first, second = lab.score(SPEC, [turn, early, events.outcome(turn, "accepted", True, 2), late])
    assert [hint.text for hint in first.hints] == ["a"]
    assert [hint.text for hint in second.hints] == ["a", "b"]
    assert (second.value, second.revision) == (1.0, 1)


def test_the_last_of_many_words_count_and_long_ones_in_part(lab: ModuleType) -> None:
    events = lab.Events()
    turn = a_turn(events)
    said = [events.outcome(turn, "comment", str(place) * 3000, 1) for place in range(10)]
    hints = last(lab, turn, events.outcome(turn, "accepted", True, 1), *said).hints
    assert [hint.text for hint in hints] == [str(place) * 2000 for place in range(2, 10)]


def test_the_last_text_of_each_part_is_the_demonstration(lab: ModuleType) -> None:
    events = lab.Events()
    turn = a_turn(events)
    said = [
        events.outcome(turn, "edited", 0.5, 1, edits=(edit(1, 2, 5),)),
        events.outcome(turn, "demonstration", "x", 2, edits=(edit(2, 3, 6),)),
        events.outcome(turn, "edited", 0.5, 3, edits=(edit(7, 9, 7),), **on("b")),
    ]
    assert last(lab, turn, *said).edits == (edit(2, 3, 6), edit(7, 9, 7))
    assert last(lab, turn, *said, events.withdrawal(said[1], 4)).edits == (edit(1, 2, 5), edit(7, 9, 7))


@pytest.mark.parametrize(("name", "value"), [("edited", 1.0), ("demonstration", "as it was")])
def test_a_later_text_without_edits_is_the_demonstration_no_longer(lab: ModuleType, name: str, value: object) -> None:
    """The user went back to the answer, or wrote what cannot be said in tokens: what stood before is wanted no more."""
    events = lab.Events()
    turn = a_turn(events)
    edited = events.outcome(turn, "edited", 0.5, 1, edits=(edit(1, 2, 5),))
    assert last(lab, turn, edited, events.outcome(turn, name, value, 2, evidence="as it was")).edits == ()
    assert last(lab, turn, edited, events.outcome(turn, "edited", 0.9, 2)).edits == (edit(1, 2, 5),)
