"""`/v1/overview` and the console's first page: how the service stands, and what to do next."""

import ast
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from api_harness import Service, serve
from console_pages import ADMIN, KEYS, START, OpenPage, chromium, give, open_page, world
from console_world import put_rewarded, reward, some_good, turn
from made_events import opening
from playwright.sync_api import expect

from api.operator.figures.next_steps import (
    STUCK_S,
    STUCK_TURNS,
    Loudest,
    StepFacts,
    SuggestedOrder,
    next_steps,
    state_of,
)
from core.clock import ManualClock
from core.events import Release
from core.ids import InferenceId, UserHash, base_ref
from core.operations import alarms as operations
from core.operations.alarm_advice import ADVICE
from core.operations.alarms import NO_MONITORS, StoredAlarm
from core.operations.exclusions import Exclusion, Findings
from core.operations.fleet import Experiment, OrderKind, Switches
from core.operations.servable import NOW as AT_ONCE
from core.operations.servable import Servable
from scoring.monitors import MONITORS

__all__ = ["chromium", "open_page", "world"]  # fixtures

NOW = datetime(2026, 1, 2, tzinfo=UTC)
DOCS = Path(__file__).resolve().parents[4] / "docs"
FALL = {"recent": 0.5, "reference": 0.75, "best_version": 40.0}
WORSE = {"verdict": "worse", "trend": "falls", "difference": -0.25, "turns": 300, "best": {"version": base_ref(40)}}


def facts(verdict: str = "better", lately: Any = None, **known: Any) -> StepFacts:
    improvement = {"verdict": verdict, "first": base_ref(1), "difference": 0.25 if verdict == "better" else -0.25}
    usual: dict[str, Any] = {
        "components": {"learner": "ok"}, "alarms": (), "is_held": False, "loudest": {}, "user_share": 0.05,
        "learns": True, "live": 44, "pinned": None,
        "held": (), "live_since": NOW, "usual_s": None,
        "rewarded_since": 0, "newest_reward": NOW, "requests": 100, "errors": 0, "canary": None, "soon": {40: AT_ONCE},
    }  # fmt: skip
    return StepFacts(improvement={**improvement, "lately": lately or {"verdict": "no difference"}}, **usual | known)


def alarm(monitor: str = "no_edits", **fields: Any) -> StoredAlarm:
    made = opening("a", monitor=monitor, meaning="It asks.", workload="chat", opened_at=NOW, **fields)
    return StoredAlarm(sequence=1, opening=made)


