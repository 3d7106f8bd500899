"""The console's page of drafts in a real browser: an operator accepts, edits and refuses."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from api_harness import Service, serve
from console_pages import ADMIN, KEYS, READER, OpenPage, chromium, give, open_page
from console_world import SCRIPT
from made_drafts import draft
from playwright.sync_api import expect

from core.operations.drafts import Draft
from serving.evals.cases import Case, load_suite
from serving.evals.mining.folder import SuiteFolder

__all__ = ["chromium", "open_page"]  # fixtures


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drafts") / "suite"


@pytest.fixture(scope="module")
def world(suite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = SuiteFolder(suite)
    folder.add([draft("one"), draft("two"), hostile()])
    with serve(tmp_path_factory.mktemp("service"), keys=KEYS, drafts=folder) as service:
        yield service


def hostile() -> Draft:
    """Return a draft whose user wrote a script."""
    made = draft("three")
    made.repository["branch"] = SCRIPT
    return made


def test_an_operator_edits_accepts_and_refuses_and_who_may_not_is_refused(open_page: OpenPage, suite: Path) -> None:
    page = open_page("#drafts")
    expect(page.locator("#drafts-counted")).to_have_text("3 of 3 wait for a decision")
    first = page.locator(".draft", has_text="sum one")
    expect(first).to_contain_text("user: Write total(xs): the sum of a list.")
    expect(first).to_contain_text("accepted True")
    first.get_by_role("button", name="edit").click()
    page.locator("textarea[name=group]").fill("lists")
    page.locator("textarea[name=messages]").fill("[")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#draft-problem")).to_contain_text("Messages:")
    page.locator("textarea[name=messages]").fill('[{"role": "user", "content": "Sum them"}]')
    page.get_by_role("button", name="Save").click()
    give(page, "", READER)
    expect(page.locator("#order-problem")).to_contain_text("operate")
    give(page, "clearer", ADMIN)
    expect(first).to_contain_text("user: Sum them")
    first.get_by_role("button", name="accept").click()
    give(page, "as it is used", ADMIN)
    expect(first).to_contain_text(re.compile("accepted .* by ada: as it is used · cases/sum-one.toml"))
    expect(first.get_by_role("button")).to_have_count(0)
    second = page.locator(".draft", has_text="sum two")
    second.get_by_role("button", name="refuse").click()
    give(page, "", ADMIN)
    expect(second).to_contain_text("refused")
    expect(page.locator("#drafts-counted")).to_have_text("1 of 3 wait for a decision")
    (case,) = load_suite(suite).cases
    assert isinstance(case, Case)
    assert (case.group, case.request()) == ("lists", [{"role": "user", "content": "Sum them"}])
    assert len((suite / "audit.jsonl").read_text().splitlines()) == 3


def test_what_users_wrote_stays_text(open_page: OpenPage) -> None:
    page = open_page("#drafts")
    expect(page.locator(".draft", has_text="sum three")).to_contain_text(SCRIPT)
    assert page.title() == "Onward"
