"""Costs: exact sums of what was used, each organisation's for itself."""

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
from api_harness import Service, serve, wait_for

from core.clock import ManualClock
from core.ids import Namespace, PolicyName
from core.operations.costs import LEARNER, Payer, Prices, Used
from core.settings import CostSettings, PolicySettings

KEYS: Any = (
    {"key": "key-of-acme", "namespace": "acme", "name": "acme", "scopes": ("chat", "read")},
    {"key": "key-of-others", "namespace": "others", "name": "others", "scopes": ("chat", "read")},
    {"key": "key-of-operators", "namespace": "default", "name": "operators", "scopes": ("admin",)},
)
COSTS = CostSettings(currency="EUR", prompt=0.1, output=0.7, answer_hour=3.6, learner_hour=36, gigabyte_month=0.3)
ACME = PolicyName("acme")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    policies = {"acme": PolicySettings(namespaces=("acme",))}
    clock = ManualClock(datetime(2026, 11, 26, tzinfo=UTC))
    with serve(tmp_path / "service", keys=KEYS, costs=COSTS, policies=policies, clock=clock) as service:
        yield service


def costs(service: Service, key: str, **query: str) -> httpx.Response:
    return service.http.get("/v1/costs", headers={"authorization": f"Bearer {key}"}, params=query)


def add(service: Service, used: dict[Payer, Used]) -> None:
    with service.store.work() as work:
        work.costs.add(used)


def test_what_turns_used_is_counted_once_and_priced(service: Service) -> None:
    answers = [service.chat("hi", headers={"authorization": "Bearer key-of-acme"}) for _ in range(3)]
    prompt = sum(each.json()["usage"]["prompt_tokens"] for each in answers)
    output = sum(each.json()["usage"]["completion_tokens"] for each in answers)
    rows = wait_for(
        lambda: (data := costs(service, "key-of-acme").json()["data"]) and data[0]["used"]["turns"] == 3 and data
    )
    (row,) = rows
    assert row["namespace"] == "acme"
    assert (row["used"]["prompt_tokens"], row["used"]["output_tokens"]) == (prompt, output)
    assert row["used"]["logged_bytes"] == row["used"]["held_bytes"] > 0
    assert row["cost"]["prompt"] == float(round(Decimal("0.1") * prompt / 10**6, 6))


def test_sums_are_exact(service: Service) -> None:
    payers = [Payer("2026-11", Namespace(f"n{number}"), ACME) for number in range(100)]
    add(service, {payer: Used(1, 333_333, 77_777, 12_345, 987_654_321) for payer in payers})
    add(service, {payers[0]._replace(namespace=LEARNER): Used(learner_ms=1_234_567)})
    found = costs(service, "key-of-operators").json()
    rows = [row["cost"] for row in found["data"]]
    assert len(rows) == 101
    assert rows[-1] == {
        "prompt": 0.033333,
        "output": 0.054444,
        "answers": 0.012345,
        "learner": 0.0,
        "disk": 0.296296,
        "total": 0.396418,
    }
    assert found["total"] == float(sum(Decimal(str(cost["total"])) for cost in rows))
    assert found["total"] == float(100 * Decimal("0.396418") + Decimal("12.34567"))


def test_each_sees_its_own_and_an_admin_all(service: Service) -> None:
    of_acme, of_others = (
        Payer("2026-11", Namespace("acme"), ACME),
        Payer("2026-11", Namespace("others"), PolicyName("base")),
    )
    learners = [of_acme._replace(namespace=LEARNER), of_others._replace(namespace=LEARNER)]
    add(service, dict.fromkeys([of_acme, of_others, *learners], Used(1, 1, 1, 1, 1, 1)))
    seen = {
        name: [(row["policy"], row["namespace"]) for row in costs(service, f"key-of-{name}").json()["data"]]
        for name in ("acme", "others", "operators")
    }
    assert seen["acme"] == [("acme", None), ("acme", "acme")]
    assert seen["others"] == [("base", "others")]
    assert seen["operators"] == [("acme", None), ("acme", "acme"), ("base", None), ("base", "others")]


def test_what_came_earlier_is_still_held_and_a_month_must_be_one(service: Service) -> None:
    add(service, {Payer("2026-09", Namespace("acme"), ACME): Used(5, 5, 5, 5, 10**9)})
    (row,) = costs(service, "key-of-acme").json()["data"]
    assert (row["used"]["turns"], row["used"]["held_bytes"], row["cost"]["total"]) == (0, 10**9, 0.3)
    assert costs(service, "key-of-acme", month="2026-08").json()["data"] == []
    for month in ("2026-13", "2026-1", "now"):
        answer = costs(service, "key-of-acme", month=month)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "month")


def test_prices_are_decimal() -> None:
    price = Prices(*[Decimal("0.1")] * 5).of(Used(prompt_tokens=3 * 10**6), 0)["prompt"]
    assert price == Decimal("0.3")
