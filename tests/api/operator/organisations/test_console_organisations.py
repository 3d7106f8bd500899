"""Organisations, clusters and erasures at the console, in a real browser."""

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from api_harness import Service, serve
from console_pages import ADMIN, KEYS, READER, START, OpenPage, chromium, give, open_page, world
from console_world import SCRIPT, fill, inference_id, turn
from learned_turns import learned
from made_events import opening, policy

from core.clock import SystemClock
from core.events import Release
from core.ids import Namespace, PolicyName, base_ref
from core.operations.erasures import Step
from core.operations.exclusions import Relearning
from core.operations.fleet import Experiment
from core.operations.quotas import Account, Use, month_of
from core.records.clusters import ClusterStanding, ClusterStatus
from core.settings import PolicySettings, QuotaSettings

__all__ = ["chromium", "open_page", "world"]  # fixtures

POLICIES = {"acme": PolicySettings(namespaces=("acme", SCRIPT)), "beta": PolicySettings(namespaces=("beta",))}
QUOTAS = QuotaSettings.model_validate({"namespaces": {"acme": {"tokens_per_month": 1000}}})
SESSION = turn(3, START).session_id


def clusters() -> list[ClusterStanding]:
    now = SystemClock().now()
    home: Any = {"role": "home", "live": base_ref(5), "followed": 5, "unsent": 0, "at": now}
    edge: Any = {"live": base_ref(3), "followed": 3, "unsent": 1234, "at": now - timedelta(minutes=10)}
    return [
        ClusterStanding(ClusterStatus(cluster=f"west{SCRIPT}", **home), 0),
        ClusterStanding(ClusterStatus(cluster="east", **edge), 2),
    ]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory = tmp_path_factory.mktemp("organisations") / "s"
    parts: Any = {"keys": KEYS, "policies": POLICIES, "quotas": QUOTAS, "clusters": clusters}
    with serve(directory, **parts) as service:
        fill(service.store, START)
        now, acme = SystemClock().now(), PolicyName("acme")
        with service.store.work() as work:
            first, second = (work.policies.allocate(now, acme) for _ in range(2))
            for version, state in ((first, "live"), (second, "canary")):
                work.policies.put(policy(version))
                work.releases.put(Release(version=version, cluster="local", state=state, why="", by="gate", at=now))  # type: ignore[arg-type]
            running: Any = {"canary": second, "control": first, "share": 0.05, "salt": "s", "started_at": now}
            work.experiments.put(Experiment(experiment_id="of-acme", cluster="local", **running))
            work.spending.add(month_of(now), {Account("namespace", "acme", "acme"): Use(12, 1000)})
            work.alarms.open(opening("one", namespace=Namespace("acme"), workload="chat"))
        yield service


def test_organisations_and_clusters_are_told(open_page: OpenPage, served: Service) -> None:
    page = open_page(key=ADMIN, of=served)
    page.wait_for_selector(".reward")
    page.keyboard.press("0")
    acme = page.locator("#organisation-rows tr", has_text="acme@1")
    expect_all(acme, "acme", SCRIPT, "acme@2 for 5.0 %", "1 live", "1,000 of 1,000 (100.0 %) tokens", "canary")
    assert acme.locator("td.bad").first.inner_text().endswith("tokens")
    assert page.locator("#organisation-rows tr").count() == 3
    home, edge = (page.locator("#cluster-rows tr", has_text=name) for name in ("west", "east"))
    expect_all(home, SCRIPT, "home", "version 5", "no release")
    expect_all(edge, "edge", "version 3", "2 releases", "1,234 records", "10.0 min ago")
    assert edge.locator("td.wrong").inner_text() == "10.0 min ago"
    assert page.title() == "Onward"
    assert page.locator("main img, main script").count() == 0


def expect_all(row: Any, *texts: str) -> None:
    row.wait_for()
    shown = row.inner_text()
    assert not [text for text in texts if text not in shown], shown


def test_a_session_is_erased_once_its_cost_was_shown_and_its_name_was_typed_and_nobody_refused_does(
    open_page: OpenPage, served: Service, tmp_path: Path
) -> None:
    for version, numbers in {2: (0, 1), 3: (2, 3), 4: (4, 5), 5: (6, 3)}.items():
        learned(served, version, *numbers)
    page = open_page("#organisations", of=served)
    page.locator("#erase-kind").select_option("session")
    page.locator("#erase-name").fill(SESSION)
    page.locator("#erase-form button").click()
    foreseen, do = page.locator("#order-foreseen"), page.locator("#order-do")
    foreseen.get_by_text("It selects").wait_for()
    assert "and makes 3 updates again" in foreseen.inner_text()
    assert "1 session with" in foreseen.inner_text()
    assert page.locator("#typed-asked").inner_text() == SESSION
    page.locator("#why").fill("asked by mail")
    assert do.is_disabled()
    page.locator("#typed").press_sequentially(SESSION[:-1])
    page.keyboard.press("Enter")
    assert do.is_disabled()
    page.locator("#typed").press_sequentially(SESSION[-1])
    assert do.is_enabled()
    do.click()
    page.locator("#order-problem", has_text="this API key lacks the scope operate").wait_for()
    assert orders(served) == []
    page.locator("#admin-key").fill(ADMIN)
    assert do.is_disabled(), "another key may see something else"
    page.locator("#admin-key").blur()
    give(page, "asked by mail", ADMIN)
    page.locator("#order").wait_for(state="hidden")
    (order,) = orders(served)
    assert (order.kind, order.subject, order.why, order.by) == ("session", SESSION, "asked by mail", "ada")
    row = page.locator(".erasure", has_text="erasure 1")
    expect_all(row, "Said beforehand: 3 updates to make again", "due ", "by ada: asked by mail", "store: ")
    told = {"first_use": base_ref(2), "start": base_ref(1), "updates": 4, "began_at": START}
    with served.store.work() as work:
        work.erasures.wait_for(1, "the learner learns again without it")
        work.exclusions.report(order.exclusions[0], Relearning(**told, made_again=2))  # type: ignore[arg-type]
    row.get_by_text("Made again so far: 2.").wait_for()
    assert row.locator("progress").get_attribute("value") == "2"
    assert "Waits: the learner learns again without it" in row.inner_text()
    with served.store.work() as work:
        work.erasures.took(1, "log", Step(removed={"records": 4}, note="rewritten"))
        work.erasures.end(1, SystemClock().now(), json.dumps({"statement": "of one"}))
    button = row.locator("button", has_text="statement")
    button.wait_for()
    assert "log: 4 records, rewritten" in row.inner_text()
    with page.expect_download() as downloading:
        button.click()
    downloading.value.save_as(tmp_path / "statement.json")
    assert downloading.value.suggested_filename == "erasure-1.json"
    assert json.loads((tmp_path / "statement.json").read_text()) == {"statement": "of one"}


def test_what_there_is_not_cannot_be_erased_and_is_refused_with_the_reason(
    open_page: OpenPage, served: Service
) -> None:
    page = open_page("#organisations", key=READER, of=served)
    page.locator("#erase-name").fill("nobody")
    page.locator("#erase-form button").click()
    page.locator("#order-foreseen", has_text=re.compile("no turn of user nobody in namespace default")).wait_for()
    page.locator("#typed").fill("nobody")
    assert page.locator("#order-do").is_disabled()
    page.keyboard.press("Escape")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert inference_id(3) not in page.locator("#erasure-list").inner_text()


def orders(service: Service) -> list[Any]:
    with service.store.look() as view:
        return view.erasures.newest(None, 10)