HOLDING = alarm(severity="critical", holds=("release",))
SAID = {"rollback": "o back to version", "pin": "reeze releases", "unpin": "npin it", "unhold": "et it go on"}
"""What a step says of an order, by its kind."""
BEGUN = Experiment(
    experiment_id="e", cluster="local", canary=base_ref(45), control=base_ref(44), share=0.2, salt="s", started_at=NOW,
    until=NOW + timedelta(days=1), figures={"users": 3.0, "control_users": 12.0, "needed_users": 20.0},
)  # fmt: skip
JUDGED = msgspec.structs.replace(BEGUN, figures={"users": 20.0, "control_users": 21.0, "needed_users": 20.0})
LOST = Servable(servable="lost", lost="exclusion 1 took it out", exclusion_id=1)
LATE = NOW + timedelta(seconds=STUCK_S)
STATES: dict[str, tuple[StepFacts, str, str, tuple[SuggestedOrder, ...]]] = {
    "all is well": (facts(), "better", "Rewards are 0.25 above those of version 1.", ()),
    "nothing has happened": (facts("first"), "first", "The first version serves, as it was given.", ()),
    "it is early": (facts("too early"), "too early", "It is too early to say whether it has become", ()),
    "nothing changes": (facts("no difference"), "no difference", "No difference from the first version is shown", ()),
    "it falls": (
        facts(lately=WORSE), "worse", "The newest 300 turns are rewarded 0.25 less than the earlier best, when mostly"
        " version 40 answered. They still fall.", (SuggestedOrder("rollback", 40), SuggestedOrder("pin", 44)),
    ),
    "it falls and is frozen": (
        facts(lately=WORSE, pinned=44), "worse", "The newest", (SuggestedOrder("rollback", 40),)
    ),
    "it falls, and the best is gone": (
        facts(lately=WORSE, soon={40: LOST}), "worse", "The newest 300 turns are rewarded 0.25 less",
        (SuggestedOrder("pin", 44),)
    ),
    "the best serves, and falls": (facts(lately=WORSE, live=40), "worse", "The newest", (SuggestedOrder("pin", 40),)),
    "it is worse than at first": (
        facts("worse"), "worse", "Rewards are 0.25 below those of version 1,",
        (SuggestedOrder("rollback", 1), SuggestedOrder("pin", 44)),
    ),
    "a stage is down": (facts(components={"learner": "down: x"}), "down", "learner: down: x.", ()),
    "a canary waits for users": (
        facts(canary=BEGUN, newest_reward=LATE, rewarded_since=STUCK_TURNS), "better",
        "Canary 45 waits for users: it was judged by 3 of 20, version 44 by 12 of 20.", (),
    ),
    "a canary has its users": (facts(canary=JUDGED), "better", "Rewards are 0.25 above those of version 1.", ()),
    "a canary has just begun": (
        facts(canary=msgspec.structs.replace(BEGUN, figures={})), "better", "Rewards are 0.25 above", ()
    ),
    "stages start": (
        facts(components={"api": "starting", "learner": "degraded: starting"}), "better", "Rewards are 0.25 above", ()
    ),
    "a stage lags": (facts(components={"learner": "degraded: it waits"}), "better", "learner: degraded: it waits.", ()),
    "a monitor warns": (
        facts(alarms=[alarm(severity="warning")]), "better", "Alarm no edits, workload chat: It asks.", ()
    ),
    "a monitor sees a fall": (
        facts(alarms=[alarm("worse_than_best", severity="warning", figures=FALL)]), "worse",
        "Alarm worse than best, workload chat: the same users' turns are rewarded 0.25 less than the earlier best, when"
        " mostly version 40 answered.", (SuggestedOrder("rollback", 40), SuggestedOrder("pin", 44)),
    ),
    "an alarm holds": (facts(alarms=[HOLDING], is_held=True), "held",
        "Alarm no edits, workload chat: It asks. It holds", ()
    ),
    "one user floods": (
        facts(alarms=[alarm("feedback_rate", severity="warning")], loudest={"a": Loudest("user", "ab12", 0.43)}),
        "attacked", "Somebody attacks, it seems: one user sends most of the feedback, and so decides much of what is"
        " learned (alarm feedback rate, workload chat). User ab12 has the most: 43% of the reward there.",
        (SuggestedOrder("pin", 44),),
    ),
    "it is attacked, and falls": (
        facts(lately=WORSE, pinned=44, alarms=[alarm("reward_mass", severity="warning")]), "attacked",
        "Somebody attacks, it seems: a few users have much of the reward, and so of what is learned (alarm reward", (),
    ),
    "another's alarm holds": (facts(is_held=True), "held", "An alarm of another namespace holds releases.", ()),
    "requests fail": (facts(errors=6), "down", "6 of the last minute's 100 requests were answered with an error.", ()),
    "nothing is released": (
        facts(rewarded_since=STUCK_TURNS, newest_reward=LATE, usual_s=42.0), "stuck", "Nothing was released for"
        " 5 minutes, although turns were rewarded all the time: usually a version goes live every 42 s.", (),
    ),
    "nothing is learned": (
        facts(rewarded_since=STUCK_TURNS, newest_reward=LATE, learns=False), "better", "The learner is turned off", ()
    ),
    "releases are frozen": (
        facts(pinned=44, rewarded_since=STUCK_TURNS, newest_reward=LATE), "frozen", "Releases are frozen: version 44",
        (SuggestedOrder("unpin", 44),),
    ),
    "a version is held": (
        facts(held=(45,)), "held", "Version 45 is held by an order.", (SuggestedOrder("unhold", 45),)
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", STATES)
def test_what_is_said_first_is_what_matters_most(case: str) -> None:
    known, state, what, orders = STATES[case]
    first = next_steps(known)[0]
    assert (first.state, first.orders) == (state, orders)
    assert first.what.startswith(what)
    assert first.do


@pytest.mark.parametrize("case", STATES)
def test_what_is_said_to_do_first_is_what_the_first_button_does(case: str) -> None:
    known = STATES[case][0]
    first = next_steps(known)[0]
    told = [(first.do.find(words), kind) for kind, words in SAID.items() if words in first.do]
    assert [kind for _, kind in sorted(told)] == [order.kind for order in first.orders]


@pytest.mark.parametrize("pinned", [None, 44])
@pytest.mark.parametrize("verdict", ["better", "worse"])
@pytest.mark.parametrize("lately", [WORSE, None])
@pytest.mark.parametrize("state", [None, "opened", "acknowledged"])
@pytest.mark.parametrize("best", [None, 40.0, 39.0])
def test_no_order_stands_twice_and_a_fall_is_told_once(
    pinned: int | None, verdict: str, lately: Any, state: str | None, best: float | None
) -> None:
    """An attack, what the headline says and an alarm of the same: the most urgent has the orders."""
    attack = alarm("feedback_rate")
    if state == "acknowledged":
        attack = msgspec.structs.replace(attack, acknowledged_at=NOW, acknowledged_by="ada")
    fall = alarm("worse_than_best", severity="warning", figures=FALL | {"best_version": best or 0.0})
    alarms = [each for each, is_there in ((attack, state), (attack, state), (fall, best)) if is_there]
    steps = next_steps(facts(verdict, lately, pinned=pinned, alarms=alarms))
    orders = [order for step in steps for order in step.orders]
    assert len(orders) == len(set(orders))
    fallen = [step for step in steps if step.state == "worse"]
    assert len(fallen) == (verdict == "worse") + bool(lately or best)
    calls = bool(fallen or state)
    assert (SuggestedOrder("pin", 44) in orders) == (calls and pinned is None)
    if lately and best:
        assert "They still fall. Alarm worse than best, workload chat, says so, too: by 0.25" in fallen[0].what
        assert fallen[0].severity == "critical"


def test_of_several_the_critical_come_first() -> None:
    known, opened = (alarm("reward_mass"), alarm("feedback_rate"))
    known = msgspec.structs.replace(known, acknowledged_at=NOW, acknowledged_by="ada")
    assert [bool(step.orders) for step in next_steps(facts(alarms=[known, opened]))] == [True, False]
    steps = next_steps(facts(lately=WORSE, alarms=[alarm(severity="warning")], held=(45,), errors=50))
    assert [step.severity for step in steps] == ["critical", "warning", "warning", "info"]


def test_an_attack_is_one_until_its_alarm_is_closed_and_what_bounds_it_is_said() -> None:
    known = msgspec.structs.replace(alarm("feedback_rate"), acknowledged_at=NOW, acknowledged_by="ada")
    step, _ = next_steps(facts(alarms=[known], pinned=44))
    assert (step.severity, state_of([step], "better")) == ("info", "attacked")
    assert step.do.startswith(
        "See what this user does; limit users, or the key that they come with. However much they send, one user is at"
        " most 5% of what is learned, or twice an even share where users are few. Nothing bounds several who send"
        " alike; and in the curves and in each version's mean reward all turns count in full."
    )
    assert step.do.endswith(" Releases are frozen at version 44. ada has acknowledged it.")
    (unbounded,) = next_steps(facts(alarms=[alarm("feedback_rate")], user_share=1.0))
    assert unbounded.do.startswith(
        "Freeze releases (the live version stays, and no other goes live until you unfreeze), then see what this user"
        " does; limit users, or the key that they come with. Nothing bounds it: one user teaches as much as they send"
        " (learner.users.max_share would bound it)"
    )
    assert unbounded.do.endswith(" Its alarm holds releases, until somebody acknowledges it.")
    closed = msgspec.structs.replace(known, closed_at=NOW)
    assert [step.state for step in next_steps(facts(alarms=[closed]))] == ["better"]


def opened_as() -> set[str]:
    """Return how the product's code names the alarms that it opens."""
    trees = (
        ast.parse(path.read_text())
        for folder in ("api", "core", "ingest", "learner", "onward", "scoring", "serving")
        for path in (DOCS.parent / folder).rglob("*.py")
    )
    calls = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call))
    opened = (call for call in calls if ast.unparse(call.func).split(".")[-1] == "Opening")
    return {ast.unparse(each.value) for call in opened for each in call.keywords if each.arg == "monitor"}


