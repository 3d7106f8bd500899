"""The store's contract for what organisations used, on each database."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import made_events

from core.ids import BASE, Namespace, PolicyName
from core.operations.costs import LEARNER, Payer, Used, used_to_make
from core.ports import Store

NOW = datetime(2026, 11, 26, tzinfo=UTC)
ACME = Payer("2026-11", Namespace("acme"), PolicyName("acme"))
BY_BASE = ACME._replace(policy=BASE)
LEARNED = ACME._replace(namespace=LEARNER)


def add(store: Store, used: dict[Payer, Used]) -> None:
    with store.work() as work:
        work.costs.add(used)


def test_what_was_used_adds_up_by_month_namespace_and_policy(store: Store) -> None:
    add(store, {ACME: Used(1, 10, 5, 200, 1000), BY_BASE: Used(1, 1, 1, 1, 1), LEARNED: Used(learner_ms=7)})
    add(store, {ACME: Used(2, 1, 1, 1, 1)})
    add(store, {ACME._replace(month="2026-12"): Used(4, 4, 4, 4, 4)})
    add(store, {})
    with store.look() as view:
        assert view.costs.of_month("2026-11") == {
            ACME: Used(3, 11, 6, 201, 1001),
            BY_BASE: Used(1, 1, 1, 1, 1),
            LEARNED: Used(learner_ms=7),
        }
        assert view.costs.of_month("2026-10") == {}
        whose = (ACME.namespace, ACME.policy)
        assert [view.costs.held(month).get(whose) for month in ("2026-10", "2026-11", "2026-12", "2027-01")] == [
            None,
            1001,
            1005,
            1005,
        ]


def test_who_adds_at_once_loses_nothing(store: Store) -> None:
    def work(number: int) -> None:
        payers = [ACME, BY_BASE, LEARNED] if number % 2 else [LEARNED, BY_BASE, ACME]
        for _ in range(5):
            add(store, dict.fromkeys(payers, Used(1, 3)))

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))
    with store.look() as view:
        assert view.costs.of_month("2026-11") == dict.fromkeys([ACME, BY_BASE, LEARNED], Used(30, 90))


def test_a_version_is_paid_for_once_however_often_it_is_published(store: Store) -> None:
    with store.work() as work:
        version = work.policies.allocate(NOW, PolicyName("acme"))
    seconds = {"seconds_waiting": 100.0, "seconds_updating": 1.25, "seconds_saving": 0.5, "loss": 9.0}
    policy = made_events.policy(version, metrics=seconds, created_at=NOW)
    for _ in range(2):
        with store.work() as work:
            if work.policies.put(policy):
                work.costs.add(used_to_make(policy))
    with store.look() as view:
        assert view.costs.of_month("2026-11") == {LEARNED: Used(learner_ms=1750)}
