"""What each version achieves in whole tasks, and what that takes, from the store to the picture."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from api_harness import Service, serve
from console_pages import OpenPage, chromium, open_page
from console_world import policy, reward, turn
from playwright.sync_api import expect

from core.events import Completion, ToolCall, VersionSpan
from core.ids import InferenceId, SessionId, base_ref
from core.reward_spec import load_reward_spec
from onward.directory.layout import SHIPPED_REWARDS

__all__ = ["chromium", "open_page"]  # fixtures

START = datetime(2026, 1, 2, tzinfo=UTC)
PRICES = {"prompt": 1.0, "output": 4.0}
SHIPPED = load_reward_spec(SHIPPED_REWARDS)
KEY = {"key": "key-that-reads", "namespace": "default", "scopes": ("read",)}


def call(name: str, place: int = 0) -> ToolCall:
    return ToolCall(id=f"{name}-{place}", name=name, arguments="{}", index=place)


def result(made: ToolCall, began_s: float, took_s: float) -> dict[str, Any]:
    times = {
        "started_at": (START + timedelta(seconds=began_s)).isoformat(),
        "ended_at": (START + timedelta(seconds=began_s + took_s)).isoformat(),
    }
    return {"role": "tool", "tool_call_id": made.id, "content": "x", "onward": times}


def task(
    number: int, version: int, *groups: tuple[ToolCall, ...], passes: bool, tokens: int, harness: str
) -> list[tuple[Completion, dict[str, float]]]:
    """Return the turns of a session that makes these calls, a group a turn, and answers.

    Each call takes 2 s, and those of one group run together."""
    made, messages, prompt = [], [{"role": "user", "content": "fix it"}], tuple(range(10))
    for place, calls in enumerate((*groups, ())):
        said = tuple(range(100, 100 + tokens))
        each = msgspec.structs.replace(
            turn(number, START),
            inference_id=InferenceId(f"{number:05}-{place}"),
            session_id=SessionId(f"task-{number}"),
            turn_index=place,
            harness_version=harness,
            policy_versions=(VersionSpan(start=0, end=len(said), version=base_ref(version)),),
            messages=tuple(messages),
            prompt_token_ids=prompt,
            token_ids=said,
            tool_calls=calls,
            latency_ms=500.0,
        )
        made.append((each, {"accepted": 1.0 if passes else 0.0, "tests_passed": 0.5 if passes else -0.5}))
        messages = [*messages, {"role": "assistant", "content": ""}, *(result(c, 10.0 * place, 2.0) for c in calls)]
        prompt = (*prompt, *said, *range(5))
    return made


SEARCH, EDIT, TEST, LINT = call("grep"), call("edit_file"), call("run_tests"), call("run_lint")
BOTH = (call("grep", 1), call("read_file", 2))


def told() -> list[tuple[Completion, dict[str, float]]]:
    found = []
    for number in range(4):  # the base with its long prompt: good, and dear
        found += task(number, 1, (SEARCH,), (EDIT,), (TEST,), passes=number < 3, tokens=100, harness="agent-long@1")
    for number in range(4, 8):  # the same without: cheap, and bad
        found += task(number, 1, (EDIT,), passes=number < 5, tokens=20, harness="agent@1")
    for number in range(8, 12):  # a later version: as good as the first, and cheap
        found += task(number, 2, BOTH, (LINT,), (EDIT,), passes=number < 11, tokens=30, harness="agent@1")
    return found


def write(service: Service) -> None:
    with service.store.work() as work:
        for _ in range(2):
            work.policies.put(policy(work.policies.allocate(START).version, START))
        work.turns.put([said for said, _ in told()])
        work.rewards.put([(0, reward(said, 0, components)) for said, components in told()])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory: Path = tmp_path_factory.mktemp("frontier")
    with serve(directory / "service", spec=SHIPPED, keys=(KEY,), prices=PRICES) as service:
        write(service)
        yield service


def rows_of(service: Service) -> dict[tuple[int, str], dict[str, Any]]:
    found = service.get("/v1/frontier", authorization="Bearer key-that-reads").json()
    assert (found["quality_of"], found["tasks"]) == ("checks", 12)
    return {(row["version"], row["harness"]): row for row in found["versions"]}


def test_a_version_is_what_its_tasks_were(world: Service) -> None:
    rows = rows_of(world)
    assert list(rows) == [(1, "agent-long@1"), (1, "agent@1"), (2, "agent@1")]
    later = rows[2, "agent@1"]
    assert (later["tasks"], later["quality"], later["base"]) == (4, 0.75, False)
    assert (later["searches"], later["tests"], later["lint_fixes"], later["parallel_share"]) == (1, 0, 1, 0.5)
    new = 10 + 3 * 5  # tokens of prompts: the first, and each group's results
    assert later["tokens"] == new + 4 * 30
    assert later["seconds"] == pytest.approx(4 * 0.5 + 3 * 2.0), "calls of one group ran together"
    assert later["cost"] == pytest.approx((new * 1.0 + 120 * 4.0) / 1e6)
    assert later["per_solved"]["tokens"] == pytest.approx(4 * (new + 120) / 3)
    assert later["per_kept_edit"]["seconds"] == pytest.approx(4 * 8.0 / 3)
    base = rows[1, "agent@1"]
    assert (base["base"], base["quality"], base["parallel_share"], base["lint_fixes"]) == (True, 0.25, 0, 0)


def test_what_is_neither_better_nor_cheaper_is_behind_the_frontier(world: Service) -> None:
    leads = {key: row["frontier"] for key, row in rows_of(world).items()}
    assert leads[2, "agent@1"] == ["tokens", "seconds", "cost"]
    assert leads[1, "agent-long@1"] == ["seconds"], "as fast as the later one, and dearer"
    assert leads[1, "agent@1"] == ["tokens", "seconds", "cost"]


def test_the_base_stays_on_it_when_newer_turns_have_left_it_behind(world: Service) -> None:
    found = world.get("/v1/frontier?turns=12", authorization="Bearer key-that-reads").json()
    shown = [(row["version"], row["harness"], row["tasks"], row["base"]) for row in found["versions"]]
    assert shown == [(1, "agent-long@1", 3, True), (2, "agent@1", 3, False)]
    assert found["turns"] == 24, "of which 12 are the oldest, the base's"


def test_without_prices_and_checks_it_says_so(make_service: Callable[..., Service]) -> None:
    service = make_service()  # whose spec knows no checks
    assert service.get("/v1/frontier").json() == {
        "object": "frontier", "turns": 0, "quality_of": "rewards", "tasks": 0, "versions": []
    }  # fmt: skip
    write(service)
    found = service.get("/v1/frontier").json()
    assert found["quality_of"] == "rewards"
    rows = found["versions"]
    assert {row["cost"] for row in rows} == {None}
    assert service.get("/v1/frontier?turns=2001").json()["error"]["param"] == "turns"


def test_the_picture_shows_every_version_and_the_way_along_the_best(world: Service, open_page: OpenPage) -> None:
    page = open_page("#curves", key="key-that-reads", of=world)
    page.wait_for_selector("#frontier-plane circle")
    assert page.locator("#frontier-plane circle").count() == 3
    assert page.locator("#frontier-plane circle.base").count() == 2
    expect(page.locator("#frontier-plane")).to_have_attribute("aria-label", "Frontier: version 1: 75.0 % for 425; "
        "version 1: 25.0 % for 55; version 2: 75.0 % for 145")  # fmt: skip
    expect(page.locator("#frontier-note")).to_have_text("12 tasks; quality: the share of them that passed their checks")
    rows = page.locator("#task-rows tr")
    assert rows.nth(0).inner_text().split("\t")[:9] == [
        "2", "agent@1", "4", "75.0 %", "1.0", "0.0", "1.0", "50.0 %", "145"
    ]  # fmt: skip
    heights = "[...document.querySelectorAll('#frontier-plane circle')].map(dot => +dot.getAttribute('cy'))"
    better = page.evaluate(heights)
    assert better[0] == better[2] < better[1], "better is higher"
    page.locator("#expense").select_option("seconds")
    expect(page.locator("#task-rows tr").nth(0).locator("td").nth(8)).to_have_text("8.0 s")
    page.locator("#expense").select_option("cost")
    expect(page.locator("#frontier-plane circle")).to_have_count(3)
