"""The console at `/` in a real browser, over a real store: what an operator decides by, and does."""

import re
from datetime import timedelta
from pathlib import Path

from api_harness import Service, serve, wait_for
from console_pages import ADMIN, KEYS, LIVE, READER, START, OpenPage, chromium, give, open_page, world
from console_world import SCRIPT, VERSIONS, policy, put_rewarded, some_good
from made_drafts import BY, SUMS, agent_draft, board, draft
from made_events import opening
from playwright.sync_api import Page, Route, expect

from core.ids import Namespace, base_ref
from core.operations.fleet import Switches
from serving.evals.cases import load_suite, read_suite
from serving.evals.drafts.deciding import reject

__all__ = ["chromium", "open_page", "world"]  # fixtures


def put_alarm(service: Service, alarm_id: str) -> None:
    found = opening(
        alarm_id,
        monitor="no_edits",
        meaning=f"The model asks where it should edit {SCRIPT}",
        workload="chat",
        figures={"share_now": 0.125, "share_before": 0.5},
        opened_at=START + timedelta(minutes=5),
        window_start=START,
        window_end=START + timedelta(minutes=4),
    )
    with service.store.work() as work:
        assert work.alarms.open(found)


def test_the_first_thing_said_is_whether_it_is_better(open_page: OpenPage, tmp_path: Path, world: Service) -> None:
    expect(open_page().locator("#gain")).to_contain_text(
        re.compile(
            r"^No difference from version 1 is shown: .*As good as its earlier best: .*"
            r"its earlier best: the \d+ turns up to 2026-01-02 .* UTC, most of them answered by version \d$"
        )
    )
    with serve(tmp_path / "of-its-own") as service:
        page = open_page(of=service)
        gain = page.locator("#gain")
        expect(gain).to_contain_text("Version 1 serves, as it was given: there is nothing to compare yet")
        expect(gain).to_contain_text("Its earlier best: known after 200 rewarded turns, 0 are there")
        put_rewarded(service.store, 1, some_good(100, 0.5), START, 0, arm="holdback")
        put_rewarded(service.store, 2, some_good(300, 0.9), START, 0)
        service.policy.live_version = base_ref(2)
        page.reload()
        first, second = gain.locator(":nth-child(1)"), gain.locator(":nth-child(2)")
        expect(first).to_have_class("good")
        expect(first).to_contain_text(re.compile(r"^Better than version 1 by \+0\.\d\d \(\+0\.\d\d to \+0\.\d\d\)$"))
        expect(gain.locator("small").last).to_contain_text("its earlier best: the 200 turns up to 2026-01-02 00:0")
        expect(gain).to_contain_text(
            "mean reward with its 95 % interval: 300 turns of version 2 against 100 turns of users held back on"
            " version 1 at the same time"
        )
        put_rewarded(service.store, 2, some_good(250, 0.3), START, 400)
        page.reload()
        expect(first).to_contain_text("Worse than its earlier best: −0.")
        expect(gain.locator("b")).to_have_count(1)  # what contradicts the state is said in small
        expect(first).to_have_class("bad")
        put_rewarded(service.store, 1, [0.0] * 100, START, 600, arm="holdback")
        page.reload()
        expect(second).to_contain_text("Better than version 1 by")  # and falls, so this is no good news
        expect(second).not_to_have_class("good")
        put_rewarded(service.store, 2, some_good(2000, 0.1), START, 1000)
        page.reload()
        expect(gain).to_contain_text(re.compile("(Worse than version 1|No difference from version 1 is shown): −0"))
        page.close()


