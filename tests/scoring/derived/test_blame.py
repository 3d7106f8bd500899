"""Conclusions about one call of a turn: the call that failed is blamed, and not those beside it."""

import json
from collections import Counter
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from chatting import Chat

from core.events import Completion, Outcome, Reward, TokenRange, ToolCall
from core.reward_spec import RewardSpec
from scoring.derived.conclusion import Conclusion, outcome_of
from scoring.derived.results import passed

BLAMED = {"type": "boolean", "weight": -1.0, "false_weight": 1.0}
CHECK = {"type": "boolean", "weight": 1.0, "false_weight": -1.0, "role": "check"}
SPEC = RewardSpec.model_validate(
    {
        "outcomes": {
            "call_failed": BLAMED | {"aggregation": "sum", "role": "complaint"},
            "reverted": BLAMED,
            "follow_up": BLAMED,
            "tests_passed": CHECK,
        },
        "derived": {"rules": ["failed_calls", "reverted", "follow_up", "tool_results"]},
        "clip": (-10, 10),
    }
)
TOKENS = 10
OFFERED = tuple({"type": "function", "function": {"name": name}} for name in ("edit_file", "read_file", "run_tests"))


def together(chat: Chat, seconds: float, *asked: tuple[str, str], answer: str = "") -> Completion:
    """Add a turn that makes these calls at once, each of 2 tokens from the second on, and their results."""
    calls = [
        ToolCall(
            id=f"call-{len(chat.turns)}-{place}",
            name=name,
            arguments="{}",
            index=place,
            token_range=TokenRange(start=2 + 2 * place, end=4 + 2 * place),
        )
        for place, (name, _) in enumerate(asked)
    ]
    tokens: dict[str, Any] = {"token_ids": tuple(range(TOKENS)), "logprobs": (-0.5,) * TOKENS, "tools": OFFERED}
    turn = chat.answered(seconds, answer, *calls, **tokens)
    for call, (_, result) in zip(calls, asked, strict=True):
        chat.messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return turn


def rewards_of(lab: ModuleType, chat: Chat, turn: Completion, *told: Outcome) -> Sequence[Reward]:
    found = lab.score(SPEC, [*chat.turns, *told], until=lab.at(10_000_000))
    return [reward for reward in found if reward.inference_id == turn.inference_id]


def by_token(reward: Reward) -> list[float]:
    found = [reward.value] * TOKENS
    for credit in reward.credits:
        found[credit.start : credit.end] = [credit.value] * (credit.end - credit.start)
    return found


def test_of_calls_made_at_once_the_one_that_failed_is_blamed(lab: ModuleType) -> None:
    chat = Chat(lab)
    chat.ask("fix f", 0)
    turn = together(
        chat, 1, ("read_file", "def f(): error = 1"), ("edit_file", "Error: no line 7"), ("read_file", "ok")
    )
    chat.answered(2, "done")
    (reward,) = rewards_of(lab, chat, turn)
    assert by_token(reward) == [0.0] * 4 + [-1.0] * 2 + [0.0] * 4
    assert [(hint.start, hint.end, hint.text) for hint in reward.hints] == [(4, 6, "Error: no line 7")]


def test_a_failed_run_blames_the_edit_before_it_with_the_words_of_the_test(lab: ModuleType) -> None:
    chat = Chat(lab)
    chat.ask("fix f", 0)
    turn = together(chat, 1, ("read_file", "def f(): pass"), ("edit_file", "ok"))
    together(chat, 2, ("run_tests", "E   assert 1 == 2\n1 failed"))
    chat.answered(3, "hm")
    (reward,) = rewards_of(lab, chat, turn)
    assert by_token(reward) == [0.0] * 4 + [-1.0] * 2 + [0.0] * 4
    assert [(hint.start, hint.text) for hint in reward.hints] == [(4, "E   assert 1 == 2\n1 failed")]


def test_where_somebody_reports_the_same_the_words_of_the_conclusion_are_no_hint(lab: ModuleType) -> None:
    """What was reported of the other kind, or with no use, takes no words away."""
    chat = Chat(lab)
    chat.ask("fix f", 0)
    turn = together(chat, 1, ("edit_file", "ok"))
    together(chat, 2, ("run_tests", "E   assert 1 == 2\n1 failed"))
    chat.answered(3, "hm")
    told, other, unusable = (
        lab.Events().outcome(turn, name, value, 9, source="environment")
        for name, value in (("tests_passed", True), ("reverted", False), ("tests_passed", 0.5))
    )
    assert rewards_of(lab, chat, turn, other, unusable)[-1].hints
    last = rewards_of(lab, chat, turn, told)[-1]
    assert (last.components, last.hints) == ({"tests_passed": 1.0}, ())


