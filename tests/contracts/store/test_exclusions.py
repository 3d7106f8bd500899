"""The store's contract for what operators excluded from learning, on each database."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from made_events import completion, policy
from sqlalchemy import update

from core import codec
from core.events import Completion
from core.ids import InferenceId, Namespace, SessionId, UserHash, base_ref
from core.operations.exclusions import NO_FINDINGS, Excluded, Exclusion, Findings
from core.ports import Store
from core.store.database import tables

NOW = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
HERS = Exclusion(users=frozenset((UserHash("ada"), UserHash("bob"))))
ALL = Exclusion(
    namespace=Namespace("acme"),
    users=frozenset((UserHash("ädä"),)),
    turns=frozenset((InferenceId("t1"), InferenceId("t2"))),
    begin=NOW - timedelta(hours=1, microseconds=1),
    end=NOW,
)
FOUND = Findings(left=(base_ref(3), base_ref(7)), learned=frozenset({(InferenceId("t1"), 2)}), order_id=4)


def add(store: Store, what: Exclusion, found: Findings = NO_FINDINGS) -> int:
    with store.work() as work:
        return work.exclusions.add(what, "she lies", "shell:ada", NOW, found)


def test_what_was_ordered_comes_back_as_it_was_in_order(store: Store) -> None:
    with store.look() as view:
        assert (view.exclusions.after(), view.exclusions.newest()) == ([], 0)
    first, second = add(store, HERS), add(store, ALL, FOUND)
    with store.look() as view:
        found = view.exclusions.after()
        assert found == [
            Excluded(exclusion_id=first, what=HERS, why="she lies", by="shell:ada", at=NOW),
            Excluded(exclusion_id=second, what=ALL, why="she lies", by="shell:ada", at=NOW, found=FOUND),
        ]
        assert view.exclusions.after(first) == found[1:]
        assert view.exclusions.after(second) == []
        assert view.exclusions.newest() == second > first


def test_an_exclusion_without_findings_is_read(store: Store) -> None:
    number = add(store, HERS, FOUND)
    with store.work() as work:
        connection = work.exclusions._connection  # type: ignore[attr-defined]
        connection.execute(update(tables.exclusions).values(record=codec.encoder().encode(HERS)))
    with store.look() as view:
        (read,) = view.exclusions.after(number - 1)
        assert (read.what, read.found) == (HERS, NO_FINDINGS)


def test_an_exclusion_that_is_not_committed_does_not_exist(store: Store) -> None:
    first = add(store, HERS)
    with pytest.raises(RuntimeError, match="stopped"):
        _stop_halfway(store)
    with store.look() as view:
        assert [each.exclusion_id for each in view.exclusions.after()] == [first]
    assert add(store, ALL) > first


def _stop_halfway(store: Store) -> None:
    with store.work() as work:
        work.exclusions.add(ALL, "she lies", "shell:ada", NOW)
        assert len(work.exclusions.after()) == 2
        raise RuntimeError("stopped")


def test_concurrent_exclusions_become_visible_in_the_order_of_their_numbers(store: Store) -> None:
    """Who holds the history of releases adds the highest number: a reader who goes by numbers misses none."""

    def add_alone(_: int) -> tuple[int, int]:
        with store.work() as work:
            work.releases.lock()
            before = work.exclusions.newest()
            return before, work.exclusions.add(HERS, "she lies", "shell:ada", NOW)

    with ThreadPoolExecutor(6) as threads:
        added = list(threads.map(add_alone, range(24)))
    with store.look() as view:
        numbers = [each.exclusion_id for each in view.exclusions.after()]
    assert numbers == sorted(number for _, number in added)
    assert len(set(numbers)) == 24
    assert sorted(before for before, _ in added) == [0, *numbers[:-1]], "each saw all that had come before it"


def hers(number: int, user: str | None, namespace: str = "acme") -> Completion:
    whose = None if user is None else UserHash(user)
    at = NOW + timedelta(minutes=number)
    return completion(SessionId(f"s{number}"), user_id=whose, namespace=Namespace(namespace), received_at=at)


def test_a_store_counts_the_turns_that_an_exclusion_covers(store: Store) -> None:
    """Its own query and the rule by which the learner goes say the same of every turn."""
    turns = [hers(0, "ada"), hers(1, "bob"), hers(2, None), hers(3, "ada", "other"), hers(4, "cy")]
    with store.work() as work:
        work.turns.put(turns)
    begin, end = NOW + timedelta(minutes=1), NOW + timedelta(minutes=3)
    for what, covered in (
        (HERS, [0, 1, 3]),
        (Exclusion(users=HERS.users, namespace=Namespace("acme")), [0, 1]),
        (Exclusion(begin=begin), [1, 2, 3, 4]),
        (Exclusion(end=end), [0, 1, 2]),
        (Exclusion(begin=begin, end=end), [1, 2]),
        (Exclusion(turns=frozenset((turns[2].inference_id, turns[4].inference_id))), [2, 4]),
        (Exclusion(turns=frozenset((turns[0].inference_id,)), users=frozenset((UserHash("bob"),))), []),
        (Exclusion(users=frozenset((UserHash("nobody"),))), []),
    ):
        with store.look() as view:
            assert view.turns.count(what) == len(covered), what
        assert [number for number, turn in enumerate(turns) if what.covers(turn)] == covered


def published(store: Store, parents: dict[int, int | None]) -> None:
    """Publish versions upon these parents, with their weights."""
    with store.work() as work:
        work.policies.allocate_anchor(NOW)
        for number, parent in parents.items():
            made = policy(base_ref(number), parent=None if parent is None else base_ref(parent))
            if parent is not None:
                assert work.policies.allocate(NOW) == made.version
            work.policies.put(made)
            work.files.keep(made.version, 1)


def lost(store: Store, *versions: int) -> dict[int, str]:
    """Return which of these versions cannot be served, and why."""
    with store.look() as view:
        found = view.files.servable([base_ref(number) for number in versions])
    return {each.version: soon.lost or "" for each, soon in found.items() if soon.servable == "lost"}


def test_what_an_exclusion_left_behind_serves_no_more_though_its_weights_are_kept(store: Store) -> None:
    """With all that was made upon it, and nothing that was made beside it."""
    published(store, {1: None, 2: 1, 3: 2, 4: 3, 5: 2, 6: 5, 7: 4})
    assert lost(store, *range(1, 8)) == {}
    number = add(store, HERS, Findings(left=(base_ref(3),), learned=FOUND.learned))
    found = lost(store, *range(1, 8))
    assert [*found] == [3, 4, 7]
    assert set(found.values()) == {f"exclusion {number} took out what it, or a version before it, learned: she lies"}
    with store.look() as view:
        by = {each.exclusion_id for each in view.files.servable([base_ref(4), base_ref(7)]).values()}
        assert by == {number}
        assert view.files.servable([base_ref(5)])[base_ref(5)].exclusion_id is None


@pytest.mark.parametrize(
    ("code", "is_left"), [(None, True), ("invalid", True), ("unavailable", False), ("refused", False)]
)
def test_what_could_not_be_left_is_not(store: Store, code: str | None, is_left: bool) -> None:
    """An exclusion whose way back was refused leaves everything as it is."""
    published(store, {1: None, 2: 1, 3: 2})
    with store.work() as work:
        order_id = work.orders.give("local", "rollback", base_ref(1), "she lies", "shell:ada", NOW)
    add(store, HERS, Findings(left=(base_ref(2),), order_id=order_id))
    assert [*lost(store, 1, 2, 3)] == [2, 3], "as long as it waits"
    with store.work() as work:
        work.orders.finish(order_id, NOW, code, None if code is None else "so it is")
    assert [*lost(store, 1, 2, 3)] == ([2, 3] if is_left else [])