def test_an_operator_promotes_and_rolls_back_and_nobody_refused_does(open_page: OpenPage, world: Service) -> None:
    """What can serve again, and how soon, is said beforehand; what cannot is not offered."""
    with world.store.work() as work:
        for version in (3, 4):
            work.files.drop(base_ref(version))
        work.files.give_up(base_ref(3), "its turns are gone")
        work.files.put_checkpoints([base_ref(4)])
    page = open_page("#releases")
    gone, rebuilt = (page.locator(".version", has_text=f"version {version}") for version in (3, 4))
    expect(gone).to_contain_text("cannot serve any more: its turns are gone")
    expect(gone.locator("button", has_text="roll back to")).to_have_count(0)
    expect(rebuilt).to_contain_text("can serve in about 1.0 s: it is made again first")
    expect(rebuilt.locator("button", has_text="roll back to")).to_have_count(1)
    expect(page.locator("#canary")).to_contain_text(f"Version {VERSIONS} against {VERSIONS - 1} for 20.0 % of users")
    proposed = page.locator(".version", has_text=f"version {VERSIONS}")
    expect(proposed).to_contain_text("proposed: pass: no worse by 5.0%")
    expect(proposed).to_contain_text("kept out of training: evals/cases (dddddddddddd, 40 solutions, 3 turns left out)")
    expect(rebuilt).not_to_contain_text("kept out of training")
    proposed.locator("button", has_text="promote").click()
    give(page, "it is better", READER)
    expect(page.locator("#order-problem")).to_have_text("this API key lacks the scope admin")
    give(page, "it is better", ADMIN)
    expect(page.locator("#order")).to_be_hidden()
    expect(page.locator("#done")).to_contain_text(f"Done: promote version {VERSIONS}.")
    page.locator(".version", has_text="version 2").locator("button", has_text="roll back to").click(modifiers=["Shift"])
    foreseen = page.locator("#order-foreseen")
    expect(foreseen).to_contain_text("the versioncan serve at once")
    expect(foreseen).to_contain_text("versions left behind4: 3 to 6")
    expect(foreseen).to_contain_text("turns learned from128")
    expect(foreseen).to_contain_text(re.compile(r"their mean reward less this one's[+−]\d\.\d\d \(.* to .*\)"))
    page.locator("#why").fill("it was kinder")  # the key is remembered
    page.keyboard.press("Enter")
    expect(page.locator("#order")).to_be_hidden()
    done = [(order.kind, order.version.version, order.why) for order in world.orders.done[-2:]]
    assert done == [("promote", VERSIONS, "it is better"), ("rollback", 2, "it was kinder")]
    orders = page.locator("#orders li")
    expect(orders.first).to_contain_text("roll back to version 2 by ada")
    expect(orders.nth(1)).to_contain_text(f"promote version {VERSIONS} by ada")
    kept = page.evaluate("JSON.stringify([{...sessionStorage}, {...localStorage}, document.cookie])")
    assert ADMIN not in kept
    assert READER in kept


def press_and_undo(page: Page, version: int, name: str, undo: str, key: str = "") -> None:
    page.locator(".version", has_text=f"version {version}").locator("button", has_text=re.compile(f"^{name}$")).click()
    if key:
        give(page, "", key)
    expect(page.locator("#order")).to_be_hidden()
    done = page.locator("#done")
    expect(done).to_contain_text(f"Done: {name} version {version}.")
    done.locator("button", has_text="undo").click()
    expect(done).to_contain_text(f"Done: {undo}.")
    expect(page.locator("#order")).to_be_hidden()


def test_each_order_is_one_press_and_its_undo_another(open_page: OpenPage, world: Service) -> None:
    """The key is asked for once. What served before comes back, whichever version that was."""
    page, before = open_page("#releases"), len(world.orders.done)
    press_and_undo(page, VERSIONS, "hold", f"unhold version {VERSIONS}", ADMIN)
    press_and_undo(page, VERSIONS, "promote", f"roll back to version {LIVE}")
    press_and_undo(page, 2, "roll back to", f"roll back to version {LIVE}")
    done = [(order.kind, order.version.version, order.why) for order in world.orders.done[before:]]
    assert done == [
        (kind, version, "ordered in the console")
        for kind, version in (
            *(("hold", VERSIONS), ("unhold", VERSIONS)),
            *(("promote", VERSIONS), ("rollback", LIVE)),
            *(("rollback", 2), ("rollback", LIVE)),
        )
    ]
    page.locator("#done .close").click()
    expect(page.locator("#done")).to_be_hidden()
    page.locator("#key").fill(ADMIN)
    page.locator("#key").blur()  # somebody else's, maybe
    page.locator(".version", has_text="version 2").locator("button", has_text="roll back to").click()
    expect(page.locator("#order")).to_be_visible()
    expect(page.locator("#admin-key")).to_have_value("")
    give(page, "", ADMIN)
    expect(page.locator("#order")).to_be_hidden()
    held: list[Route] = []
    page.route("**/v1/policies/*/hold", lambda route: held.append(route))
    hold = page.locator(".version", has_text=f"version {VERSIONS}").locator("button", has_text=re.compile("^hold$"))
    hold.click()
    wait_for(lambda: held or page.wait_for_timeout(10), "the order")
    page.locator("#key").fill(READER)
    page.locator("#key").blur()  # while it is under way: it remembers nothing any more
    held[0].continue_()
    expect(page.locator("#done")).to_contain_text(f"Done: hold version {VERSIONS}.")
    hold.click()
    expect(page.locator("#order")).to_be_visible()
    expect(page.locator("#admin-key")).to_have_value("")


