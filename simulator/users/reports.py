"""The feedback of users on a session: noisy, late, sometimes nothing. Pure and seeded."""

import difflib
import random
from dataclasses import dataclass

from simulator.tasks.taste import Taste, wanted
from simulator.users.ide import EditorSession

MEAN_DELAY_S = 1.5
SILENT_SHARE = 0.05


@dataclass(frozen=True)
class UserReport:
    """One piece of feedback, `delay_s` after the session's end or the feedback before.

    `source` is None where the client does not name one."""

    metric_name: str
    value: bool | float
    delay_s: float
    source: str | None = None


def reports_of(session: EditorSession, taste: Taste, rng: random.Random) -> list[UserReport]:
    """Return the user's feedback; none from some who saw the end, and from all who did not."""
    if session.quality is None or rng.random() < SILENT_SHARE:
        return []
    name, value = _write(session, taste, rng) if session.task.kind == "write" else _fix(session, rng)
    return [UserReport(name, value, rng.expovariate(1 / MEAN_DELAY_S))]


def _write(session: EditorSession, taste: Taste, rng: random.Random) -> tuple[str, bool | float]:
    """Report on written code.

    Wrong code slips through now and then; what is right but not in taste is edited, or turned down."""
    assert session.quality is not None
    luck = rng.random()
    if not session.quality.tests_pass:
        return ("accepted", True) if luck < 0.08 else ("rejected", True)
    if session.quality.in_taste:
        return ("accepted", True) if luck < 0.95 else ("rejected", True)
    if luck < (0.5 if session.quality.mismatches == 1 else 0.15):
        kept = difflib.SequenceMatcher(None, session.code, wanted(session.task, taste)).ratio()
        return "edited", round(kept, 3)
    return "rejected", True


def _fix(session: EditorSession, rng: random.Random) -> tuple[str, bool | float]:
    """Report on a fix.

    Users believe an agent that says it is done a little too often, and complain when it wasted their time."""
    assert session.quality is not None
    luck = rng.random()
    if session.ending == "done":
        if session.quality.tests_pass:
            return ("accepted", True) if luck < 0.95 else ("rejected", True)
        if luck < 0.05:
            return "accepted", True
    return ("follow_up", True) if luck < 0.5 else ("rejected", True)
