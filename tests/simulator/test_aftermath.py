"""True quality beside apparent quality; alarms and releases on the run's own clock."""

import asyncio
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest
from scripted_service import ScriptedService

from simulator.aftermath import aftermath, by_user_kind, windows
from simulator.drive import Driver, RunOptions
from simulator.exploits import EXPLOITS, NO_EXPLOIT, Exploit
from simulator.outcome.truth import Lived, Truth
from simulator.report import summary
from simulator.service import ServiceView
from simulator.tasks.sampling import sample_task
from simulator.tasks.taste import SessionQuality
from simulator.users.ide import EditorSession, Ending

START = datetime(2026, 1, 1, tzinfo=UTC)


def lived(at_s: float, good: bool, reported: str | None, words: int = 1, ending: Ending = "done") -> Lived:
    quality = SessionQuality(syntax_ok=True, tests_pass=good, mismatches=0)
    session = EditorSession(sample_task(random.Random(0), "fix"), ending=ending, quality=quality)
    return Lived(at_s, session, reported, words=words)


def test_windows_show_what_is_beside_what_seems() -> None:
    truth = Truth(window_s=20.0)
    truth.lived += [lived(1, True, "accepted"), lived(19.9, False, "accepted"), lived(5, False, None, 0, "malformed")]
    truth.lived += [lived(20, True, "rejected"), lived(29, True, "accepted", 0), lived(45, True, "accepted")]
    first, second = windows(truth, 30.0)
    assert first == {
        "from_s": 0.0,
        "to_s": 20.0,
        "sessions": 3,
        "true": pytest.approx(1 / 3),
        "apparent": 1.0,
        "unreported": pytest.approx(1 / 3),
        "endings": {"done": 2, "malformed": 1},
    }
    assert (second["to_s"], second["true"], second["apparent"], second["unreported"]) == (30.0, 1.0, 0.5, 0.5)


def test_empty_windows_know_nothing() -> None:
    (window,) = windows(Truth(window_s=20.0), 10.0)
    assert (window["sessions"], window["true"], window["apparent"], window["unreported"]) == (0, None, None, None)


def test_users_are_counted_by_kind() -> None:
    truth = Truth()
    truth.lived += [Lived(0.0, EditorSession(sample_task(random.Random(0), "fix")), None, "spammer", 10)] * 2
    truth.lived += [lived(0, True, "accepted")]
    assert by_user_kind(truth) == {"honest": {"sessions": 1, "words": 1}, "spammer": {"sessions": 2, "words": 20}}


def alarm(monitor: str, after_s: float, state: str = "opened") -> dict[str, Any]:
    opened_at = (START + timedelta(seconds=after_s)).isoformat().replace("+00:00", "Z")
    told = {"alarm_id": monitor, "severity": "critical", "workload": "fix", "figures": {"recent": 1.0}}
    return {"monitor": monitor, "opened_at": opened_at, "state": state, **told}


def seen(service: ScriptedService, exploit: Exploit) -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        async with aiohttp.ClientSession() as http:
            driver = Driver(RunOptions((service.url,), 1.0, 20.0, 0, exploit=exploit), http)
            driver.started_at = START
            return await aftermath(driver, ServiceView(service.url, http))

    return asyncio.run(run())


def test_alarms_and_releases_are_told_in_seconds_of_the_run(service: ScriptedService) -> None:
    service.alarms = [alarm("questions", 61.5), alarm("length", 30.0, "closed")]
    step = {"at": "2026-01-01T00:01:10Z", "by": "guard", "why": "alarm of questions", "cluster": "main"}
    service.releases = [{"version": n // 2, "state": "live" if n % 2 else "retired", **step} for n in range(2500)]
    service.releases.append({"version": 7, "state": "rolled_back", **step})
    found = seen(service, EXPLOITS["questions"])
    assert [(each["monitor"], each["opened_s"], each["state"]) for each in found["alarms"]] == [
        ("length", 30.0, "closed"),
        ("questions", 61.5, "opened"),
    ]
    assert found["seen_after_s"] == 61.5, "by a monitor that should see it"
    assert found["releases"] == {"retired": 1250, "live": 1250, "rolled_back": 1}, "of all pages"
    assert found["rolled_back"] == [{"at_s": 70.0, "version": 7, "why": "alarm of questions", "by": "guard"}]
    assert seen(service, EXPLOITS["dropped_calls"])["seen_after_s"] is None
    assert seen(service, NO_EXPLOIT)["seen_after_s"] is None


def test_the_summary_tells_of_alarms(tmp_path: Any) -> None:
    asked = ("quality_start", "quality_end", "quality_rise", "reported_accept_end", "swaps", "share_learned_from")
    asked += ("feedback_to_served_p50_s", "feedback_to_served_p99_s", "engine_idle_share", "learner_idle_share")
    nothing = dict.fromkeys(asked)
    counts = dict.fromkeys(
        ("versions", "sessions", "turns", "failed_requests", "lost_turns", "lost_outcomes", "turned_away"), 0
    )
    told = {"monitor": "questions", "workload": "fix", "opened_s": 61.5}
    hacked = {"exploit": "questions", "alarms": [told], "rolled_back": []}
    text = summary(nothing | counts | hacked, tmp_path)
    assert "exploit               questions" in text
    assert "alarms                questions of fix at 62 s; 0 rolled back" in text
    assert "alarms" not in summary(nothing | counts | {"exploit": "none", "alarms": [], "rolled_back": []}, tmp_path)