def test_each_view_has_what_is_frozen_or_held_with_its_undo_and_without_keys_asks_for_none(
    open_page: OpenPage, tmp_path: Path
) -> None:
    with serve(tmp_path / "service") as service:
        page = open_page("#overview", key="", of=service)
        switches, done = page.locator("#switches"), page.locator("#done")

        def set_to(now: Switches, *names: str) -> None:
            with service.store.work() as work:
                work.fleet.put_switches("local", now)
            page.reload()
            for number in range(1, 10):
                page.keyboard.press(str(number))
                expect(page.locator("[role=tab]").nth(number - 1)).to_have_attribute("aria-selected", "true")
                expect(switches.locator("button")).to_have_text(names)

        def press(name: str, order: str, undo: str) -> None:
            switches.locator("button", has_text=name).click()
            expect(done).to_contain_text(f"Done: {order}.")
            done.locator("button", has_text="undo").click()
            expect(done).to_contain_text(f"Done: {undo}.")
            expect(page.locator("#order")).to_be_hidden()

        set_to(Switches(held=frozenset({base_ref(2)})), "freeze releases", "let it go on")
        expect(switches).to_contain_text("heldversion 2")
        press("freeze releases", "pin version 1", "unpin version 1")
        press("let it go on", "unhold version 2", "hold version 2")
        set_to(Switches(pinned=base_ref(1)), "unfreeze")
        press("unfreeze", "unpin version 1", "pin version 1")
        page.close()
        given = [(order.kind, order.version.version) for order in service.orders.done]
        assert given == [("pin", 1), ("unpin", 1), ("unhold", 2), ("hold", 2), ("unpin", 1), ("pin", 1)]


def test_older_versions_are_paged_to_and_the_newest_back(open_page: OpenPage, tmp_path: Path) -> None:
    with serve(tmp_path / "service") as service:
        with service.store.work() as work:
            for _ in range(125):
                work.policies.put(policy(work.policies.allocate(START).version, START))
        page = open_page("#releases", of=service)
        versions, older = page.locator("#versions .version b"), page.locator("#older-versions")
        newest = page.locator("#newest-versions")
        numbers = [f"version {number}" for number in range(125, 0, -1)]
        expect(versions).to_have_text(numbers[:60])
        expect(newest).to_be_hidden()
        older.click()
        expect(versions).to_have_text(numbers[60:120])
        with page.expect_response(re.compile(r"/v1/policies\?limit=60&before=66$")):
            pass  # it looks again
        expect(versions).to_have_text(numbers[60:120])
        newest.click()
        expect(versions).to_have_text(numbers[:60])
        for shown in (numbers[60:120], numbers[120:]):
            older.click()
            expect(versions).to_have_text(shown)
        expect(older).to_be_hidden()
        page.close()


def test_an_order_that_is_refused_says_why(open_page: OpenPage, world: Service) -> None:
    world.orders.refuse_with = ("conflict", "version 6 was taken back meanwhile")
    try:
        page = open_page("#releases")
        page.locator(".version", has_text=f"version {VERSIONS}").locator("button", has_text="hold").click()
        give(page, "wait", ADMIN)
        expect(page.locator("#order-problem")).to_have_text("version 6 was taken back meanwhile")
        expect(page.locator("#orders li").first).to_contain_text(
            "by adawait: refused: version 6 was taken back meanwhile"
        )
        page.keyboard.press("Escape")
        expect(page.locator("#order")).to_be_hidden()
    finally:
        world.orders.refuse_with = None


_MUTE = """() => {
    const ask = window.fetch;
    window.fetch = async (path, asked) => {
        const answer = await ask(path, asked);
        if (asked?.method === "POST") throw new DOMException("signal timed out", "TimeoutError");
        return answer;
    };
}"""


def test_an_order_without_an_answer_is_not_called_undone(open_page: OpenPage, tmp_path: Path) -> None:
    with serve(tmp_path / "of-its-own") as service:
        page = open_page("#releases", key="", of=service)
        page.evaluate(_MUTE)
        page.locator("#switches button", has_text="freeze").click()
        told = page.locator("#done")
        expect(told).to_contain_text("Not known whether this was done: pin version 1. No answer came in 15 s: check")
        assert [order.kind for order in service.orders.done] == ["pin"], "it arrived all the same"
        page.close()


