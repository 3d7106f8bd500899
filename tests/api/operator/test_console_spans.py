"""The story of a turn of whose parts users said something."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from api_harness import Service, serve
from console_pages import KEYS, START, OpenPage, chromium, open_page
from console_world import SPANNED, fill, put_spanned
from playwright.sync_api import expect

__all__ = ["chromium", "open_page"]  # fixtures


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serve(tmp_path_factory.mktemp("spans") / "service", keys=KEYS) as service:
        fill(service.store, START)
        put_spanned(service.store, START)
        yield service


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_its_tokens_are_coloured_by_what_they_were_worth(open_page: OpenPage, scheme: str, tmp_path: Path) -> None:
    page = open_page(f"#turn/{SPANNED}", scheme=scheme)
    story = page.locator("#story")
    pieces = story.locator(".tokens .credit")
    expect(pieces).to_have_count(5)
    assert [piece.split(" ")[1] for piece in pieces.evaluate_all("all => all.map(each => each.className)")] == [
        "good", "even", "good", "bad", "good"
    ]  # fmt: skip
    assert pieces.nth(1).evaluate("one => one.localName") == "del"
    expect(story.locator(".tokens ins")).to_have_text("note")
    assert "−0.25, by rejected" in str(pieces.nth(3).get_attribute("title"))
    expect(story.locator(".words li")).to_have_count(1)
    expect(story.locator(".words li")).to_contain_text("“use our logger, not print”rejected, of tokens 10 to")
    colours = pieces.evaluate_all("all => all.map(each => getComputedStyle(each).backgroundColor)")
    assert colours[0] == colours[2] != colours[3] != colours[1]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.screenshot(path=tmp_path / f"spans-{scheme}.png")


def test_a_turn_that_was_spoken_of_as_a_whole_has_no_such_part(open_page: OpenPage) -> None:
    page = open_page("#turn/turn-00007")
    expect(page.locator("#story .timeline")).to_be_visible()
    assert page.locator("#story .credit, #story .words").count() == 0
