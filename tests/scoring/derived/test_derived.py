"""Outcomes that the scorer derives from a conversation's course, for a client that never sends feedback."""

from types import ModuleType
from typing import Any

import pytest
from chatting import Chat
from ready_stores import open_in_memory

from core.events import Outcome
from core.ids import RESERVED
from core.reward_spec import DerivedSpec, RewardSpec
from core.unstored import without_words
from scoring.derived.survival import share_left
from scoring.ledger.transaction import LedgerTransaction
from scoring.rewards.runs import verdict_of

RULES = ["follow_up", "regenerated", "abandoned", "reverted", "tool_results", "survival"]
BOOLEAN = {"type": "boolean", "weight": -1.0, "false_weight": 1.0}
SHARE = {"type": "number", "weight": 1.0}
SPEC = RewardSpec.model_validate(
    {
        "outcomes": {
            name: SHARE if name.startswith("survived") else BOOLEAN
            for name in (
                "follow_up", "regenerated", "abandoned", "reverted", "tests_passed", "build_passed", "lint_passed",
                "survived", "survived_1h", "survived_1d", "survived_1w",
            )
        },
        "derived": {"rules": RULES},
        "clip": (-10, 10),
    }
)  # fmt: skip


@pytest.fixture
def chat(lab: ModuleType) -> Chat:
    return Chat(lab)


def concluded(lab: ModuleType, chat: Chat, *told: Outcome) -> dict[tuple[int, str], bool | float]:
    """Return the values in each turn's last reward, by (number of the turn, name)."""
    rewards = lab.score(SPEC, [*chat.turns, *told], until=lab.at(10_000_000))
    numbers = {turn.inference_id: number for number, turn in enumerate(chat.turns)}
    return {
        (numbers[reward.inference_id], name): value for reward in rewards for name, value in reward.components.items()
    }


def test_what_was_concluded_stands_beside_what_was_said(lab: ModuleType, chat: Chat) -> None:
    """The store holds derived outcomes with their source, to explain rewards."""
    chat.ask("write a function that sums xs", 0)
    chat.ask("wrong.", 10)
    store, transaction = open_in_memory(), LedgerTransaction(SPEC)
    with store.work() as work:
        work.turns.put(chat.turns)
        transaction.take(work, lab.records_of(chat.turns))
    with store.look() as view:
        (outcome,) = view.outcomes.of_turns([chat.turns[0].inference_id])
    store.close()
    assert (outcome.name, outcome.value, outcome.source) == ("follow_up", True, "derived")
    assert outcome.outcome_id in transaction.rewards[0].outcome_ids
    assert outcome.outcome_id.startswith(RESERVED), "else a client, who can compute it, could have it before"


# ------------------------------------------------------------------------------------------------ the user's words


@pytest.mark.parametrize(
    "text",
    [
        "No, that's not what I wanted",
        "wrong.",
        "it still fails with the same error",
        "that doesn't work",
        "You broke the login",
        "please try again",
        "undo that",
    ],
)
def test_a_complaint_is_about_the_answer_before_it(lab: ModuleType, chat: Chat, text: str) -> None:
    chat.ask("write a function that sums xs", 0)
    chat.ask("now one for products", 10)
    chat.ask(text, 20)
    assert concluded(lab, chat) == {(1, "follow_up"): -1.0}


@pytest.mark.parametrize(
    "text",
    ["thanks, now add a test", "can you note the types?", "next: the parser", "what does nothing do here?", "go on"],
)
def test_to_go_on_is_no_complaint(lab: ModuleType, chat: Chat, text: str) -> None:
    chat.ask("write a function that sums xs", 0)
    chat.ask(text, 10)
    assert concluded(lab, chat) == {}


def test_the_same_request_again_is_a_complaint(lab: ModuleType, chat: Chat) -> None:
    chat.ask("write a function that sums xs", 0)
    chat.ask("Write a function  that sums xs!", 10)
    assert concluded(lab, chat) == {(0, "follow_up"): -1.0}


def test_another_request_is_none(lab: ModuleType, chat: Chat) -> None:
    chat.ask("write a function that sums xs", 0)
    chat.ask("and now a test that an empty list gives 0", 10)
    assert concluded(lab, chat) == {}


def test_short_words_are_alike_by_chance(lab: ModuleType, chat: Chat) -> None:
    chat.ask("go on", 0)
    chat.ask("go on", 10)
    assert concluded(lab, chat) == {}


@pytest.mark.parametrize("when", [5, 20], ids=["before", "after"])
def test_what_somebody_said_in_words_of_their_own_counts_instead(lab: ModuleType, chat: Chat, when: int) -> None:
    events = lab.Events()
    first = chat.ask("write a function that sums xs", 0)
    chat.ask("wrong", 10)
    assert concluded(lab, chat, events.outcome(first, "follow_up", False, when)) == {(0, "follow_up"): 1.0}


