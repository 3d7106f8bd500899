"""The noise model: how often users of each experience say what."""

import random
from collections import Counter

import pytest

from simulator.tasks.sampling import Kind, sample_task
from simulator.tasks.taste import SessionQuality, Taste, wanted
from simulator.users.ide import EditorSession, Ending
from simulator.users.reports import MEAN_DELAY_S, SILENT_SHARE, UserReport, reports_of

DRAWS = 8_000
RIGHT = SessionQuality(syntax_ok=True, tests_pass=True, mismatches=0)
WRONG = SessionQuality(syntax_ok=True, tests_pass=False, mismatches=0)
ODD = SessionQuality(syntax_ok=True, tests_pass=True, mismatches=1)
ODDER = SessionQuality(syntax_ok=True, tests_pass=True, mismatches=2)


def finished(kind: Kind, ending: Ending, quality: SessionQuality | None, code: str = "") -> EditorSession:
    task = sample_task(random.Random(3), kind)
    return EditorSession(task, session_id="s", inference_ids=["i"], ending=ending, quality=quality, code=code)


def draw(session: EditorSession, seed: int = 0) -> list[list[UserReport]]:
    rng = random.Random(seed)
    return [reports_of(session, Taste(), rng) for _ in range(DRAWS)]


@pytest.mark.parametrize(
    ("kind", "ending", "quality", "shares"),
    [
        ("write", "written", RIGHT, {"accepted": 0.95, "rejected": 0.05}),
        ("write", "written", WRONG, {"accepted": 0.08, "rejected": 0.92}),
        ("write", "written", ODD, {"edited": 0.5, "rejected": 0.5}),
        ("write", "written", ODDER, {"edited": 0.15, "rejected": 0.85}),
        ("fix", "done", RIGHT, {"accepted": 0.95, "rejected": 0.05}),
        ("fix", "done", WRONG, {"accepted": 0.05, "follow_up": 0.45, "rejected": 0.5}),
        ("fix", "ask", WRONG, {"follow_up": 0.5, "rejected": 0.5}),
        ("fix", "malformed", WRONG, {"follow_up": 0.5, "rejected": 0.5}),
        ("fix", "limit", WRONG, {"follow_up": 0.5, "rejected": 0.5}),
    ],
)
def test_users_report_what_they_saw_with_noise(
    kind: Kind, ending: Ending, quality: SessionQuality, shares: dict[str, float]
) -> None:
    drawn = draw(finished(kind, ending, quality))
    spoken = [reports[0] for reports in drawn if reports]
    assert all(len(reports) <= 1 for reports in drawn)
    assert 1 - len(spoken) / DRAWS == pytest.approx(SILENT_SHARE, abs=0.012)
    names = Counter(report.metric_name for report in spoken)
    assert set(names) == set(shares)
    for name, expected in shares.items():
        assert names[name] / len(spoken) == pytest.approx(expected, abs=0.02)


def test_delays_are_exponential() -> None:
    delays = sorted(reports[0].delay_s for reports in draw(finished("write", "written", RIGHT)) if reports)
    assert sum(delays) / len(delays) == pytest.approx(MEAN_DELAY_S, rel=0.05)
    assert delays[len(delays) // 2] == pytest.approx(MEAN_DELAY_S * 0.693, rel=0.05)


def test_an_edit_tells_how_much_was_kept() -> None:
    task = sample_task(random.Random(3), "write")
    near = task.solution(hints=False, one_liner=True)
    kept = {}
    for code in (near, "x", wanted(task, Taste())):
        session = finished("write", "written", ODD, code)
        values = {report.value for reports in draw(session) for report in reports if report.metric_name == "edited"}
        assert len(values) == 1
        kept[code] = values.pop()
    assert kept[wanted(task, Taste())] == 1.0
    assert 0.5 < kept[near] < 1.0
    assert 0.0 <= kept["x"] < 0.1


@pytest.mark.parametrize("ending", ["hung_up", "failed"])
def test_who_saw_no_end_says_nothing(ending: Ending) -> None:
    assert not any(draw(finished("write", ending, None)))


def test_the_same_seed_says_the_same() -> None:
    session = finished("fix", "done", WRONG)
    assert draw(session, seed=5) == draw(session, seed=5)
    assert draw(session, seed=5) != draw(session, seed=6)
