"""Excluding turns at the console, in a real browser."""

import re
from datetime import timedelta

from api_harness import Service
from console_pages import ADMIN, ANOTHERS, READER, START, OpenPage, chromium, give, open_page, world
from console_world import inference_id
from learned_turns import learned
from made_events import opening
from playwright.sync_api import Page, Route, expect

from core.ids import base_ref
from core.operations.exclusions import Exclusion, Relearning

__all__ = ["chromium", "open_page", "world"]  # fixtures


def enter_key(page: Page, key: str) -> None:
    page.locator("#admin-key").fill(key)
    page.locator("#admin-key").blur()


def test_an_operator_excludes_turns_and_includes_them_again_and_nobody_refused_does(
    open_page: OpenPage, world: Service
) -> None:
    for version, numbers in {2: (0, 1), 3: (2, 3), 4: (4, 5), 5: (6, 3)}.items():
        learned(world, version, *numbers)
    at = START + timedelta(minutes=1)
    alarm = opening("one", workload="chat", opened_at=at, window_start=START, window_end=at)
    with world.store.work() as work:
        assert work.alarms.open(alarm)
    page = open_page("#alarms")
    page.locator(".alarm button", has_text="exclude its turns").click()
    expect(page.locator("#exclude-names")).to_have_value("chat")
    expect(page.locator("#exclude-until")).to_have_value("2026-01-02T00:01:00Z")
    expect(page.locator("#exclude-namespace")).to_have_value("default")
    page.locator("#exclude-kind").select_option("turns")
    page.locator("#exclude-names").fill(f'{inference_id(3)}, "lost, and found"')
    page.locator("#exclude-form button").click()
    foreseen, unknown = page.locator("#order-foreseen"), "What it would change is not known: "
    expect(foreseen).to_have_text(f"{unknown}this API key lacks the scope operate")
    expect(page.locator("#order-do")).to_be_disabled()
    enter_key(page, ANOTHERS)
    expect(foreseen).to_have_text(f"{unknown}turns: there is no turn lost, and found in namespace default")
    expect(page.locator("#order-do")).to_be_disabled()
    page.keyboard.press("Escape")
    page.locator("#exclude-names").fill(f'"{inference_id(3)}"')
    page.locator("#exclude-form button").click()
    enter_key(page, ANOTHERS)
    expect(page.locator("#order-do")).to_be_enabled()
    page.locator("#admin-key").fill(READER)
    expect(page.locator("#order-do")).to_be_disabled()
    enter_key(page, ANOTHERS)
    expect(foreseen).to_contain_text("It selects 1 turn; versions 3 to 6 learned from 1 of them, or upon what did.")
    expect(foreseen).to_contain_text("The learner goes back to version 2 and makes 4 updates again")
    expect(foreseen).to_contain_text("`onward rollback 2` goes to it")
    give(page, "a siege", ANOTHERS)
    expect(page.locator("#order-title")).to_have_text("roll back to version 2")
    give(page, "until it is unlearned", ADMIN)
    expect(page.locator("#order")).to_be_hidden()
    assert [(order.kind, order.version.version) for order in world.orders.done] == [("rollback", 2)]
    order = page.locator(".exclusion", has_text="order 1")
    expect(order).to_contain_text("No learner has seen it yet.")
    expect(order).to_contain_text(re.compile(r"default · .* by eve: a siege"))
    told = {"first_use": base_ref(3), "start": base_ref(2), "updates": 4, "began_at": START}
    with world.store.work() as work:
        work.exclusions.report(1, Relearning(**told, made_again=1, emptied=1, per_s=0.5, left_s=4.0))
    expect(order).to_contain_text("2 of 4 updates made again, 0.5 a second, 4.0 s left")
    expect(order.locator("progress")).to_have_attribute("max", "4")
    with world.store.work() as work:
        work.exclusions.report(
            1, Relearning(**told, made_again=2, emptied=1, lost=1, version=base_ref(9), ended_at=START)
        )
    expect(order).to_contain_text(
        "Version 9, upon version 2: 2 updates made again, 1 held nothing else, 1 could not be made again."
    )
    order.locator("button", has_text="include again").click()
    give(page, "it was a test", ADMIN)
    expect(order).to_contain_text(re.compile(r"lifted .* by ada: it was a test"))
    expect(order.locator("button")).to_have_count(0)


def test_no_order_is_given_before_it_is_known_what_it_changes_nor_where_that_is_refused(
    open_page: OpenPage, world: Service
) -> None:
    page, before = open_page("#alarms"), len(orders(world))
    held: list[Route] = []
    page.route("**/v1/exclusions/preview", lambda route: held.append(route))
    page.locator("#exclude-kind").select_option("turns")
    page.locator("#exclude-names").fill(inference_id(9))
    page.locator("#exclude-form button").click()
    page.locator("#why").fill("a siege")
    enter_key(page, ADMIN)
    expect(page.locator("#order-foreseen")).to_have_text("…")
    expect(page.locator("#order-do")).to_be_disabled()
    page.locator("#why").press("Enter")
    assert len(orders(world)) == before
    for each in held:
        each.continue_()
    expect(page.locator("#order-foreseen")).to_contain_text("It selects 1 turn")
    page.locator("#order-do").click()
    expect(page.locator("#order")).to_be_hidden()
    assert len(orders(world)) == before + 1


def orders(world: Service) -> list[Exclusion]:
    with world.store.look() as view:
        return view.exclusions.in_order()