def test_turns_are_excluded_after_a_look_at_what_that_changes(open_page: OpenPage, world: Service) -> None:
    with world.store.look() as view:
        ((_, reward),) = view.rewards.after(Namespace("default"), 0, 1)
    page = open_page("#alarms")
    page.locator("#exclude [name=turns]").fill(reward.inference_id)
    page.get_by_role("button", name="show what it would change").click()
    page.locator("#admin-key").fill(ADMIN)
    page.locator("#order-do").click()
    expect(page.locator("#exclude-foreseen")).to_contain_text(re.compile("turns excluded1.*none learned from these"))
    page.get_by_role("button", name="exclude them").click()
    give(page, "somebody lies", ADMIN)
    expect(page.locator("#done")).to_contain_text("An exclusion is not taken back.")
    with world.store.look() as view:
        (only,) = view.exclusions.after()
    assert (only.what.turns, only.why, only.by) == (frozenset((reward.inference_id,)), "somebody lies", "ada")


def test_alarms_are_told_and_acknowledged(open_page: OpenPage, world: Service) -> None:
    put_alarm(world, "one")
    page = open_page()
    count = page.locator("#alarm-count")
    expect(count).to_have_text("1")
    style = count.evaluate("found => [getComputedStyle(found).color, getComputedStyle(found).backgroundColor]")
    assert style[0] != style[1], "a number that nobody can read"
    for number in (*range(1, 9), 5):
        page.keyboard.press(str(number))
        expect(page.locator("[role=tab]").nth(number - 1)).to_have_attribute("aria-selected", "true")
        held = page.locator("#switches", has_text="an alarm holds releases").locator("a")
        expect(held).to_be_visible()
        expect(held).to_have_attribute("href", "#alarms")
    alarm = page.locator(".alarm", has_text="no edits")
    expect(alarm).to_contain_text(SCRIPT)
    expect(alarm.locator(".facts")).to_contain_text("share now")
    expect(alarm.locator(".facts")).to_contain_text("0.125")
    expect(alarm.locator("a")).to_have_attribute("href", "docs/monitors/#no_edits")
    page.keyboard.press("j")
    page.keyboard.press("Enter")  # to its button
    page.keyboard.press("Enter")
    give(page, "a new prompt", ADMIN)
    expect(alarm).to_contain_text("by ada: a new prompt")
    expect(page.locator("#alarm-count")).to_be_hidden()
    assert states(world) == [("acknowledged", "a new prompt")]
    page.locator("#done button", has_text="undo").click()
    expect(page.locator("#alarm-count")).to_have_text("1")
    expect(page.locator("#switches")).to_contain_text("an alarm holds releases")
    assert states(world) == [("opened", None)]
    page.locator("#done button", has_text="undo").click()
    expect(page.locator("#alarm-count")).to_be_hidden()
    expect(page.locator("#switches")).not_to_contain_text("an alarm holds releases")
    alarm.locator("button", has_text="take it back").click()
    expect(alarm.locator("button")).to_have_text("acknowledge")
    expect(page.locator("#order")).to_be_hidden()
    assert states(world) == [("opened", None)]
    with world.store.work() as work:
        work.alarms.close("one", START + timedelta(minutes=6))


def states(service: Service) -> list[tuple[str, str | None]]:
    with service.store.look() as view:
        return [(alarm.state, alarm.note) for alarm in view.alarms.that_are_open()]


