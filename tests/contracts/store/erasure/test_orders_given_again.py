"""An order that is given again while it is in force: a second one where more came since, on each database."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from made_events import NOW, completion, outcome

from core.events import Completion, Outcome
from core.ids import Namespace, SessionId, UserHash
from core.operations.erasures import ErasedKind, Erasure, Subjects
from core.ports import Store
from core.records.erasure_orders import give
from core.unstored import without_words

ADA, TALK = UserHash("ada"), SessionId("talk")
SUBJECTS: dict[ErasedKind, str] = {"user": ADA, "session": TALK, "namespace": "default"}
AGAIN_S = 60.0


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def said(seconds: float, session: str = TALK, **changes: Any) -> Completion:
    """Return a turn of a suggestion, which no next turn looks for."""
    given = {"user_id": ADA, "received_at": after(seconds), "trainable": False, "learn": False, **changes}
    return completion(SessionId(session), **given)


def put(store: Store, turns: Sequence[Completion] = (), outcomes: Sequence[Outcome] = ()) -> None:
    with store.work() as work:
        work.turns.put(turns)
        work.outcomes.put(outcomes)


def order(kind: ErasedKind, seconds: float) -> Erasure:
    return Erasure(
        erasure_id=0, namespace=Namespace("default"), kind=kind, subject=SUBJECTS[kind], why="a test", by="ada",
        ordered_at=after(seconds), deadline_at=NOW,
    )  # fmt: skip


def given(store: Store, kind: ErasedKind, seconds: float) -> Erasure:
    with store.work() as work:
        return give(work, order(kind, seconds))[0]


def comment(about: Completion, seconds: float, **changes: Any) -> Outcome:
    made: Outcome = outcome(about, value="words", received_at=after(seconds), **changes)
    return made


def texts(store: Store) -> list[str]:
    with store.look() as view:
        return [turn.text for turn in view.turns.in_order()]


@pytest.mark.parametrize("kind", SUBJECTS)
def test_what_was_said_since_is_erased_by_a_second_order(store: Store, kind: ErasedKind) -> None:
    put(store, [said(-1.0)])
    first = given(store, kind, 0.0)
    assert given(store, kind, 1.0).erasure_id == first.erasure_id
    later = said(2.0)
    put(store, [later])
    assert texts(store) == ["", later.text]
    second = given(store, kind, AGAIN_S)
    assert (second.erasure_id, second.ordered_at) == (first.erasure_id + 1, after(AGAIN_S))
    assert texts(store) == ["", ""]
    assert given(store, kind, 2 * AGAIN_S).erasure_id == second.erasure_id


@pytest.mark.parametrize("kind", SUBJECTS)
def test_feedback_with_words_on_what_was_not_stored_is_something_to_erase(store: Store, kind: ErasedKind) -> None:
    bare = without_words(said(-2.0))
    put(store, [bare], [outcome(bare, received_at=after(-2.0))])
    asked = Namespace("default"), kind, SUBJECTS[kind], NOW
    with store.look() as view:
        assert not view.words.are_here(*asked)
    put(store, [], [comment(bare, -1.0)])
    with store.look() as view:
        assert view.words.are_here(*asked)
    given(store, kind, 0.0)
    with store.look() as view:
        assert not view.words.are_here(*asked)
        assert {kept.value for kept in view.outcomes.of_turns([bare.inference_id])} == {None}


def test_words_on_a_session_since_then_are_erased_by_a_second_order(store: Store) -> None:
    turn = said(-1.0)
    put(store, [turn])
    first = given(store, "user", 0.0)
    put(store, [], [comment(turn, 1.0, inference_id=None, session_id=TALK)])
    second = given(store, "user", AGAIN_S)
    assert (second.erasure_id, second.sessions) == (first.erasure_id + 1, (TALK,))
    with store.look() as view:
        assert [each.value for each in view.outcomes.of_session(first.namespace, TALK)] == [None]


def test_the_newest_of_several_orders_says_until_when(store: Store) -> None:
    orders = [order("user", seconds) for seconds in (0.0, AGAIN_S, 1.0)]
    assert Subjects(orders).are_of(said(2.0))
    whole = [msgspec.structs.replace(each, kind="namespace", subject="default") for each in orders]
    assert Subjects(whole).are_of(said(2.0))


def test_it_is_known_of_a_session_that_it_was_erased(store: Store) -> None:
    put(store, [said(-1.0), without_words(said(-1.0, "bare", user_id=None))])
    asked = [(Namespace("default"), SessionId(name)) for name in (TALK, "bare", "nowhere")]
    given(store, "user", 0.0)
    with store.look() as view:
        assert [view.words.was_erased(*each) for each in asked] == [True, False, False]
        assert [view.turns.users_of(*each) for each in asked] == [[None], [None], None]