# ------------------------------------------------------------------------------------------------ the tree


def test_another_answer_to_the_same_request_is_a_regenerate(lab: ModuleType, chat: Chat) -> None:
    chat.ask("hello", 0)
    chat.ask("sum xs", 10)
    chat.back(1)
    chat.ask("sum xs", 20)
    assert concluded(lab, chat) == {(1, "regenerated"): -1.0}


def test_so_it_is_at_the_root(lab: ModuleType, chat: Chat) -> None:
    chat.ask("sum xs", 0)
    chat.back(1)
    chat.ask("sum xs", 10)
    assert concluded(lab, chat) == {(0, "regenerated"): -1.0}


def test_another_request_at_an_earlier_place_abandons_what_followed(lab: ModuleType, chat: Chat) -> None:
    for number, text in enumerate(("hello", "sum xs", "multiply them")):
        chat.ask(text, number)
    chat.back(2)
    chat.ask("take the mean of xs", 20)
    assert concluded(lab, chat) == {(1, "abandoned"): -1.0}


@pytest.mark.parametrize("fields", [{"finish_reason": "abort"}, {"finish_reason": "error"}, {"purpose": "side"}])
def test_to_ask_again_after_no_answer_says_nothing(lab: ModuleType, chat: Chat, fields: dict[str, Any]) -> None:
    chat.ask("hello", 0)
    chat.ask("sum xs", 10, **fields)
    chat.back(1)
    chat.ask("sum xs", 20)
    assert concluded(lab, chat) == {}


def test_choices_of_one_request_are_no_regenerate(lab: ModuleType, chat: Chat) -> None:
    chat.ask("sum xs", 0, group_id="one")
    chat.back(1)
    chat.ask("sum xs", 0, group_id="one")
    assert concluded(lab, chat) == {}


# ------------------------------------------------------------------------------------------------ the environment

RESULTS = [
    ("pass", True),
    ("fail", False),
    ("===== 3 passed in 0.1s =====", True),
    ("===== 1 failed, 2 passed in 0.1s =====", False),
    ("0 failed, 2 passed", True),
    ('{"exit_code": 0, "stdout": "1 failed"}', True),
    ('{"exitCode": 2}', False),
    ('{"passed": true}', True),
    ("...\nexit code: 1", False),
    ("Process exited with code 0", True),
    ("Traceback (most recent call last):", False),
    ("BUILD SUCCESS", True),
    ("error TS2304: cannot find name", False),
    ("src/a.rs: error[E0308]: mismatched types", False),
    ("collected nothing", None),
    ("", None),
    ("[1, 2]", None),
]


@pytest.mark.parametrize(("result", "verdict"), RESULTS)
def test_a_result_says_whether_it_is_good(result: str, verdict: bool | None) -> None:
    assert verdict_of(result) is verdict


@pytest.mark.parametrize(
    ("name", "arguments", "outcome"),
    [
        ("run_tests", {}, "tests_passed"),
        ("bash", {"command": "cd a && pytest -q"}, "tests_passed"),
        ("bash", {"command": "cargo build --release"}, "build_passed"),
        ("terminal", {"cmd": "ruff check ."}, "lint_passed"),
    ],
)
def test_a_run_speaks_of_the_edit_before_it(
    lab: ModuleType, chat: Chat, name: str, arguments: dict[str, Any], outcome: str
) -> None:
    chat.ask("fix a.py", 0)
    chat.use(1, "edit_file", "ok", path="a.py", text="return 1")
    chat.use(2, name, "fail", **arguments)
    chat.answered(3, "hm")
    chat.use(4, "edit_file", "ok", path="a.py", text="return 2")
    chat.use(5, name, "pass", **arguments)
    chat.answered(6, "done")
    assert concluded(lab, chat) == {(1, outcome): 1.0, (4, outcome): -1.0}


def test_a_run_without_an_edit_speaks_of_nobody(lab: ModuleType, chat: Chat) -> None:
    chat.ask("why does it fail?", 0)
    chat.use(1, "run_tests", "fail")
    chat.answered(2, "because")
    assert concluded(lab, chat) == {}


def test_an_edit_that_is_asked_to_be_undone_is_reverted(lab: ModuleType, chat: Chat) -> None:
    chat.ask("fix a.py", 0)
    chat.use(1, "edit_file", "ok", path="a.py", text="return 1")
    chat.answered(2, "done")
    chat.ask("please revert that change", 10)
    assert concluded(lab, chat) == {(1, "reverted"): -1.0}


# ------------------------------------------------------------------------------------------------ survival

HOUR_S = 3600