def test_every_alarm_has_its_advice_which_the_documentation_gives_too() -> None:
    assert set(ADVICE) == {monitor.name for monitor in MONITORS} | NO_MONITORS
    others = opened_as() - {"monitor.name", "'test'"}  # of the monitors' stage, and of `onward alerts test`
    assert {getattr(operations, name, name) for name in others} == NO_MONITORS, "whoever else opens one is known there"
    text = (DOCS / "monitors.md").read_text()
    parts = [part for block in text.split("\n\n") for part in (block.splitlines() if block[0] == "|" else [block])]
    told = [(name, " ".join(part.split())) for part in parts for name in re.findall(r'<a id="(\w+)"></a>', part)]
    assert sorted(name for name, _ in told) == sorted(ADVICE), "each has one paragraph, to which its alarms link"
    assert [name for name, part in told if f"`{name}`" not in part or ADVICE[name].rstrip(".") not in part] == []


def fallen(path: Path, keys: Any = ()) -> Any:
    return serve(path, keys=keys, clock=ManualClock(START + timedelta(seconds=1300)))


def fall(service: Service) -> None:
    """Version 2 is better than the first, and version 3, which serves, is worse than that."""
    for version, share, first in ((1, 0.3, 0), (2, 0.9, 200), (3, 0.5, 800)):
        put_rewarded(service.store, version, some_good(400, share), START, first)
        at = START + timedelta(seconds=first + 200)
        release = Release(version=base_ref(version), cluster="local", state="live", why="x", by="gate", at=at)
        with service.store.work() as work:
            work.releases.put(release)
    service.policy.live_version = base_ref(3)


