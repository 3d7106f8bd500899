"""The console at `/` in a real browser, over a real store: what an operator sees."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from api_harness import Service, serve
from console_pages import ADMIN, ANOTHERS, KEYS, LIVE, READER, START, OpenPage, chromium, open_page, world
from console_world import SCRIPT, TURNS, VERSIONS, inference_id, put_rewarded, reward, some_good, turn
from playwright.sync_api import Browser, Page, Route, expect

from core.ids import SessionId

__all__ = ["chromium", "open_page", "world"]  # fixtures

VIEWS = ("overview", "rewards", "curves", "releases", "alarms", "health", "sessions", "clients", "drafts")
WIDTHS = (400, 1600)
FIRST, SECOND = "session-00003", "session-00004"


@pytest.mark.timed
def test_it_is_there_within_a_second(open_page: OpenPage) -> None:
    """The best of several loads counts, and the limit grows with the load of the machine."""
    limit_ms = 1000 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    took_ms: list[float] = []
    while not took_ms or (min(took_ms) > limit_ms and len(took_ms) < 5):
        page = open_page()
        page.wait_for_selector(".reward")
        took_ms.append(page.evaluate("performance.now()"))
    assert min(took_ms) < limit_ms, took_ms


@pytest.mark.parametrize("width", WIDTHS)
def test_every_view_fits_its_window(open_page: OpenPage, width: int) -> None:
    page = open_page(width=width)
    shown = {
        "overview": "#next-steps .row",
        "rewards": ".reward",
        "curves": "canvas",
        "releases": ".version",
        "alarms": "#alarm-list li",
        "health": "#serving .card",
        "sessions": "#session-list .row",
        "clients": "#client-rows td + td",
        "drafts": "#draft-list li",
    }
    for number, view in enumerate(VIEWS, 1):
        page.keyboard.press(str(number))
        page.wait_for_selector(f"#{view} {shown[view]}")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
        assert page.locator("main > section:visible").count() == 1
        expect(page.get_by_role("link", name="Documentation")).to_have_attribute("href", "docs/")
    page.goto(f"{page.url.split('#')[0]}#turn/{inference_id(7)}")
    page.wait_for_selector("#story .tokens")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize(("key", "told"), [(READER, False), (ADMIN, True)])
def test_sums_of_all_namespaces_are_shown_to_an_admin_alone(open_page: OpenPage, key: str, told: bool) -> None:
    page = open_page("#health", key=key)
    page.wait_for_selector("#serving .card")
    cards, sizes = page.locator("#cards").inner_text(), page.locator("#serving").inner_text()
    assert ("Turns answered" in cards, "Queue" in sizes, "Your last minute" in cards) == (told, told, True)
    behind = page.locator("#stages tr").first.locator("td").nth(2)
    expect(behind).to_have_text(re.compile(r"^[0-9]" if told else "^–$"))


def test_the_keyboard_leads_to_a_turns_story_and_back(open_page: OpenPage) -> None:
    page = open_page()
    page.keyboard.press("/")
    page.keyboard.type(f"turn:{inference_id(TURNS - 1)}")
    expect(page.locator(".reward")).to_have_count(2)
    for key in ("Escape", "j", "ArrowDown", "k", "Enter"):
        page.keyboard.press(key)
    story = page.locator("#story")
    first = story.locator(".tokens .token").first
    expect(first).to_have_text("s")
    expect(first).to_have_attribute("title", re.compile(f"probability 100.0 %\nsampled by version {LIVE}$"))
    assert story.locator("sup").all_inner_texts() == [f"v{LIVE}", f"v{VERSIONS}"]
    expect(story.locator(".timeline li")).to_have_count(5)
    assert [row.split("\t") for row in story.locator("tbody tr").all_inner_texts()] == [
        ["accepted", "+0.00", "+0.00"],
        ["effort", "−0.10", "–"],
        ["rejected", "–", "−0.50"],
        ["reward", "−0.10", "−0.50"],
    ]
    page.keyboard.press("Escape")
    expect(story).to_be_hidden()
    assert page.evaluate("document.activeElement.matches('.reward')")
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()


def test_what_users_write_stays_text(open_page: OpenPage) -> None:
    page = open_page(f"#turn/{inference_id(TURNS - 1)}")
    story = page.locator("#story")
    expect(story.locator(".message").nth(1)).to_contain_text(SCRIPT)
    expect(story.locator(".timeline")).to_contain_text(f"comment {TURNS - 1} {SCRIPT}\\u{{202e}}si ti")
    page.goto(page.url.split("#")[0] + "#releases")
    expect(page.locator("#timeline")).to_contain_text(SCRIPT)
    assert page.title() == "Onward"
    assert page.locator("main img, main script").count() == 0


def put_turn(service: Service, number: int) -> None:
    told = turn(number, START)
    with service.store.work() as work:
        work.turns.put([told])
        work.rewards.put([(0, reward(told, 0, {"accepted": 1.0, f"mark{number}": 0.0}))])


def test_the_filter_leaves_what_matches(open_page: OpenPage) -> None:
    page = open_page()
    page.wait_for_selector(".reward")
    page.keyboard.press("/")
    page.keyboard.type("workload:suggestion session-0007")
    expect(page.locator(".reward")).to_have_count(7)
    assert all("suggestion · session-0007" in text for text in page.locator(".reward .meta").all_inner_texts())
    expect(page.locator("#shown")).to_have_text("7 of 200 rewards")
    page.locator("#filter").fill("name:rejected")
    for text in page.locator(".reward .why").all_inner_texts():
        assert "rejected" in text
    page.locator("#filter").fill("nobody said this")
    expect(page.locator("#stream")).to_have_text(re.compile("None of these match: .*"))
    expect(page.locator("#shown")).to_have_text("0 of 200 rewards")
    page.locator("#filter").fill("")
    page.locator("#older").click()
    expect(page.locator(".reward").nth(TURNS + TURNS // 8 - 1)).to_be_attached()


def test_rewards_come_in_by_themselves_unless_paused(open_page: OpenPage, world: Service) -> None:
    page = open_page()
    page.wait_for_selector(".reward")
    put_turn(world, TURNS)
    first = page.locator(".reward .why").first
    expect(first).to_contain_text(f"mark{TURNS} ")
    page.keyboard.press("p")
    put_turn(world, TURNS + 1)
    page.keyboard.press("3")  # others are asked for meanwhile
    page.wait_for_selector("canvas")
    page.keyboard.press("2")
    assert f"mark{TURNS} " in first.inner_text()
    page.keyboard.press("p")
    expect(first).to_contain_text(f"mark{TURNS + 1} ")


def test_curves_say_their_values(open_page: OpenPage) -> None:
    page = open_page("#curves")
    page.wait_for_selector("canvas")
    expect(page.locator("#charts canvas")).to_have_count(7)
    expect(page.locator("#learner-charts canvas")).to_have_count(14)  # nothing is known of checkpoints
    by_term = page.locator("#learner-charts figure", has_text="Loss")
    expect(by_term.locator(".entry")).to_have_text(
        ["loss 0.00", "policy 0.167", "KL 0.333", "entropy 0.500", "KTO 3.83", "texts –", "words –"]
    )
    time_spent = page.locator("figure", has_text="The learner's time")
    expect(time_spent.locator(".entry").first).to_have_text("waiting 25.0 %")
    mass = page.locator("#learner-charts figure", has_text="Reward mass")
    expect(mass.locator(".entry")).to_have_text(
        ["a minute 4.00", "an hour 0.00", "a day 0.00", "older 4.17", "left out 4.33"]
    )
    pace = page.locator("#learner-charts figure", has_text="Pace")
    expect(pace.locator(".entry")).to_have_text(["tokens 3", "positions 3"])
    by_version = page.locator("figure", has_text="Reward by version")
    expect(by_version.locator(".entry")).to_have_text([re.compile(r"live \d\.\d\d"), "canary 0.55"])
    assert page.evaluate(
        "[...document.querySelectorAll('canvas')].every(canvas =>"
        " canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(Boolean))"
    )
    page.locator("#workload").select_option("suggestion")
    expect(page.locator("#counted")).to_contain_text(f"{TURNS // 5} turns")


WORDS_OF_CANVASES = """
const write = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
  const isTurned = this.getTransform().b !== 0;
  (this.canvas.words ??= []).push([String(text), isTurned]);
  return write.call(this, text, ...rest);
};
"""


def test_each_axis_says_what_it_counts(open_page: OpenPage) -> None:
    page = open_page("#curves")
    page.add_init_script(WORDS_OF_CANVASES)
    page.reload()
    expect(page.locator("#charts canvas")).to_have_count(7)
    expect(page.locator("#learner-charts canvas")).to_have_count(14)
    charts = page.locator("#curves figure:has(canvas)").evaluate_all(
        "all => all.map(found => [found.querySelector('h3').textContent, found.querySelector('canvas').words])"
    )
    along = {title: [text for text, turned in words if not turned] for title, words in charts}
    up = {title: {text for text, turned in words if turned} for title, words in charts}
    assert [title for title, words in along.items() if not {"time, UTC", "version"} & set(words)] == []
    assert [title for title, words in up.items() if len(words) != 1 or words & {"", "undefined"}] == []
    assert up["Effort"] == {"tokens"}
    assert "version" in along["Effort"]


def swatches(page: Page) -> list[dict[str, str]]:
    """Return each drawn chart's series with their colours, as the legends have them."""
    entry = "[entry.childNodes[1].data.trim(), entry.firstChild.className.replace('swatch ', '')]"
    entries = f"found => Object.fromEntries([...found.querySelectorAll('.entry')].map(entry => {entry}))"
    return [figure.evaluate(entries) for figure in page.locator("#curves figure:has(.entry)").all()]


