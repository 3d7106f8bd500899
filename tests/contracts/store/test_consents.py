"""Of a subject's words the newest by its time holds, in whatever order they come, on each database."""

from datetime import timedelta
from itertools import permutations

import pytest
from made_events import NOW

from core.ids import Namespace, UserHash
from core.operations.consents import Consent
from core.ports import Store
from core.records.consent_words import give, moment_after

ACME = Namespace("acme")


def word(age_s: float, *, learn: bool, subject: str = "ada", by: str = "plugin") -> Consent:
    at = NOW - timedelta(seconds=age_s)
    return Consent(namespace=ACME, kind="user", subject=subject, learn=learn, store=True, why="said", by=by, at=at)


def gave(store: Store, *words: Consent) -> list[Consent]:
    found = []
    for each in words:
        with store.work() as work:
            found.append(give(work, each, NOW))
    return found


def holding(store: Store) -> Consent:
    with store.look() as view:
        return view.consents.newest(ACME, "user", "ada", 1)[0]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_the_newest_holds_and_its_order_stands(store: Store, order: tuple[int, ...]) -> None:
    words = [word(30, learn=False), word(20, learn=True), word(10, learn=False, by="cluster edge")]
    gave(store, *(words[place] for place in order))
    held = holding(store)
    assert (held.at, held.learn, held.origin) == (words[2].at, False, "edge")
    with store.look() as view:
        in_force = [each for each in view.exclusions.in_order() if each.lifted_at is None]
        assert [each.exclusion_id for each in in_force] == [held.exclusion_id]
        assert in_force[0].selection.users == (UserHash("ada"),)
        assert view.consents.standing_on(in_force[0].exclusion_id) == held
        history = view.consents.newest(ACME, "user", "ada", 9)
    assert [each.at for each in history] == [each.at for each in reversed(words)]


def test_an_older_word_that_comes_late_joins_the_history_alone(store: Store) -> None:
    denied, allowed, late = gave(store, word(30, learn=False), word(10, learn=True), word(20, learn=False))
    assert holding(store) == allowed
    assert late.exclusion_id is None
    with store.look() as view:
        (order,) = view.exclusions.in_order()
        assert (order.exclusion_id, order.lifted_at) == (denied.exclusion_id, NOW)
        assert view.consents.holding_after(0) == [allowed]
        assert view.consents.holding_after(late.consent_id - 1) == []
        assert view.consents.last() == late.consent_id


@pytest.mark.parametrize("first", [True, False])
def test_of_two_at_one_moment_the_narrower_holds(store: Store, first: bool) -> None:
    gave(store, word(10, learn=first), word(10, learn=not first))
    assert holding(store).learn is False
    with store.look() as view:
        assert [each.learn for each in view.consents.holding_after(0)] == [False]
        assert [each.lifted_at for each in view.exclusions.in_order()] == [None]


def test_who_hears_of_words_hears_of_those_that_hold(store: Store) -> None:
    words = gave(store, word(30, learn=False), word(20, learn=False, subject="eve"), word(10, learn=True))
    with store.look() as view:
        assert view.consents.after(0, 2) == words[:2]
        assert view.consents.holding_after(0) == words[1:]
        assert view.consents.holding_after(words[1].consent_id) == words[2:]


def test_a_word_comes_after_the_one_before_it_whatever_the_clocks_say() -> None:
    ahead = word(-60, learn=False)
    assert moment_after(None, NOW) == NOW
    assert moment_after(word(60, learn=False), NOW) == NOW
    assert moment_after(ahead, NOW) == ahead.at + timedelta(microseconds=1)


def test_a_reason_that_was_erased_is_none_of_its_order(store: Store) -> None:
    bare = Consent(namespace=ACME, kind="user", subject="ada", learn=False, store=True, why="", by="p", at=NOW)
    gave(store, bare)
    with store.look() as view:
        assert [each.why for each in view.exclusions.in_order()] == ["erased"]