def test_of_two_edits_before_a_run_nobody_knows_which_was_bad(lab: ModuleType) -> None:
    chat = Chat(lab)
    chat.ask("fix f", 0)
    turn = together(chat, 1, ("edit_file", "ok"), ("edit_file", "ok"))
    together(chat, 2, ("run_tests", "1 failed"))
    chat.answered(3, "hm")
    (reward,) = rewards_of(lab, chat, turn)
    assert (reward.value, reward.credits) == (-1.0, ())


def test_an_edit_after_a_run_is_alone_in_the_next(lab: ModuleType) -> None:
    chat = Chat(lab)
    chat.ask("fix f", 0)
    first = together(
        chat, 1, ("edit_file", "ok"), ("run_tests", "1 failed"), ("edit_file", "ok"), ("run_tests", "1 passed")
    )
    chat.answered(3, "hm")
    (reward,) = rewards_of(lab, chat, first)
    assert by_token(reward) == [0.0] * 2 + [-1.0] * 2 + [0.0] * 2 + [1.0] * 2 + [0.0] * 2


@pytest.mark.parametrize("runs", [10, 1000])
def test_the_edits_before_a_run_are_not_gone_through_at_every_run(runs: int) -> None:
    """Measured by how often anybody looks whose call it is."""
    looks = Counter[str]()
    turn = SimpleNamespace(inference_id="of all")

    class Made(SimpleNamespace):
        @property
        def turn(self) -> SimpleNamespace:
            looks["turn"] += 1
            return turn

    edits = [Made(id="e", line="edit_file {}", said_at=0, answered_at=0, name="edit_file", result="ok")] * 100
    run = Made(id="r", line="run_tests {}", said_at=0, answered_at=0, name="run_tests", result="1 failed")
    conversation: Any = SimpleNamespace(calls=[*edits, *[run] * runs], answers_newly=lambda call: True)
    found = list(passed(conversation, SPEC.derived))
    assert [(each.about, each.call) for each in found] == [("of all", None)] * runs
    assert looks["turn"] <= 3 * (len(edits) + runs)


def test_words_of_displeasure_go_with_the_answer_and_an_undo_with_its_edit(lab: ModuleType) -> None:
    chat = Chat(lab)
    chat.ask("fix f", 0)
    edit = together(chat, 1, ("read_file", "..."), ("edit_file", "ok"))
    answer = chat.answered(2, "I did.", token_ids=(1, 2), logprobs=(-0.5, -0.5))
    chat.ask("no, undo that edit: use our logger", 3)
    (reward,) = rewards_of(lab, chat, edit)
    assert by_token(reward) == [0.0] * 4 + [-1.0] * 2 + [0.0] * 4
    (said,) = rewards_of(lab, chat, answer)
    assert [(hint.start, hint.end, hint.text) for hint in said.hints] == [(0, 2, "no, undo that edit: use our logger")]


def test_words_of_who_lets_nobody_learn_are_no_hint(lab: ModuleType) -> None:
    chat = Chat(lab)
    answer = chat.ask("fix f", 0, token_ids=(1, 2), logprobs=(-0.5, -0.5))
    later = chat.ask("no, use our logger", 3, learn=False)
    (said,) = rewards_of(lab, chat, answer)
    assert (said.value, said.hints) == (-1.0, ())
    conclusion = Conclusion("follow_up", answer.inference_id, True, "says: no", words="no, use our logger")
    assert outcome_of(conclusion, later, "4").evidence is None


def test_a_call_whose_id_nobody_kept_is_not_guessed(lab: ModuleType) -> None:
    chat = Chat(lab)
    chat.ask("fix f", 0)
    turn = together(chat, 1, ("edit_file", "Error"), ("read_file", "ok"))
    chat.messages = json.loads(json.dumps(chat.messages).replace("call-1-", "retold-"))
    chat.answered(2, "done")
    (reward,) = rewards_of(lab, chat, turn)
    assert (reward.value, reward.credits) == (-1.0, ())