def test_a_series_has_one_colour_wherever_it_is_drawn(open_page: OpenPage) -> None:
    page = open_page("#curves")
    page.wait_for_selector("#learner-charts canvas")
    before = swatches(page)
    assert {name: each for chart in before for name, each in chart.items() if name in ("live", "canary")} == {
        "live": "c0",
        "canary": "c1",
    }
    for name in {name for chart in before for name in chart}:
        assert len({chart[name] for chart in before if name in chart}) == 1, name
    assert all(len(set(chart.values())) == len(chart) for chart in before)
    page.locator("#workload").select_option("suggestion")
    page.reload()
    page.wait_for_selector("#learner-charts canvas")
    assert swatches(page) == before
    ask = "async names => Object.fromEntries((await import('./console/charts.js')).colours(names))"
    many = ["holdback", "effort", "accepted", "rejected", "edited", "live"]
    found = page.evaluate(ask, many)
    assert page.evaluate(ask, many[::-1]) == found
    assert (found["live"], found["holdback"], len(set(found.values()))) == (0, 2, len(many))
    assert len(set(page.evaluate(ask, [f"part {number}" for number in range(9)]).values())) == 8, "all there are"


def test_the_arms_are_drawn_apart(open_page: OpenPage, tmp_path: Path) -> None:
    with serve(tmp_path / "service") as service:
        for version, arm in ((1, "live"), (1, "holdback"), (2, "live"), (3, "canary")):
            put_rewarded(service.store, version, some_good(20, version / 10), START, 0, arm=arm)
        page = open_page("#curves", of=service)
        entries = page.locator("figure", has_text="Reward by version").locator(".entry")
        expect(entries).to_have_text(["holdback 0.10", "live 0.20", "canary 0.30"])
        assert [entry.locator("i").get_attribute("class") for entry in entries.all()] == [
            f"swatch c{number}" for number in (2, 0, 1)
        ]
        page.close()


