"""A plan run in real sandboxes: the three ends of an attempt told apart, and nobody told twice."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from rollouts_world import HARNESS, QUICK, Scripted, Told, Watched, means, plan_of, task, told_service
from sandboxed import require_bubblewrap

from environments.errors import InfrastructureFailure
from environments.harness.harness import Budget, Endpoint, HarnessRun
from environments.rollouts.episode import Episode, EpisodeResult
from environments.rollouts.journal import RolloutJournal
from environments.rollouts.plan import Patience, RolloutPlan, TaskSet, episode_of
from environments.rollouts.reporter import Reporter
from environments.rollouts.reporting.figures import Attempt
from environments.rollouts.reporting.page import Page, page_of
from environments.rollouts.reports import FAILED, OUT_OF_TIME, REWARD, Report
from environments.rollouts.run import here, run_rollouts
from environments.rollouts.scheduler import Place
from environments.rollouts.service import Service
from environments.sandboxes.bubblewrap.opened import BubblewrapSandbox
from environments.sandboxes.sandbox import Sandbox
from environments.tasks.task import Task


@pytest.fixture(autouse=True)
def _bubblewrap() -> None:
    require_bubblewrap()


@dataclass
class Done:
    told: Told
    watched: Watched
    journal: RolloutJournal

    def results(self) -> list[EpisodeResult]:
        return list(self.journal.attempts(10_000))


@asynccontextmanager
async def ran(
    folder: Path,
    plan: Callable[[str], RolloutPlan],
    *,
    before: Callable[[Told], None] = lambda _: None,
    on_end: Callable[[Told, EpisodeResult], None] = lambda *_: None,
    **given: Any,
) -> AsyncIterator[Done]:
    """Run a plan against a service of its own."""
    journal = RolloutJournal(folder / "journal.db")
    async with told_service() as (told, url), means(folder.parent / "sandboxes", **given) as ready:
        before(told)
        watched, made = Watched(on_end=lambda result: on_end(told, result)), plan(url)
        await asyncio.wait_for(
            run_rollouts(
                made,
                journal,
                here(made, ready),
                watched,
                Page(folder / "report.html", {"command": "test", "commit": None}),
                asyncio.Event(),
            ),
            200,
        )
        yield Done(told, watched, journal)
    journal.close()


def _end_at_once(ending: asyncio.Event, _: EpisodeResult) -> None:
    ending.set()


def one(**fields: Any) -> Callable[[str], RolloutPlan]:
    of_task = {name: fields.pop(name) for name in ("instruction", "agent_timeout_seconds") if name in fields}
    return lambda url: plan_of(TaskSet("own", (task("t", **of_task),)), url=url, **fields)


def test_the_tests_decide_and_the_service_is_told(tmp_path: Path) -> None:
    async def test() -> None:
        good, bad = task("good"), task("bad", "echo 2 >answer")
        async with ran(tmp_path, lambda url: plan_of(TaskSet("own", (good, bad)), url=url, tries=3)) as done:
            assert sorted(each["value"] for each in done.told.of(REWARD)) == [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
            assert {each["source"] for each in done.told.of(REWARD)} == {"environment"}
            assert {each.verdict for each in done.results()} == {"judged"}
            assert done.told.of(FAILED) == done.told.of(OUT_OF_TIME) == []
            assert len({each["session_id"] for each in done.told.feedback.values()}) == 6
            assert "100%" in (tmp_path / "report.html").read_text()

    asyncio.run(test())


@pytest.mark.parametrize(("policy", "rewards", "voids"), [("leave_out", [], 1), ("judge", [1.0], 0)])
def test_the_tasks_clock_is_no_judgement_unless_one_says_so(
    tmp_path: Path, policy: str, rewards: list[float], voids: int
) -> None:
    class Late(Scripted):
        async def work(self, *given: Any) -> HarnessRun:
            with suppress(asyncio.CancelledError):  # what is done by then is there, however slow the machine is
                await asyncio.sleep(60)
            await super().work(*given)
            raise asyncio.CancelledError

    async def test() -> None:
        plan = one(agent_timeout_seconds=0.1, out_of_time=policy)
        async with ran(tmp_path, plan, harness=Late()) as done:
            (result,) = done.results()
            assert (result.verdict, result.part) == ("out_of_time", None)
            assert [each["value"] for each in done.told.of(REWARD)] == rewards
            assert len(done.told.of(OUT_OF_TIME)) == voids

    asyncio.run(test())


def test_every_request_says_what_it_is_for(tmp_path: Path) -> None:
    async def test() -> None:
        said: dict[str, dict[str, str]] = {}

        class Listens(Scripted):
            async def work(self, task: Task, sandbox: Sandbox, endpoint: Endpoint, budget: Budget) -> HarnessRun:
                said[task.name] = endpoint.headers
                return await super().work(task, sandbox, endpoint, budget)

        def plan(url: str) -> RolloutPlan:
            endpoint = Endpoint(url, headers={"x-onward-priority": "low", "x-onward-workload": "agent"})
            own = TaskSet("own", (task("mine"),), workload="crafts")
            return plan_of(own, TaskSet("others", (task("theirs"),)), endpoint=endpoint)

        async with ran(tmp_path, plan, harness=Listens()) as done:
            sessions = {each.episode.task: each.episode.session_id for each in done.results()}
        told = {"x-onward-priority": "low", "x-onward-environment": "simulated", "x-onward-harness": HARNESS}
        for name, workload in (("mine", "crafts"), ("theirs", "agent")):
            assert said[name] == {**told, "x-session-id": sessions[name], "x-onward-workload": workload}

    asyncio.run(test())


def test_a_failure_is_tried_again_elsewhere_and_is_never_a_zero(tmp_path: Path) -> None:
    async def test() -> None:
        opened: list[Sandbox] = []

        class Breaks(Scripted):
            async def work(self, task: Task, sandbox: Sandbox, *others: Any) -> Any:
                opened.append(sandbox)
                if len(opened) <= 2:
                    raise InfrastructureFailure("disk", "no space left on device")
                return await super().work(task, sandbox, *others)

        async with ran(tmp_path, one(), harness=Breaks()) as done:
            assert len({id(each) for each in opened}) == 3
            assert [each["value"] for each in done.told.of(REWARD)] == [1.0]
            failed = done.told.of(FAILED)
            assert [each["tags"]["part"] for each in failed] == ["disk", "disk"]
            sessions = [each["session_id"] for each in done.told.feedback.values()]
            assert len(set(sessions)) == 3
            assert [each.part for each in done.results()] == [None, "disk", "disk"]

    asyncio.run(test())


def test_it_is_given_up_after_so_many_attempts_and_has_no_reward(tmp_path: Path) -> None:
    async def test() -> None:
        async def broken(_: Task, sandbox: Sandbox) -> float:
            raise InfrastructureFailure("verifier", "the tests wrote no reward")

        plan = one(patience=replace(QUICK, attempts=3))
        async with ran(tmp_path, plan, judge=broken) as done:
            assert done.told.of(REWARD) == []
            assert len(done.told.of(FAILED)) == 3
            assert (done.journal.ended(), done.journal.waiting()) == (1, [])

    asyncio.run(test())


@pytest.mark.parametrize("failure", [asyncio.Event().wait, OSError])
def test_a_sandbox_that_does_not_close_takes_no_reward_away(
    tmp_path: Path, failure: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    closes = BubblewrapSandbox.close

    async def stuck(self: BubblewrapSandbox) -> None:
        await closes(self)
        failed = failure()
        if isinstance(failed, Exception):
            raise failed
        await failed

    monkeypatch.setattr(BubblewrapSandbox, "close", stuck)

    async def test() -> None:
        async with ran(tmp_path, one(patience=replace(QUICK, close_seconds=0.05))) as done:
            assert [(each.verdict, each.reward) for each in done.results()] == [("judged", 1.0)]

    with caplog.at_level("WARNING"):
        asyncio.run(test())
    assert "a sandbox was not closed" in caplog.text


@pytest.mark.parametrize("status", [401, 503])
def test_a_service_that_is_away_or_refuses_the_key_loses_no_report(tmp_path: Path, status: int) -> None:
    async def test() -> None:
        def falls_silent(told: Told, _: EpisodeResult) -> None:
            told.away_for, told.away_as = 2, status

        async with ran(tmp_path, one(tries=4, parallel=1), on_end=falls_silent) as done:
            assert len(done.told.of(REWARD)) == 4
            assert done.journal.answers() == {"recorded": 4}

    asyncio.run(test())


def test_an_answer_that_got_lost_counts_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with ran(tmp_path, one(tries=3), before=lambda told: setattr(told, "lose_answers", 2)) as done:
            assert done.told.requests == 5
            assert len(done.told.of(REWARD)) == 3
            assert done.journal.answers() == {"recorded": 3}

    asyncio.run(test())


def test_while_the_service_is_away_no_attempt_is_wasted(tmp_path: Path) -> None:
    async def test() -> None:
        class Asks(Scripted):
            async def work(self, *given: Any) -> Any:
                if told_of[0].is_away:
                    raise InfrastructureFailure("service", "connection refused")
                return await super().work(*given)

        told_of: list[Told] = []

        def away(told: Told) -> None:
            told_of.append(told)
            told.away_for = 4

        async with ran(tmp_path, one(tries=8, parallel=2), before=away, harness=Asks()) as done:
            assert len(done.told.of(REWARD)) == 8
            assert 1 <= len(done.told.of(FAILED)) <= 2  # of those that had begun

    asyncio.run(test())


def test_what_always_fails_at_once_is_not_begun_without_end(tmp_path: Path) -> None:
    async def test() -> None:
        began = 0

        async def fails(episode: Episode, _: Task) -> EpisodeResult:
            nonlocal began
            began += 1
            return EpisodeResult(episode, "infrastructure", None, None, 1.0, 1.0, "sandbox", "no bubblewrap")

        journal, ending = RolloutJournal(tmp_path / "journal.db"), asyncio.Event()
        async with told_service() as (_, url):
            plan = plan_of(TaskSet("own", (task("t"),)), url=url, tries=None, parallel=2, patience=Patience())

            async def end() -> None:
                """End it after half a second, or once it has begun as many as it may at once, on a busy machine."""
                await asyncio.sleep(0.5)
                while began < 4:  # noqa: ASYNC110 - told by nobody
                    await asyncio.sleep(0.01)
                ending.set()

            await asyncio.gather(run_rollouts(plan, journal, Place(fails), Watched(), None, ending), end())
        journal.close()
        assert 4 <= began <= 8

    asyncio.run(test())


def test_a_report_that_cannot_be_told_for_an_error_of_ours_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> str:
        raise OverflowError("nobody foresaw this")

    monkeypatch.setattr("environments.rollouts.service._answer", broken)

    async def test() -> None:
        async with ran(tmp_path, one()):
            pass

    with pytest.raises(OverflowError, match="foresaw"):
        asyncio.run(test())


@pytest.mark.parametrize(
    ("error", "part"),
    [
        (TimeoutError("for a lock"), "harness"),
        (asyncio.CancelledError(), "machine"),
        (KeyError("no such tool"), "machine"),
    ],
)
def test_an_error_that_nobody_foresaw_is_not_the_models(tmp_path: Path, error: BaseException, part: str) -> None:
    async def test() -> None:
        class Odd(Scripted):
            async def work(self, *given: Any) -> Any:
                raise error

        async with ran(tmp_path, one(patience=replace(QUICK, attempts=1)), harness=Odd()) as done:
            assert [(each.verdict, each.part) for each in done.results()] == [("infrastructure", part)]
            assert done.told.of(REWARD) == []

    asyncio.run(test())


def test_one_that_is_told_to_end_goes_on_where_it_was(tmp_path: Path) -> None:
    async def test() -> None:
        may_work = asyncio.Semaphore(0)  # one before each end, so that others are under way then on any machine

        class Waits(Scripted):
            async def work(self, *given: Any) -> HarnessRun:
                await may_work.acquire()
                return await super().work(*given)

        async with told_service() as (told, url), means(tmp_path.parent / "sandboxes", harness=Waits()) as ready:
            plan = one(tries=8, parallel=4)(url)
            for early in (True, True, False):
                for _ in range(1 if early else 8):
                    may_work.release()
                journal, ending = RolloutJournal(tmp_path / "journal.db"), asyncio.Event()
                watched = Watched(on_end=partial(_end_at_once, ending) if early else lambda _: None)
                await run_rollouts(plan, journal, here(plan, ready), watched, None, ending)
                assert watched.results != []
                results, untold = list(journal.attempts(100)), journal.untold()
                journal.close()
            judged = [each.episode.episode_id for each in results if each.reward == 1.0]
            assert len(judged) == len(set(judged)) == len(told.of(REWARD)) == 8
            assert {each.part for each in results if each.reward is None} == {"machine"}
            assert untold == []

    asyncio.run(test())


def test_a_session_without_a_turn_has_nothing_to_be_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("environments.rollouts.reporter._SETTLED_S", 0.2)
    monkeypatch.setattr("environments.rollouts.reporter._AGAIN_S", 0.1)

    async def test() -> None:
        class Breaks(Scripted):
            async def work(self, task: Task, sandbox: Sandbox, endpoint: Any, budget: Any) -> Any:
                if len(told_of[0].unknown) < 1:
                    told_of[0].unknown.add(endpoint.headers["x-session-id"])
                    raise InfrastructureFailure("sandbox", "gone")
                return await super().work(task, sandbox, endpoint, budget)

        told_of: list[Told] = []
        async with ran(tmp_path, one(), before=told_of.append, harness=Breaks()) as done:
            assert done.journal.answers() == {"recorded": 1, "unknown_session": 1}

    asyncio.run(test())


def test_sessions_that_are_unknown_yet_hold_up_no_other_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("environments.rollouts.reporter._SETTLED_S", 0.05)
    monkeypatch.setattr("environments.rollouts.reporter._AGAIN_S", 0.1)

    async def test() -> None:
        journal = RolloutJournal(tmp_path / "journal.db")
        for number in range(20):
            episode = episode_of(journal.id, HARNESS, "own", task("t"), number)
            journal.begin(episode)
            journal.end(EpisodeResult(episode, "judged", 1.0, None, 1.0, 2.0), again=False)
        async with told_service() as (told, url), aiohttp.ClientSession() as http:
            told.unknown = {report.session_id for report in journal.untold()}
            await Reporter(journal, Service(Endpoint(url), http)).tell_all()
        assert len(set(told.asked[:20])) == 20
        assert journal.answers() == {"unknown_session": 20}
        journal.close()

    asyncio.run(test())


def test_the_page_shows_what_failed_and_escapes_it() -> None:
    episode = episode_of("j", "h", "own", task("<b>"), 0)
    failed = Attempt(episode, "infrastructure", None, None, 1.0, 2.0, "disk", "<script>full</script>")
    page = page_of([failed], Counter(recorded=1), 0, "Rollouts", {"command": "</code><b>", "commit": None}, "m")
    assert "1 disk" in page
    assert "<script>" not in page
    assert "</code><b>" not in page
    assert "no attempt was judged" in page


def test_nothing_is_asked_of_a_service_that_is_not_there() -> None:
    async def test() -> None:
        async with aiohttp.ClientSession() as http:
            with pytest.raises(InfrastructureFailure, match="service"):
                await Service(Endpoint("http://127.0.0.1:1/v1"), http).tell(Report("i", "s", REWARD, 1.0))

    asyncio.run(test())


def test_a_reward_waits_for_a_service_that_has_yet_to_read_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer of the session was received: it is in the log, and will be known."""
    monkeypatch.setattr("environments.rollouts.reporter._SETTLED_S", 0.0)
    monkeypatch.setattr("environments.rollouts.reporter._AGAIN_S", 0.02)

    async def test() -> None:
        journal = RolloutJournal(tmp_path / "journal.db")
        episode = episode_of(journal.id, HARNESS, "own", task("t"), 0)
        journal.begin(episode)
        work = HarnessRun("done", episode.session_id, ("01a212e9-348a-77bc-95b8-53ff0ce75208",), (1,))
        journal.end(EpisodeResult(episode, "judged", 1.0, work, 1.0, 2.0), again=False)
        async with told_service() as (told, url), aiohttp.ClientSession() as http:
            told.unknown = {report.session_id for report in journal.untold()}
            telling = asyncio.create_task(Reporter(journal, Service(Endpoint(url), http)).tell_all())
            while len(told.asked) < 3 and not telling.done():  # noqa: ASYNC110 - told by nobody
                await asyncio.sleep(0.01)
            told.unknown.clear()
            await telling
        assert journal.answers() == {"recorded": 1}

    asyncio.run(test())