def test_the_route_tells_all_of_it(tmp_path: Path) -> None:
    with fallen(tmp_path) as service:
        fall(service)
        with service.store.work() as work:
            work.fleet.put_switches("local", Switches(held=frozenset({base_ref(2)})))
        found = service.get("/v1/overview").json()
        assert (found["state"], found["live"], found["pinned"], found["held"]) == ("worse", 3, None, [2])
        assert found["held_by_alarm"] is False
        assert found["live_since"] == "2026-01-02T00:16:40Z"
        assert found["improvement"] == service.get("/v1/improvement").json()
        assert found["next"][0]["orders"] == [{"kind": "rollback", "version": 2}, {"kind": "pin", "version": 3}]
        assert [step["state"] for step in found["next"]] == ["worse", "held"]
        assert service.get("/v1/overview?x=1").json()["error"]["param"] == "x"


def test_a_best_that_serves_no_more_is_not_gone_back_to(tmp_path: Path) -> None:
    with fallen(tmp_path) as service:
        fall(service)
        with service.store.work() as work:
            work.exclusions.add(Exclusion(), "they lie", "ada", START, Findings(left=(base_ref(2),)))
        found = service.get("/v1/overview").json()
        assert found["soon"]["2"]["exclusion_id"] == 1
        assert found["next"][0]["orders"] == [{"kind": "pin", "version": 3}]
        assert found["next"][0]["do"].startswith("Version 2, which did better, cannot serve any more. Freeze releases")


def test_the_route_names_who_attacks(tmp_path: Path) -> None:
    with fallen(tmp_path) as service:
        put_rewarded(service.store, 1, [0.1] * 240, START, 0)
        loud = msgspec.structs.replace(turn(0, START), inference_id=InferenceId("loud"), user_id=UserHash("ab12cd34ef"))
        with service.store.work() as work:
            work.turns.put([loud])
            work.rewards.put([(0, reward(loud, 0, {"accepted": 40.0}))])
            work.alarms.open(opening("a", monitor="reward_mass", severity="warning", workload="chat", opened_at=START))
            work.alarms.open(opening("b", opened_at=START))
        found = service.get("/v1/overview").json()
        assert (found["state"], found["next"][0]["view"], found["held_by_alarm"]) == ("attacked", "sessions", True)
        assert re.search(r"User ab12cd34 has the most: 6\d% of the reward there\.$", found["next"][0]["what"])
        assert found["next"][0]["search"] == "user:ab12cd34"
        assert found["next"][0]["do"].startswith("Freeze releases (the live version stays, and no other goes")


