"""Arrivals, and the record of each session: everything acknowledged, and every failure."""

import asyncio
import random
from typing import Any

import aiohttp
import pytest
from scripted_service import ScriptedService, bungler, expert

from simulator import drive
from simulator.drive import Driver, RunOptions
from simulator.outcome.truth import Truth
from simulator.users import ide
from simulator.users import reports as users
from simulator.users.client import Client


@pytest.fixture(autouse=True)
def _hasty_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "MEAN_DELAY_S", 0.02)


@pytest.fixture
def patient_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ide, "_HANG_UP_SHARE", 0.0)


def live(service: ScriptedService, seconds: float = 0.5, rate: float = 80, **options: Any) -> Truth:
    async def run() -> Truth:
        async with aiohttp.ClientSession() as http:
            driver = Driver(RunOptions((service.url,), seconds, rate, options.pop("seed", 0), **options), http)
            await driver.run()
            return driver.truth

    return asyncio.run(run())


def test_everything_acknowledged_is_remembered(service: ScriptedService, patient_users: None) -> None:
    truth = live(service)
    assert len(truth.lived) > 20
    assert not truth.failures
    spoken = {str(lived.session.session_id): lived.session.inference_ids for lived in truth.lived}
    assert spoken == dict(service.sessions)
    assert truth.outcome_ids.keys() == service.outcomes.keys()
    reported = [lived for lived in truth.lived if lived.reported is not None]
    assert len(truth.outcome_ids) == len(reported) < len(truth.lived)
    kinds = {lived.session.task.kind for lived in truth.lived}
    assert kinds == {"write", "fix"}


def test_each_session_is_said_to_be_over_once(service: ScriptedService, patient_users: None) -> None:
    truth = live(service)
    by_header = [str(lived.session.session_id) for lived in truth.lived if lived.session.closed]
    assert sorted([*service.ended, *by_header]) == sorted(str(lived.session.session_id) for lived in truth.lived)


def test_feedback_speaks_of_a_fix_session_and_of_a_written_inference(service: ScriptedService) -> None:
    truth = live(service)
    fixes = {lived.session.session_id for lived in truth.lived if lived.session.task.kind == "fix"}
    for body in service.outcomes.values():
        if "session_id" in body:
            assert body["session_id"] in fixes
        else:
            assert service.session_of[body["inference_id"]] not in fixes


def test_arrivals_are_poisson(service: ScriptedService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drive, "MAX_SESSIONS", 0)
    truth = live(service, seconds=0.5, rate=2000)
    assert abs(truth.turned_away - 1000) < 4 * 1000**0.5
    assert not truth.lived
    assert not service.chats


def test_users_beyond_the_bound_are_counted(service: ScriptedService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drive, "MAX_SESSIONS", 0)
    arrivals = live(service, seconds=0.3, rate=100).turned_away
    monkeypatch.setattr(drive, "MAX_SESSIONS", 3)
    monkeypatch.setattr(ide, "REQUEST_TIMEOUT", aiohttp.ClientTimeout(total=0.7))
    service.script.stalls = True
    truth = live(service, seconds=0.3, rate=100)
    assert 3 <= len(truth.lived) == len(truth.failures), "nobody was answered in time"
    assert len(truth.lived) + truth.turned_away == arrivals
    assert truth.turned_away > 0


def test_a_lost_answer_is_asked_for_again_and_counted(service: ScriptedService) -> None:
    """The service stored the feedback but the connection broke: the retry must not count twice."""
    service.script.drop = lambda route, nth: route == "feedback" and nth in (1, 4)
    truth = live(service)
    assert len(truth.failures) == 2
    assert truth.outcome_ids.keys() == service.outcomes.keys()
    assert service.counts["feedback"] == len(service.outcomes) + 2


def test_feedback_is_given_up_in_the_end(service: ScriptedService) -> None:
    service.script.status = lambda route: 503 if route == "feedback" else 200
    truth = live(service, seconds=0.2)
    assert not truth.outcome_ids
    reported = sum(lived.reported is not None for lived in truth.lived)
    assert reported > 0
    assert len(truth.failures) == service.counts["feedback"] == 3 * reported


def test_refused_feedback_is_not_said_again(service: ScriptedService) -> None:
    service.script.status = lambda route: 404 if route == "feedback" else 200
    truth = live(service, seconds=0.2)
    assert not truth.outcome_ids
    assert len(truth.failures) == sum(lived.reported is not None for lived in truth.lived) > 0


def test_failed_turns_are_counted_and_their_sessions_are_bad(service: ScriptedService, patient_users: None) -> None:
    service.script.status = lambda route: 503 if route == "chat" and service.counts["chat"] % 5 == 0 else 200
    truth = live(service)
    failed = [lived for lived in truth.lived if lived.session.ending == "failed"]
    assert len(failed) == len(truth.failures) == service.counts["chat"] // 5 > 5
    assert all(lived in truth.judged and not lived.good for lived in failed)
    spoken = sorted(i for lived in truth.lived for i in lived.session.inference_ids)
    assert spoken == sorted(service.session_of), "also what was acknowledged before a session failed"


def test_the_taste_shifts_on_time(service: ScriptedService, patient_users: None) -> None:
    truth = live(service, seconds=0.6, shift_at_s=0.3)
    writes = [lived for lived in truth.lived if lived.session.task.kind == "write"]
    assert {lived.good for lived in writes if lived.started_s < 0.3} == {True}
    assert {lived.good for lived in writes if lived.started_s >= 0.3} == {False}
    assert all(lived.good for lived in truth.lived if lived.session.task.kind == "fix")


def test_users_are_the_same_for_the_same_seed(service: ScriptedService, patient_users: None) -> None:
    """The random numbers of a user do not depend on what the service does to others."""

    def users_of(seed: int) -> list[tuple[float, str]]:
        return sorted((lived.started_s, lived.session.task.task_id) for lived in live(service, seed=seed).lived)

    first = users_of(1)
    slip = random.Random(0)
    service.script.answer = lambda messages: bungler(messages) if slip.random() < 0.5 else expert(messages)
    assert users_of(1) == first
    assert users_of(2) != first


@pytest.mark.parametrize("how", ["early_end", "cut", "broken_stream"])
def test_streams_that_break_are_counted(
    service: ScriptedService, patient_users: None, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Each is one failure, of the session that streamed, and of no other."""
    setattr(service.script, how, True)
    monkeypatch.setattr(ide, "_STREAM_SHARE", 0.5)
    truth = live(service, seconds=0.3)
    streamed = sum(body.get("stream", False) for body, _ in service.chats)
    failed = sum(lived.session.ending == "failed" for lived in truth.lived)
    assert len(truth.failures) == failed == streamed > 3
    assert all(failure.startswith("stream: ") for failure in truth.failures)


def test_a_retry_carries_the_same_word(service: ScriptedService, monkeypatch: pytest.MonkeyPatch) -> None:
    said: dict[str, list[Any]] = {}
    real = Client.post

    async def noting(self: Client, path: str, body: dict[str, Any], *rest: Any) -> Any:
        if path == "/v1/feedback":
            said.setdefault(body["feedback_id"], []).append(body)
        return await real(self, path, body, *rest)

    monkeypatch.setattr(Client, "post", noting)
    service.script.drop = lambda route, nth: route == "feedback" and nth <= 3
    truth = live(service, seconds=0.3)
    assert sum(len(tries) for tries in said.values()) == len(service.outcomes) + 3 == service.counts["feedback"]
    assert all(one == tries[0] for tries in said.values() for one in tries)
    assert len(truth.failures) == 3
