"""The end of a run reports what is missing, what is there twice, and whether the model improved."""

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from scripted_service import Message, ScriptedService, bungler, expert

from bench.headline.figures import SAID
from simulator import __main__ as program
from simulator import report
from simulator.losses import Losses, find_losses
from simulator.outcome.curves import Point, RunCurves, draw
from simulator.outcome.truth import Lived, Truth
from simulator.report import succeeded, summary, write
from simulator.service import ServiceView
from simulator.tasks.sampling import sample_task
from simulator.users import reports as users
from simulator.users.ide import EditorSession
from simulator.view import sparkline

ROOT = Path(__file__).resolve().parents[2]
ISSUE_KEYS = {
    "seed", "quality_start", "quality_at_90_s", "quality_at_150_s", "quality_end", "reported_accept_end",
    "feedback_to_served_p50_s", "feedback_to_served_p99_s", "versions", "turns", "failed_requests", "lost_turns",
    "lost_outcomes", "share_learned_from",
}  # fmt: skip


def told(service: ScriptedService, sessions: int = 20) -> Truth:
    """Return the truth of a run whose every turn and outcome the service holds."""
    truth, task = Truth(), sample_task(random.Random(0), "fix")
    for number in range(sessions):
        turns = [f"turn-{number}-{turn}" for turn in range(3)]
        truth.lived.append(Lived(0.0, EditorSession(task, session_id=f"s{number}", inference_ids=turns), "accepted"))
        truth.outcome_ids[f"outcome-{number}"] = f"s{number}"
        service.sessions[f"s{number}"] = list(turns)
        about = {"session_id": f"s{number}"} if number % 2 else {"inference_id": turns[-1]}
        service.outcomes[f"outcome-{number}"] = about
    return truth


def losses(url: str, truth: Truth, settle_s: float = 0.0) -> Losses:
    async def run() -> Losses:
        async with aiohttp.ClientSession() as http:
            return await find_losses(truth, ServiceView(url, http), settle_s)

    return asyncio.run(run())


def lose_turn(service: ScriptedService) -> None:
    service.sessions["s3"].remove("turn-3-1")


def repeat_turn(service: ScriptedService) -> None:
    service.sessions["s3"].append("turn-3-1")


def lose_outcome(service: ScriptedService) -> None:
    del service.outcomes["outcome-4"]


def repeat_outcome(service: ScriptedService) -> None:
    service.repeated.add("outcome-5")


def lose_session(service: ScriptedService) -> None:
    del service.sessions["s7"]


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda service: None, Losses(0, 0)),
        (lose_turn, Losses(1, 0)),
        (repeat_turn, Losses(1, 0)),
        (lose_outcome, Losses(0, 1)),
        (repeat_outcome, Losses(0, 1)),
        (lose_session, Losses(3, 1)),
    ],
)
def test_what_is_not_there_once_is_lost(
    service: ScriptedService, damage: Callable[[ScriptedService], None], expected: Losses
) -> None:
    truth = told(service)
    damage(service)
    assert losses(service.url, truth) == expected


def test_turns_that_nobody_was_told_of_do_not_count(service: ScriptedService) -> None:
    """A user who hung up leaves a turn that was logged and never acknowledged."""
    truth = told(service)
    service.sessions["s3"].append("aborted")
    service.sessions["unheard"].append("aborted too")
    assert losses(service.url, truth) == Losses(0, 0)


def test_a_late_service_is_waited_for(service: ScriptedService) -> None:
    truth = told(service)
    lose_turn(service)
    service.after[service.counts["sessions"] + 25] = lambda: repeat_turn(service)  # the turn comes in after all
    assert losses(service.url, truth, settle_s=120.0) == Losses(0, 0)  # no longer than the turn is away
    assert service.counts["sessions"] < 40, "only what was missing is asked for again"


def test_a_service_that_is_gone_has_lost_everything(service: ScriptedService) -> None:
    assert losses("http://127.0.0.1:9", told(service)) == Losses(60, 20)


def test_a_service_that_errs_has_lost_what_it_does_not_show(service: ScriptedService) -> None:
    service.script.status = lambda route: 500
    assert losses(service.url, told(service)) == Losses(60, 20)