def test_drafts_are_looked_at_decided_and_taken_back_and_whoever_is_late_is_refused(
    open_page: OpenPage, tmp_path: Path
) -> None:
    suite = tmp_path / "suite"
    drafts = draft(asked=f"Add them. {SCRIPT}", namespace="default"), draft("other", namespace="default")
    with serve(tmp_path / "service", keys=KEYS, drafts=board(suite, *drafts)) as service:
        page = open_page("#drafts", of=service)
        expect(page.locator("#drafts-counted")).to_have_text("2 wait, 0 are decided")
        page.locator("#draft-list .row", has_text="mined-1").click()
        shown = page.locator("#draft")
        expect(shown.locator(".message")).to_have_text(["Be brief.", f"Add them. {SCRIPT}", drafts[0].solution])
        expect(shown).to_contain_text("only forevaluation")
        shown.locator("#checker").fill('{ kind = "exact", text = "5" }')
        page.keyboard.press("9")  # is typed, and leads nowhere
        shown.locator("#checker").fill('{ kind = "exact", text = "5" }')
        shown.locator("button", has_text="accept").click()
        page.locator("#admin-key").fill(ADMIN)
        page.locator("#order-do").click()
        expect(page.locator("#order-problem")).to_have_text("checker: the solution of mined-1 is wrong by it")
        page.keyboard.press("Escape")
        shown.locator("#checker").fill(SUMS)
        shown.locator("button", has_text="accept").click()  # the key is remembered
        expect(shown).to_contain_text(f": {SUMS}, group all")
        (case,) = load_suite(suite).cases
        assert case.name == "mined-1"
        back = page.locator("#done button", has_text="undo")
        back.click()
        expect(shown.locator("#checker")).to_be_visible()
        assert {each.name for each in read_suite(suite).drafts.values()} == {"mined-1", "other"}
        back.click()  # as it was decided
        expect(shown).to_contain_text(f": {SUMS}, group all")
        shown.locator("button", has_text="undo").click()
        expect(shown.locator("#checker")).to_be_visible()
        assert {each.name for each in read_suite(suite).drafts.values()} == {"mined-1", "other"}
        page.keyboard.press("Escape")
        page.locator("#draft-list .row", has_text="other").click()
        expect(shown.locator("h2")).to_contain_text("other")
        reject(suite, "other", "it names a customer", BY)  # somebody else, meanwhile
        shown.locator("button", has_text="reject").click()
        page.locator("#why").fill("too easy")
        page.keyboard.press("Enter")
        expect(page.locator("#order-problem")).to_contain_text("shell:ada at 2026-01-03 00:00:00, because: it names a")
        page.keyboard.press("Escape")
        page.keyboard.press("Escape")
        expect(page.locator("#drafts-counted")).to_have_text("1 wait, 1 are decided")
        page.locator("#decided-list button", has_text="undo").click()
        expect(page.locator("#drafts-counted")).to_have_text("2 wait, 0 are decided")
        back.click()
        expect(page.locator("#decided-list")).to_contain_text("it names a customer")
        expect(page.locator("#order")).to_be_hidden()
        assert page.locator("main img, main script").count() == 0
        page.close()


def test_an_agents_work_becomes_a_task_as_a_person_chose_and_is_refused_without_a_test(
    open_page: OpenPage, tmp_path: Path
) -> None:
    suite, made = tmp_path / "suite", agent_draft(tmp_path / "task")
    made = made.model_copy(update={"reuse": made.reuse.model_copy(update={"namespace": "default"})})
    with serve(tmp_path / "service", keys=KEYS, drafts=board(suite, made)) as service:
        page = open_page("#drafts", of=service)
        page.locator("#draft-list .row", has_text="mined-2").click()
        shown = page.locator("#draft")
        assert made.work is not None
        edit, write = made.work.changes
        texts = shown.locator(".message")
        expect(texts).to_have_text(["Repair add.", edit.old, edit.new, write.new], use_inner_text=False)
        expect(shown).to_contain_text("writes new/one.py, by a helper of the agent")
        expect(shown).to_contain_text("Files may also have been changed by: the command sed -i s/a/b/ x.")
        boxes = shown.locator("input[type=checkbox]")
        assert [(box.is_checked(), box.is_disabled()) for box in boxes.all()] == [
            (True, False),
            (False, True),
            (True, False),
        ]
        expect(shown.locator("li").nth(0)).to_contain_text("it failed at first, then succeeded")
        expect(shown.locator("li").nth(1)).to_contain_text("no test: it needs a network")

        def accept(*tests: bool, asked: str = "Repair add.") -> None:
            for place, chosen in zip((0, 2), tests, strict=True):
                boxes.nth(place).set_checked(chosen)
            shown.locator("#instruction").fill(asked)
            shown.locator("button", has_text="accept").click()

        accept(False, False)
        page.locator("#admin-key").fill(ADMIN)
        page.locator("#order-do").click()
        expect(page.locator("#order-problem")).to_contain_text("tests")
        page.keyboard.press("Escape")
        accept(False, True, asked="Mend add, please.")  # the key is remembered
        expect(shown).to_contain_text(": a task, group all")
        expect(shown.locator("input:enabled, textarea")).to_have_count(0)
        (task,) = load_suite(suite).tasks.values()
        assert (task / "instruction.md").read_text() == "Mend add, please.\n"
        commands = [each.read_text().splitlines()[-1] for each in sorted((task / "tests").glob("0*.sh"))]
        assert commands == ["test -f new/one.py"]
        page.locator("#done button", has_text="undo").click()
        expect(shown.locator("#instruction")).to_have_value("Mend add, please.")
        assert [box.is_checked() for box in boxes.all()] == [False, False, True]
        page.close()