def test_sessions_are_searched_and_their_turns_opened_by_keyboard(open_page: OpenPage) -> None:
    page = open_page("#sessions")
    expect(page.locator("#session-list .row")).to_have_count(50)
    page.locator("#older-sessions").click()
    expect(page.locator("#session-list .row").nth(TURNS // 3 - 1)).to_be_attached()
    page.keyboard.press("/")
    page.keyboard.type("client:codex reward:>0.5")
    expect(page.locator("#sessions-shown")).to_have_text(re.compile(r"^1?\d sessions"))
    for text in page.locator("#session-list .row").all_inner_texts():
        assert "codex by responses" in text
        assert float(text.split()[0]) >= 0.5
    page.locator("#session-search").fill("session-00003")
    expect(page.locator("#session-list .row")).to_have_count(1)
    for key in ("Escape", "j", "Enter"):
        page.keyboard.press(key)
    tree = page.locator("#tree")
    expect(tree.locator(".row")).to_have_count(3)
    expect(tree.locator(".row").nth(1)).to_contain_text("openai-python by chat")
    expect(tree.locator(".row").nth(1)).to_contain_text("comment comment 10 <img src=x")
    for key in ("j", "Enter"):
        page.keyboard.press(key)
    expect(page.locator("#sessions #story .tokens")).to_contain_text("sum of 10")
    expect(page.locator("#story .facts")).to_contain_text("openai-python, by chat")
    page.keyboard.press("Escape")
    expect(page.locator("#story")).to_be_hidden()
    expect(tree).to_be_visible()
    page.keyboard.press("Escape")
    expect(tree).to_be_hidden()
    expect(page.locator("#session-list .row")).to_have_count(1)
    assert page.title() == "Onward"


def test_a_search_that_is_refused_says_why(open_page: OpenPage) -> None:
    page = open_page("#sessions")
    page.locator("#session-search").fill("since:yesterday")
    expect(page.locator("#problem")).to_contain_text("since: must be a time")
    page.locator("#session-search").fill("since:2026-01-01")
    expect(page.locator("#problem")).to_be_hidden()


def test_what_a_look_by_itself_found_refused_is_not_said_of_the_next_search(open_page: OpenPage) -> None:
    page = open_page("#sessions", now=START)  # no look follows by itself: the clock stands still
    page.locator("#session-search").fill("since:yesterday")
    expect(page.locator("#problem")).to_contain_text("since: must be a time")
    with page.expect_response(re.compile("since=yesterday")):
        page.evaluate("document.dispatchEvent(new Event('changed'))")
    page.locator("#session-search").fill("since:2026-01-01")
    expect(page.locator("#problem")).to_be_hidden()


def go(hash_: str) -> Callable[[Page], None]:
    return lambda page: page.evaluate("to => { location.hash = to; }", hash_)


def search(words: str) -> Callable[[Page], None]:
    return lambda page: page.locator("#session-search").fill(words)


@pytest.mark.parametrize(
    ("first", "asked", "second", "shown", "text"),
    [
        (go(f"session/{FIRST}"), rf"/v1/sessions/{FIRST}", go(f"session/{SECOND}"), "#tree h2", SECOND),
        (go(f"turn/{inference_id(7)}"), "/v1/turns/", go(f"turn/{inference_id(8)}"), "#story .tokens", "sum of 8"),
        (search(FIRST), rf"/v1/sessions\?session={FIRST}", search(SECOND), "#session-list .row", SECOND),
    ],
    ids=["a session", "a turn", "a search"],
)
def test_the_answer_to_what_was_asked_before_is_not_shown(
    open_page: OpenPage,
    first: Callable[[Page], None],
    asked: str,
    second: Callable[[Page], None],
    shown: str,
    text: str,
) -> None:
    held: list[Route] = []
    page = open_page("#sessions")
    page.wait_for_selector("#session-list .row")
    page.route(re.compile(asked), lambda route: held.append(route), times=1)
    first(page)
    while not held:
        page.wait_for_timeout(10)
    second(page)
    expect(page.locator(shown)).to_have_count(1)
    expect(page.locator(shown)).to_contain_text(text)
    with page.expect_response(held[0].request.url) as late:
        held[0].continue_()
    late.value.finished()
    page.wait_for_timeout(300)  # whatever the page makes of it
    expect(page.locator(shown)).to_have_count(1)
    assert text in (page.locator(shown).text_content() or "")


def test_what_is_open_is_refused_under_a_key_that_may_not_see_it(open_page: OpenPage) -> None:
    page = open_page(f"#session/{FIRST}")
    expect(page.locator("#tree .row")).to_have_count(3)
    page.locator("#key").fill(ANOTHERS)
    page.keyboard.press("Tab")
    expect(page.locator("#tree")).to_contain_text(f"no session {FIRST}")
    expect(page.locator("#tree .row")).to_have_count(0)
    page.keyboard.press("Escape")
    expect(page.locator("#session-list")).to_contain_text("No session")


def test_a_session_that_forks_is_drawn_as_a_tree(open_page: OpenPage, world: Service) -> None:
    first, *others = (turn(number, START) for number in range(9000, 9004))
    parents = (first.inference_id, first.inference_id, others[1].inference_id)
    forked = [msgspec.structs.replace(each, parent_id=parent) for each, parent in zip(others, parents, strict=True)]
    session_id = SessionId("a-session-that-forks")
    with world.store.work() as work:
        work.turns.put([msgspec.structs.replace(each, session_id=session_id) for each in (first, *forked)])
    page = open_page(f"#session/{session_id}")
    expect(page.locator("#tree .cut")).to_have_text([f"sum of {number}" for number in range(9000, 9004)])
    depths = page.locator("#tree li").evaluate_all("rows => rows.map(row => row.className)")
    assert depths == ["depth0", "depth1", "depth1", "depth1"]


def test_clients_are_told_with_what_they_get(open_page: OpenPage, world: Service) -> None:
    headers = {"user-agent": "Zed/1.2", "authorization": f"Bearer {ADMIN}"}
    assert world.chat("hi", headers=headers, functions=[{}]).status_code == 400
    page = open_page("#clients")
    codex = page.locator("#client-rows tr", has_text="codex")
    expect(codex.locator("td").nth(5)).to_contain_text("verbosity")
    refused = page.locator("#client-rows tr", has_text="zed").locator("td").nth(6)
    expect(refused).to_contain_text("unsupported")
    expect(page.locator("#month-counted")).to_contain_text("tokens have no price")
    expect(page.locator("#use-rows")).to_contain_text("Nothing has been counted in this month.")


def test_dark_where_the_system_is(open_page: OpenPage) -> None:
    shades = [
        open_page(scheme=scheme).evaluate("getComputedStyle(document.body).backgroundColor")
        for scheme in ("light", "dark")
    ]
    assert shades == ["rgb(246, 246, 244)", "rgb(22, 22, 24)"]


def test_what_is_wrong_is_said(world: Service, chromium: Browser) -> None:
    context = chromium.new_context()
    page = context.new_page()
    page.goto(world.url)
    expect(page.locator("#problem")).to_contain_text("send an API key: Authorization: Bearer KEY")
    page.locator("#key").fill(READER)
    page.keyboard.press("Tab")
    page.wait_for_selector("#next-steps .row")
    expect(page.locator("#problem")).to_be_hidden()
    world.store.broken = True
    try:
        expect(page.locator("#problem")).to_contain_text("the store does not answer")
    finally:
        world.store.broken = False
    expect(page.locator("#problem")).to_be_hidden()
    context.close()


_NARROW = """found => found.filter(each => {
    const words = document.createRange();
    words.selectNodeContents(each);
    const lines = new Set([...words.getClientRects()].map(line => Math.round(line.top))).size;
    return lines > 1 && words.getBoundingClientRect().width < each.parentElement.clientWidth / 2;
}).map(each => each.textContent)"""


def test_what_is_empty_says_how_it_begins(tmp_path: Path, open_page: OpenPage) -> None:
    """Of a service that nobody has used yet: each chart and each list, in every view."""
    with serve(tmp_path / "service", keys=KEYS) as service:
        page = open_page("#overview", key=ADMIN, of=service)
        said: dict[str, str] = {}
        for number, view in enumerate(VIEWS, 1):
            page.keyboard.press(str(number))
            page.wait_for_selector(f"#{view} .empty")
            for figure in page.locator(f"#{view} figure").all():
                expect(figure.locator(".empty")).to_be_visible()
            said |= dict.fromkeys(page.locator(f"#{view} .empty:visible").all_inner_texts(), view)
            narrow = page.locator(f"#{view} .empty:visible").evaluate_all(_NARROW)
            assert narrow == [], "each has the width of its list"
        figures = page.locator("figure").count()
        page.close()  # before what it asks is gone
    assert [words for words in said if not re.fullmatch(r"[A-Z].{12,}\.", words)] == []
    assert figures > 20
    assert set(said.values()) == set(VIEWS)


def test_the_words_beside_an_axis_stand_clear_of_its_numbers(open_page: OpenPage) -> None:
    page = open_page("#curves")
    place = page.locator("#learner-charts figure", has_text="Baseline").first.locator(".u-over")
    room = place.evaluate("""over => {
        const ink = document.createElement("canvas").getContext("2d");
        ink.font = "11px system-ui";
        const [tick, gap, words] = [10, 5, 16];
        return over.offsetLeft - tick - gap - words - ink.measureText("600.0 %").width;
    }""")
    assert room >= 0


def test_a_chart_whose_figures_are_unknown_says_what_it_lacks(open_page: OpenPage) -> None:
    """Versions have learned here, and none of them says what checkpoints take."""
    page = open_page("#curves")
    page.wait_for_selector("#learner-charts canvas")
    checkpoints = page.locator("#learner-charts figure", has_text="Checkpoints")
    expect(checkpoints.locator(".empty")).to_have_text("Nothing yet: it begins with a checkpoint.")
