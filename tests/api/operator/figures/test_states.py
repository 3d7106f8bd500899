"""The console's first screen in four states that traffic brings about: better, stuck, worse, attacked."""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from api_harness import Service, serve, wait_for
from console_pages import START, OpenPage, chromium, open_page, world
from console_world import policy
from playwright.sync_api import Locator, Page, expect
from stepping import step

from core.clock import ManualClock
from core.events import Completion, Outcome, Release, ReleaseState, Topic
from core.ids import (
    InferenceId,
    Namespace,
    base_ref,
    new_group_id,
    new_inference_id,
    new_outcome_id,
    new_session_id,
)
from core.reward_spec import RewardSpec
from core.settings import MonitorSettings, ScoringSettings
from scoring.stage import Scorer
from scoring.watching import MonitorStage

__all__ = ["chromium", "open_page", "world"]  # fixtures

SPEC = RewardSpec.model_validate({"outcomes": {"accepted": {"type": "boolean", "weight": 1}}})
USERS = [f"user-{number}" for number in range(25)]
WIDTHS = (1440, 390)


@dataclass
class Traffic:
    """Users who ask a service, and say whether they take its answers; its rewards and monitors follow at once."""

    service: Service
    clock: ManualClock
    scorer: Scorer
    watcher: MonitorStage
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    asked: int = 0

    def work(self, count: int, share: float, users: list[str] = USERS) -> None:
        """Have users ask, a turn every other second, and take that share of the answers.

        Each asks once over HTTP. What they ask further is logged as that was, since requests take long."""
        plan = [
            (users[(self.asked + number) % len(users)], self.rng.random() < share) for number in range(1, count + 1)
        ]
        firsts = {user: number for number, (user, _) in reversed(list(enumerate(plan)))}
        asked = {user: self._ask(user, self.asked + number, plan[number][1]) for user, number in firsts.items()}
        made = self._logged(asked)
        later: list[Completion | Outcome] = []
        for number, (user, takes) in enumerate(plan):
            if number != firsts[user]:
                later += self._again(*made[user], takes)
        self.service.log.append_blocking(Topic.TURNS, later)
        self.asked += count
        self.clock.advance(60.0)
        wait_for(self._is_seen, "rewards, and a look at them")

    def _ask(self, user: str, number: int, takes: bool) -> InferenceId:
        self.clock.advance(2.0)
        turn = self.service.chat(f"Write function {number}.", user=user).json()["onward"]["inference_id"]
        told = {"inference_id": turn, "metric_name": "accepted", "value": takes, "user": user}
        assert self.service.post("/v1/feedback", told).status_code == 200
        return InferenceId(turn)

    def _logged(self, asked: dict[str, InferenceId]) -> dict[str, tuple[Completion, Outcome]]:
        """Return each user's turn, and what was said of it, as they were logged."""
        found: dict[InferenceId, Outcome] = {}

        def are_there() -> bool:
            with self.service.store.look() as view:
                told = view.outcomes.newest_of_turns(Namespace("default"), list(asked.values()), 1000, 1 << 30)
            found.update({each.inference_id: each for each in told if each.inference_id is not None})
            return len(found) == len(asked)

        wait_for(are_there, "what was said")
        with self.service.store.look() as view:
            turns = view.turns.get_many(list(asked.values()))
        return {user: (turns[turn], found[turn]) for user, turn in asked.items()}

    def _again(self, turn: Completion, said: Outcome, takes: bool) -> tuple[Completion, Outcome]:
        self.clock.advance(2.0)
        session, now = new_session_id(), self.clock.now()
        about: dict[str, Any] = {"inference_id": new_inference_id(session), "session_id": session, "received_at": now}
        told = about | {"session_id": said.session_id and session, "outcome_id": new_outcome_id(), "observed_at": now}
        again = msgspec.structs.replace(turn, **about, group_id=new_group_id())
        return again, msgspec.structs.replace(said, **told, value=takes)

    def _is_seen(self) -> bool:
        step(self.scorer)
        with self.service.store.look() as view:
            if len(view.rewards.after(Namespace("default"), 0, 10_000)) < self.asked:
                return False
        read = 1
        while read:
            read = step(self.watcher)
        return True

    def release(self, version: int, state: ReleaseState = "live") -> None:
        with self.service.store.work() as work:
            why, by = ("within its bounds", "gate") if state == "live" else ("its users were rewarded less", "canary")
            made = Release(version=base_ref(version), cluster="local", state=state, why=why, by=by, at=self.clock.now())
            work.releases.put(made)
        if state == "live":
            self.service.policy.live_version = base_ref(version)


