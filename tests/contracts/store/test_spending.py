"""The store's contract for what accounts used, on each database."""

from concurrent.futures import ThreadPoolExecutor

from core.operations.quotas import Account, Use
from core.ports import Store

ACME = Account("namespace", "acme", "acme")
ADA = Account("user", "acme", "ab12")
KEY = Account("key", "acme", "plugin")


def add(store: Store, month: str, used: dict[Account, Use]) -> None:
    with store.work() as work:
        work.spending.add(month, used)


def test_what_was_used_adds_up_by_month(store: Store) -> None:
    add(store, "2026-11", {ACME: Use(1, 10), ADA: Use(1, 0)})
    add(store, "2026-11", {ACME: Use(2, 5, 1 << 40)})
    add(store, "2026-12", {ACME: Use(7, 7)})
    add(store, "2026-12", {})
    with store.look() as view:
        assert view.spending.of_accounts("2026-11", [ACME, ADA, KEY]) == {ACME: Use(3, 15, 1 << 40), ADA: Use(1, 0)}
        assert view.spending.of_accounts("2026-12", [ACME]) == {ACME: Use(7, 7)}
        assert view.spending.of_namespace("2026-11", "acme", 9) == {ACME: Use(3, 15, 1 << 40), ADA: Use(1, 0)}
        assert list(view.spending.of_namespace("2026-11", "acme", 1)) == [ACME]
        assert view.spending.of_namespace("2026-11", "other", 9) == {}


def test_what_one_build_did_not_count_stays_unknown(store: Store) -> None:
    add(store, "2026-11", {ACME: Use(1, 10, 0, 6, 4), ADA: Use(1, 10, 0, None, 4)})
    add(store, "2026-11", {ACME: Use(1, 10, 0, 1, 4), ADA: Use(1, 10, 0, 1, 4)})
    with store.look() as view:
        found = view.spending.of_accounts("2026-11", [ACME, ADA])
    assert found == {ACME: Use(2, 20, 0, 7, 8), ADA: Use(2, 20, 0, None, 8)}


def test_namespaces_with_odd_names_are_not_taken_for_one_another(store: Store) -> None:
    odd = [Account("user", "a:1", "b"), Account("user", "a", "1:b"), Account("user", "a%", "b")]
    add(store, "2026-11", {account: Use(place + 1, 0) for place, account in enumerate(odd)})
    with store.look() as view:
        assert [view.spending.of_accounts("2026-11", [each])[each].requests for each in odd] == [1, 2, 3]
        assert view.spending.of_namespace("2026-11", "a", 9) == {odd[1]: Use(2, 0)}


def test_replicas_that_add_at_once_lose_nothing_and_do_not_deadlock(store: Store) -> None:
    def work(number: int) -> None:
        accounts = [ACME, ADA, KEY] if number % 2 else [KEY, ADA, ACME]
        for _ in range(5):
            add(store, "2026-11", dict.fromkeys(accounts, Use(1, 3)))

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))
    with store.look() as view:
        assert view.spending.of_accounts("2026-11", [ACME, ADA, KEY]) == dict.fromkeys([ACME, ADA, KEY], Use(30, 90))