PASSING = {
    "lost_turns": 0,
    "lost_outcomes": 0,
    "failed_requests": 0,
    "quality_start": 0.3,
    "quality_end": 0.5,
    "quality_rise": [0.1, 0.3],
}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"lost_turns": 1}, False),
        ({"lost_outcomes": 1}, False),
        ({"failed_requests": 1}, False),
        ({"quality_end": 0.49}, False),
        ({"quality_end": None}, False),
        ({"quality_rise": (-0.01, 0.41)}, False),
        ({"quality_rise": None}, False),
        ({"quality_start": None}, False),
    ],
)
def test_success_is_nothing_lost_and_a_rise_of_a_fifth(change: dict[str, Any], expected: bool) -> None:
    assert succeeded(PASSING | change) is expected


def test_a_rise_of_a_fifth_is_enough_from_wherever_it_starts() -> None:
    """Every pair of shares of 200 sessions is compared with exact counts."""
    for start in range(201):
        for end in range(201):
            figures = {"quality_start": start / 200, "quality_end": end / 200}
            assert succeeded(PASSING | figures) is (end - start >= 40), (start, end)


FIGURES = PASSING | {
    "seed": 4,
    "reported_accept_end": 0.61,
    "feedback_to_served_p50_s": 3.44,
    "feedback_to_served_p99_s": None,
    "versions": 12,
    "swaps": 11,
    "sessions": 3000,
    "turns": 7000,
    "share_learned_from": 0.987,
    "engine_idle_share": 0.31,
    "learner_idle_share": 0.12,
    "turned_away": 2,
    "provenance": {"command": "onward demo", "commit": None},
}


def test_the_summary_tells_the_figures() -> None:
    text = summary(FIGURES, Path("demo"))
    for part in (
        "30% at the start, 50% at the end",
        "61% at the end",
        "p50 3.4 s, p99 -",
        "12, 11 swaps",
        "3000, 7000; 99% of the rewarded turns",
        "engine 31%, learner 12%",
        "0 requests; 0 turns, 0 outcomes; 2 users turned away",
        "demo/report.json, demo/curves.png",
    ):
        assert part in text
    assert text.endswith("The model learned from its users.")
    assert "taste shift" not in text


def test_the_summary_tells_what_nobody_could_tell_and_what_was_lost() -> None:
    asked = ("quality_start", "quality_end", "quality_rise", "reported_accept_end", "swaps", "share_learned_from")
    nothing = dict.fromkeys((*asked, "engine_idle_share", "learner_idle_share"))
    text = summary(FIGURES | nothing | {"lost_turns": 3, "lost_outcomes": 1, "failed_requests": 5}, Path("demo"))
    assert "- at the start, - at the end" in text
    assert "engine -, learner -" in text
    assert "5 requests; 3 turns, 1 outcomes" in text
    assert text.endswith("The run did not meet its bar.")


def test_the_summary_tells_of_a_shift() -> None:
    text = summary(FIGURES | {"quality_before_shift": 0.8, "recovered_after_s": 58.0}, Path("demo"))
    assert "80% before; nine tenths of it again after 58.0 s" in text


