"""The store's contract for orders to exclude turns, on each database."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

from made_events import completion

from core.ids import Namespace, SessionId, UserHash, base_ref
from core.operations.exclusions import Relearning, Selection
from core.ports import Store

NOW = datetime(2026, 3, 1, 12, 30, 0, 123456, tzinfo=UTC)
HERE = Namespace("default")


def give(store: Store, why: str = "a siege", **criteria: Any) -> int:
    with store.work() as work:
        return work.exclusions.give(Selection(namespace=HERE, **criteria), why, "ops", NOW)


def test_orders_are_numbered_and_kept_as_they_were_given(store: Store) -> None:
    with store.look() as view:
        assert view.exclusions.stamp() == (0, 0)
    chosen = {"users": (UserHash("a"),), "versions": (base_ref(3),), "since": NOW}
    assert [give(store, **chosen), give(store, "again", sessions=(SessionId("s"),))] == [1, 2]
    with store.look() as view:
        first, second = view.exclusions.in_order()
        assert view.exclusions.stamp() == (2, 0)
        assert [each.exclusion_id for each in view.exclusions.newest(HERE, 1)] == [2]
        assert view.exclusions.newest(Namespace("other"), 9) == []
        assert (view.exclusions.get(1), view.exclusions.get(3)) == (first, None)
    assert first.selection == Selection(namespace=HERE, **chosen)
    assert (second.why, second.by, second.ordered_at, second.relearning) == ("again", "ops", NOW, None)


def test_the_first_lifting_stands_and_is_news(store: Store) -> None:
    number = give(store, users=(UserHash("a"),))
    later = NOW + timedelta(hours=1)
    with store.work() as work:
        work.exclusions.take(NOW)
        assert work.exclusions.lift(number, "a test", "ada", later)
        assert not work.exclusions.lift(number, "x", "eve", later)
        assert not work.exclusions.lift(7, "x", "eve", later)
    with store.look() as view:
        assert view.exclusions.stamp() == (1, 1)
        (found,) = view.exclusions.in_order()
    assert (found.lifted_at, found.lifted_by, found.lifted_why) == (later, "ada", "a test")
    assert (found.covers(NOW), found.covers(later)) == (True, False)


def test_an_order_lifted_before_a_learner_took_it_never_held(store: Store) -> None:
    early, late = give(store, users=(UserHash("a"),)), give(store, users=(UserHash("b"),))
    later = NOW + timedelta(hours=1)
    with store.work() as work:
        assert work.exclusions.lift(early, "a mistake", "ada", later)
        taken = {each.exclusion_id: each for each in work.exclusions.take(later)}
        assert work.exclusions.lift(late, "a mistake", "ada", later)
        assert work.exclusions.take(later) == work.exclusions.in_order()
    assert (taken[early].is_withdrawn, taken[late].is_withdrawn) == (True, False)
    assert taken[late].relearning == Relearning(began_at=later)
    with store.look() as view:
        first, second = view.exclusions.in_order()
    assert (first.covers(NOW), second.covers(NOW), second.covers(later)) == (False, True, False)
    assert first.relearning is not None
    assert first.relearning.ended_at == later


def test_what_the_learner_reports_is_kept_beside_an_order(store: Store) -> None:
    number = give(store, users=(UserHash("a"),))
    told = Relearning(first_use=base_ref(3), start=base_ref(2), updates=4, per_s=0.5, began_at=NOW)
    with store.work() as work:
        work.exclusions.report(number, told)
    with store.look() as view:
        assert [each.relearning for each in view.exclusions.in_order()] == [told]
        assert view.exclusions.stamp() == (1, 0)


def test_orders_given_at_once_become_visible_in_their_order(store: Store) -> None:
    """Whoever has seen a number has seen all before it."""
    seen: list[tuple[int, int]] = []

    def watch(number: int) -> int:
        found = give(store, str(number), users=(UserHash("a"),))
        with store.look() as view:
            seen.append((view.exclusions.stamp()[0], len(view.exclusions.in_order())))
        return found

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(watch, range(12))) == list(range(1, 13))
    assert all(count >= newest for newest, count in seen)


def test_a_selection_finds_what_it_selects(store: Store) -> None:
    turns = [
        completion(
            session_id=SessionId(f"s{number % 3}"),
            user_id=UserHash(f"u{number % 2}"),
            key_id=f"k{number % 4}",
            received_at=NOW + timedelta(seconds=number),
        )
        for number in range(12)
    ]
    with store.work() as work:
        work.turns.put(turns)
    choices: list[dict[str, Any]] = [
        {"users": (UserHash("u1"),)},
        {"sessions": (SessionId("s0"), SessionId("s2")), "users": (UserHash("u0"),)},
        {"keys": ("k3",), "since": NOW + timedelta(seconds=4)},
        {"turns": (turns[5].inference_id,)},
        {"until": NOW + timedelta(seconds=2)},
        {"workloads": ("none",)},
    ]
    for criteria in choices:
        chosen = Selection(namespace=turns[0].namespace, **criteria)
        with store.look() as view:
            found = dict(view.exclusions.selected(chosen))
        assert found == {each.inference_id: each.received_at for each in turns if chosen.selects(each)}, criteria