@pytest.mark.parametrize(
    ("later_s", "name"),
    [(60, "survived"), (HOUR_S, "survived_1h"), (24 * HOUR_S, "survived_1d"), (8 * 24 * HOUR_S, "survived_1w")],
)
def test_an_edit_is_looked_for_when_its_file_is_seen_again(
    lab: ModuleType, chat: Chat, later_s: int, name: str
) -> None:
    chat.ask("fix a.py", 0)
    chat.use(1, "edit_file", "ok", path="a.py", text="  a = 1\n  b = 2\n\n  return a\n  # done")
    chat.ask("thanks. and now?", 2)
    chat.ask("what is in a.py?", later_s)
    chat.use(later_s + 1, "read_file", "1 def f():\n2   a = 1\n3   return a\n4   # gone", path="a.py")
    chat.answered(later_s + 2, "this")
    assert concluded(lab, chat) == {(1, name): 0.5}


def test_before_the_user_spoke_nothing_has_survived(lab: ModuleType, chat: Chat) -> None:
    chat.ask("fix a.py", 0)
    chat.use(1, "edit_file", "ok", path="a.py", text="a = 1")
    chat.use(2, "read_file", "a = 1", path="a.py")
    chat.answered(3, "done")
    assert concluded(lab, chat) == {}


def test_of_two_edits_the_last_is_looked_for(lab: ModuleType, chat: Chat) -> None:
    chat.ask("fix a.py", 0)
    chat.use(1, "edit_file", "ok", path="a.py", text="a = 1")
    chat.use(2, "edit_file", "ok", path="a.py", text="a = 2")
    chat.ask("and b.py?", 3)
    chat.use(4, "read_file", "a = 2", path="a.py")
    chat.answered(5, "hm")
    assert concluded(lab, chat) == {(2, "survived"): 1.0}


def test_lines_are_found_in_any_place_and_numbering() -> None:
    assert share_left("a\nb", "1: b\n2\ta") == 1.0
    assert share_left("12 monkeys", "12 monkeys") == 1.0
    assert share_left(" \n", "a") is None


# ------------------------------------------------------------------------------------------------ in the ledger


def test_without_rules_nothing_is_concluded(lab: ModuleType, chat: Chat) -> None:
    chat.ask("sum xs", 0)
    chat.ask("wrong", 10)
    silent = SPEC.model_copy(update={"derived": DerivedSpec()})
    assert lab.score(silent, chat.turns, until=lab.at(10_000)) == []


def test_batches_and_repetitions_change_nothing(lab: ModuleType, chat: Chat) -> None:
    chat.ask("fix a.py", 0)
    chat.use(1, "edit_file", "ok", path="a.py", text="return 1")
    chat.use(2, "run_tests", "fail")
    chat.answered(3, "done")
    chat.ask("wrong, revert that edit", 10)
    chat.back(1)
    chat.ask("no", 20)
    once = [lab.score(SPEC, chat.turns, until=lab.at(10_000), batch=size) for size in (1, 2, 100)]
    assert once[0] == once[1] == once[2]
    assert len(once[0]) > 2
    again = lab.score(SPEC, [turn for turn in chat.turns for _ in range(2)], until=lab.at(10_000))
    assert [msg.value for msg in again] == [msg.value for msg in once[0]]


def forget(chat: Chat) -> None:
    """Make the last turn one that was not stored: the next one continues its parent."""
    chat.turns[-1] = without_words(chat.turns[-1])
    by_id = {turn.inference_id: turn for turn in chat.turns}
    parent_id = chat.turns[-1].parent_id
    chat._parent = None if parent_id is None else by_id[parent_id]


def test_what_follows_an_answer_that_was_not_stored_is_not_said_of_the_one_before(lab: ModuleType, chat: Chat) -> None:
    chat.ask("write a function that sums xs", 0)
    chat.ask("and one that counts them", 10)
    forget(chat)
    chat.ask("wrong.", 20)
    assert concluded(lab, chat) == {}
    chat.ask("wrong.", 30)
    assert concluded(lab, chat) == {(2, "follow_up"): -1}


def test_an_answer_that_was_not_stored_concludes_nothing_and_nobody_left_it(lab: ModuleType, chat: Chat) -> None:
    chat.ask("write a function that sums xs", 0)
    chat.ask("wrong.", 10)
    forget(chat)
    chat.messages[-2:] = []
    chat.ask("and one that counts them", 20)
    assert concluded(lab, chat) == {}


def test_edits_before_and_after_an_answer_that_was_not_stored_keep_their_speakers(lab: ModuleType, chat: Chat) -> None:
    chat.ask("edit it", 0)
    chat.use(1, "edit_file", "done", path="a.py", content="one\ntwo\nthree\n")
    chat.ask("thanks", 2)
    forget(chat)
    chat.ask("run the tests", 3)
    chat.use(4, "run_tests", "exit code: 0", command="pytest")
    chat.ask("good", 5)
    assert (1, "tests_passed") in concluded(lab, chat)