@pytest.fixture
def traffic(tmp_path: Path) -> Iterator[Traffic]:
    clock = ManualClock(START)
    with serve(tmp_path / "service", clock=clock, spec=SPEC, user_share=0.05) as service:
        log, store = service.log._log, service.store._store
        with store.work() as work:
            for _ in range(4):
                work.policies.put(policy(work.policies.allocate(START).version, START))
        scorer = Scorer(log, store, SPEC, ScoringSettings(tick_s=1e-6), clock)
        watcher = MonitorStage(log, store, SPEC, MonitorSettings(every_s=1e-6, maturity_s=0), clock)
        try:
            yield Traffic(service, clock, scorer, watcher)
        finally:
            watcher.close()
            scorer.close()


def is_on_the_first_screen(page: Page, found: Locator) -> bool:
    box, size = found.bounding_box(), page.viewport_size
    assert box is not None
    assert size is not None
    return box["y"] >= 0 and box["y"] + box["height"] <= size["height"] and box["x"] + box["width"] <= size["width"]


def top_of(found: Locator) -> float:
    box = found.bounding_box()
    assert box is not None
    return box["y"]


def check(state: str, press: str, done: str, page: Page, pictures: Path) -> None:
    """Check what a page shows first, and that one press does what it says; where that is an order, undo it."""
    word, act = page.locator("#state"), page.locator("#next-steps .row").first.locator("button, a", has_text=press)
    expect(word).to_have_text(state)
    page.wait_for_selector("#overview-charts canvas")
    name = f"{state.lower()}-{page.evaluate('innerWidth')}.png"
    page.screenshot(path=pictures / name)
    assert is_on_the_first_screen(page, word)
    assert is_on_the_first_screen(page, act)
    live, switches, words = (top_of(page.locator(name)) for name in ("#live", "#switches", "#gain"))
    assert abs(live - switches) < 12, "the header's first line has both"
    assert switches < top_of(word) < words + 12, "then comes the state, and with it or below it what is said of it"
    if page.evaluate("innerWidth") < 500:
        assert top_of(word) < top_of(page.locator("#docs")), "what is seldom needed comes below"
    is_wrong = state != "Better"
    first_words = page.locator("#gain b:not(.bad)")
    expect(first_words).to_have_count({"Better": 2, "Stuck": 1}.get(state, 0))
    if state == "Stuck":
        expect(first_words).to_have_text("Releases are stuck")
    if is_wrong:
        expect(page.locator(":is(.gain, #standing) .good")).to_have_count(0)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    act.click()
    if done.startswith("#"):
        expect(page.locator(done)).to_be_visible()
        return
    order, undo = done.split(", ")
    done_bar, back = page.locator("#done"), page.locator("#done button", has_text="undo")
    expect(done_bar).to_contain_text(f"Done: {order}.")
    assert is_on_the_first_screen(page, back)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.screenshot(path=pictures / f"done-{name}")
    back.click()
    expect(done_bar).to_contain_text(f"Done: {undo}.")
    expect(page.locator("#order")).to_be_hidden()


def test_the_first_screen_says_which_of_four_states_it_is_and_what_to_press(
    traffic: Traffic, open_page: OpenPage, tmp_path: Path
) -> None:
    def look(state: str, press: str, done: str) -> None:
        for width in WIDTHS:
            page = open_page("", width=width, key="", of=traffic.service, now=traffic.clock.now())
            check(state, press, done, page, tmp_path)
            page.close()

    traffic.release(1)
    traffic.work(60, 0.3)
    traffic.release(2)
    traffic.work(30, 0.9)
    traffic.release(3)
    traffic.work(120, 0.9)
    look("Better", "see curves", "#curves")
    traffic.work(150, 0.9)
    look("Stuck", "see health", "#health")
    traffic.release(4)
    traffic.work(190, 0.2)
    look("Worse", "back to version 3", "roll back to version 3, roll back to version 4")
    traffic.release(4, "rolled_back")
    traffic.release(3)
    traffic.work(150, 0.95, [*USERS, *["mallory"] * 25])
    look("Attacked", "freeze releases", "pin version 3, unpin version 3")
    page = open_page("", key="", of=traffic.service)
    page.locator("#next-steps a", has_text="see their sessions").click()
    expect(page.locator("#session-search")).to_have_value(re.compile("^user:[0-9a-f]{8}$"))
    user = page.locator("#session-search").input_value().removeprefix("user:")
    expect(page.locator("#session-list .row", has_not_text=f"user {user}")).to_have_count(0)
    expect(page.locator("#session-list .row", has_text=f"user {user}").first).to_be_visible()
    page.close()