def test_what_is_written_is_the_report_with_its_curves(tmp_path: Path) -> None:
    curves = RunCurves([Point(1.0, 0.5, None, 2, 3.5), Point(2.0)])
    write(FIGURES, curves, tmp_path / "new" / "folder")
    written = json.loads((tmp_path / "new" / "folder" / "report.json").read_text())
    assert written.pop("curves") == {
        "second": [1.0, 2.0],
        "quality": [0.5, None],
        "accepted": [None, None],
        "version": [2, None],
        "feedback_to_served_p50_s": [3.5, None],
    }
    assert written == FIGURES
    assert (tmp_path / "new" / "folder" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_program_ends_with_1_when_something_failed(service: ScriptedService, tmp_path: Path) -> None:
    """The program runs in a process of its own, as users start it."""
    service.script.status = lambda route: 503 if route == "chat" else 200
    arguments = ["--url", service.url, "--seconds", "0.2", "--rate", "40", "--output", str(tmp_path)]
    ended = subprocess.run(
        [sys.executable, "-m", "simulator", *arguments], capture_output=True, text=True, timeout=240, cwd=ROOT
    )
    assert (ended.returncode, ended.stderr) == (1, "")
    assert "The run did not meet its bar." in ended.stdout
    written = json.loads((tmp_path / "report.json").read_text())
    assert written["failed_requests"] == written["sessions"] == service.counts["chat"] > 0


def run_program(service: ScriptedService, output: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> Any:
    """Return (exit code, report)."""
    monkeypatch.setattr(users, "MEAN_DELAY_S", 0.02)
    monkeypatch.setattr(report, "SETTLE_S", 0.0)
    arguments = ["simulator", "--url", service.url, "--output", str(output), "--seed", "3", *options]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as ended:
        program.main()
    return ended.value.code, json.loads((output / "report.json").read_text())


def learner(service: ScriptedService, after_chats: int) -> Callable[[list[Message]], Message]:
    """Return a model that bungles at first and becomes an expert as version 2."""
    service.script.versions = lambda chats: 1 if chats < after_chats else 2
    return lambda messages: (bungler if len(service.chats) <= after_chats else expert)(messages)


def test_a_model_that_learns_succeeds(
    service: ScriptedService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    service.script.answer = learner(service, 60)
    code, written = run_program(service, tmp_path, monkeypatch, "--seconds", "2.2", "--rate", "120")
    assert written["failures"] == []
    assert code == 0
    assert written.keys() >= ISSUE_KEYS | SAID.keys() | {"curves", "turned_away", "rates_start", "rates_end", "endings"}
    assert written["quality_start"] == 0.0
    assert written["quality_end"] > 0.5
    assert written["quality_at_90_s"] is None, "there was no such second"
    assert (written["feedback_to_served_p50_s"], written["feedback_to_served_p99_s"]) == (3.5, 7.25)
    assert (written["versions"], written["swaps"], written["share_learned_from"]) == (2, 1, 0.5)
    assert (written["learner_idle_share"], written["learner"]["loss"]) == (0.75, 0.5)
    assert [each["version"] for each in written["updates"]] == sorted(each["version"] for each in written["updates"])
    assert written["updates"][-1]["loss"] == 0.5
    assert written["engine_idle_share"] == pytest.approx(1 - 0.55 / 2.2)
    assert written["probe_share"] == pytest.approx(0.22 / 2.2)
    assert 0 <= len(service.chats) - written["turns"] <= 20, "but for users who hung up"
    assert written["curves"]["quality"][-1] is not None
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "true quality -" in printed, "lines as it runs"
    assert "The model learned from its users." in printed


def test_a_model_that_learns_nothing_fails_and_what_is_lost_is_told(
    service: ScriptedService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.script.forgets = True
    code, written = run_program(service, tmp_path, monkeypatch, "--seconds", "1.5", "--rate", "50")
    assert code == 1
    assert (written["quality_start"], written["lost_turns"], written["failed_requests"]) == (1.0, 1, 0)


def test_a_service_without_figures_is_reported_all_the_same(
    service: ScriptedService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.script.status = lambda route: 503
    options = ("--seconds", "0.2", "--rate", "50", "--shift-at", "0.1")
    code, written = run_program(service, tmp_path, monkeypatch, *options)
    assert code == 1
    assert written["failed_requests"] == written["sessions"] + 1, "and one for its own figures"
    assert written["feedback_to_served_p50_s"] is None
    assert written["share_learned_from"] is None
    assert (written["engine_idle_share"], written["learner_idle_share"], written["learner"]) == (None, None, None)
    assert (written["recovered_after_s"], written["probe_share"]) == (None, None)


def test_a_sparkline_shows_shares_and_gaps() -> None:
    assert sparkline([0.0, None, 0.5, 1.0]) == "▁ ▅█"
    assert len(sparkline([0.5] * 500)) < 100


def test_curves_are_drawn_with_gaps(tmp_path: Path) -> None:
    curves = RunCurves([Point(1.0), Point(2.0, quality=0.4, accepted=0.5, version=3)])
    draw(curves, {"quality_start": None, "seed": 0, "versions": 3, "provenance": None}, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 1000