def test_an_operator_sees_the_fall_and_goes_back_in_one_press(open_page: OpenPage, tmp_path: Path) -> None:
    with fallen(tmp_path / "service", KEYS) as service:
        fall(service)
        key = {"authorization": f"Bearer {ADMIN}"}
        assert [service.chat(headers=key, **asked).status_code for asked in ({}, {"max_tokens": -1})] == [200, 400]
        for width in (1440, 390):
            page = open_page("", width=width, of=service)
            expect(page.locator("#next-steps .row").first).to_contain_text("The newest 300 turns are rewarded")
            expect(page.locator("#state")).to_have_text("Worse")
            expect(page.locator("#last-releases li")).to_have_count(3)
            minute, alarms = page.locator("#traffic .card").all()
            expect(minute.locator(".figure")).to_have_text("1 turns")
            expect(minute.locator("small")).to_have_text([re.compile("^2 requests, until .* UTC$"), "1 errors, 50.0 %"])
            expect(alarms.locator(".figure")).to_have_text("0")
            page.wait_for_selector("#overview-charts canvas")
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            if width == 1440:
                page.close()
        page.locator("#next-steps button", has_text="back to version 2").first.click()
        expect(page.locator("#order-foreseen")).to_contain_text("their mean reward less this one's")
        give(page, " ", ADMIN)  # nobody has to write why
        expect(page.locator("#order")).to_be_hidden()
        page.locator("#switches button", has_text="freeze releases").click()
        expect(page.locator("#done")).to_contain_text("Done: pin version 3.")  # the key is remembered: nothing is asked
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert [(order.kind, order.version, order.why) for order in service.orders.done] == [
            ("rollback", base_ref(2), "ordered in the console"),
            ("pin", base_ref(3), "ordered in the console"),
        ]
        with service.store.work() as work:
            work.fleet.put_switches("local", Switches(pinned=base_ref(3)))
        page.reload()
        expect(page.locator("#switches")).to_contain_text("frozen")
        expect(page.locator("#switches button")).to_have_text("unfreeze")
        page.goto(f"{service.url}/#releases")
        expect(page.locator("#going-back button")).to_have_text(
            ["back to the base: version 1", "back to the earlier best: version 2"]
        )
        undo = page.locator("#orders button")
        expect(undo).to_have_text(["undo"])  # of the newest alone: what came before it is not the last word
        undo.click()
        expect(page.locator("#order-title")).to_have_text("unpin version 3")
        with service.store.work() as work:  # somebody else did, and went back as well
            work.fleet.put_switches("local", Switches())
            taken = Release(version=base_ref(2), cluster="local", state="rolled_back", why="x", by="ada", at=NOW)
            work.releases.put(taken)
        page.reload()
        expect(page.locator("#orders li")).to_have_count(2)
        expect(page.locator("#orders button")).to_have_count(0)
        expect(page.locator(".version", has_text="version 2").locator("button")).to_have_text("roll back to")
        page.close()


def test_an_order_has_an_undo_as_long_as_that_would_change_nothing_else(open_page: OpenPage, tmp_path: Path) -> None:
    """To pin what no longer serves would let it serve again; what is live cannot be held."""
    with fallen(tmp_path / "service", KEYS) as service:
        fall(service)
        told: list[tuple[OrderKind, int]]
        told = [("pin", 2), ("unpin", 2), ("hold", 3), ("unhold", 3), ("pin", 3), ("unpin", 3)]
        with service.store.work() as work:
            for kind, version in (*told, *told[-2:]):
                work.orders.finish(work.orders.give("local", kind, base_ref(version), "x", "ada", NOW), NOW)
        page = open_page("#releases", of=service)
        orders = page.locator("#orders li")
        expect(orders).to_have_count(8)
        expect(page.locator("#orders button")).to_have_count(1)
        expect(orders.first.locator("button")).to_have_text("undo")
        page.close()


def test_what_is_frozen_is_what_serves_at_the_press(open_page: OpenPage, tmp_path: Path) -> None:
    """The page may not have heard of the newest order: to pin what it shows would let that serve again."""
    with fallen(tmp_path / "service", KEYS) as service:
        fall(service)
        page = open_page("", of=service)
        overview = service.get("/v1/overview", authorization=f"Bearer {ADMIN}").json()
        page.route("**/v1/overview", lambda route: route.fulfill(json=overview))  # as of before the order
        service.policy.live_version = base_ref(2)
        for place in ("#switches", "#next-steps"):
            page.locator(f"{place} button", has_text="freeze releases").click()
            expect(page.locator("#order-title")).to_have_text("pin version 2")
            page.keyboard.press("Escape")
        page.close()


def test_what_serves_no_more_has_no_button_and_what_a_canary_waits_for_is_said(
    open_page: OpenPage, tmp_path: Path
) -> None:
    with fallen(tmp_path / "service", KEYS) as service:
        fall(service)
        with service.store.work() as work:
            work.exclusions.add(Exclusion(), "they lie", "ada", START, Findings(left=(base_ref(2),)))
            work.experiments.put(msgspec.structs.replace(BEGUN, canary=base_ref(3), control=base_ref(1)))
        for width in (1440, 390):
            page = open_page("#releases", width=width, of=service)
            ways = page.locator("#going-back")
            expect(ways.locator("button")).to_have_text(["back to the base: version 1"])
            expect(ways).to_contain_text(
                "the earlier best, version 2, cannot serve any more: exclusion 1 took out what it"
            )
            row = page.locator(
                ".version", has_text="waits for users: version 3 was judged by 3 of 20, version 1 by 12 of 20."
            )
            expect(row).to_contain_text("UTC at the latest it is decided")
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            page.close()
