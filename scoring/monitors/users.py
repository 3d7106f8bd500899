"""Monitors of the users: whether a few of them teach for all.

They look at all turns of a user, where the other monitors look at a fifth of a window at most."""

from collections.abc import Iterable, Sequence

from scoring.monitors.tally import LEAST
from scoring.monitors.watched import WatchedTurn
from scoring.monitors.window import Finding, Window
from scoring.monitors.window_turns import WindowTurns

_LEAST_USERS = 20
_TOP = 0.01  # of the users, and one at least


def reward_mass(window: Window) -> Finding | None:
    """One user in a hundred has much of the rewards' absolute mass.

    The share is ten times what it would be if all had the same, and has grown. Its figures have the Gini coefficient,
    too: 0 when all have the same, 1 when one has all."""
    if not window.reference:
        return None
    masses = sorted(window.all_users.totals(_mass).values())
    if len(masses) < _LEAST_USERS or not sum(masses):
        return None
    top, before = top_share(masses), _top_of(window.reference)
    figures = {"top_share": top, "reference": before, "gini": gini(masses), "users": float(len(masses))}
    fair = max(1, round(_TOP * len(masses))) / len(masses)
    return Finding(top > max(0.1, 10 * fair, 2 * before), figures)


def feedback_rate(window: Window) -> Finding | None:
    """One user sends more than a fifth of all feedback, and ten times that of the median user."""
    counts = sorted(window.all_users.totals(_feedback).values())
    said = sum(counts)
    if len(counts) < _LEAST_USERS or said < LEAST:
        return None
    most, middle = counts[-1], counts[len(counts) // 2]
    figures = {"most": most, "middle": middle, "share": most / said, "users": float(len(counts))}
    return Finding(most > 0.2 * said and most > 10 * max(1, middle), figures)


def gini(masses: Sequence[float]) -> float:
    """Return the Gini coefficient of masses that are not negative and not all zero."""
    ordered = sorted(masses)
    count, whole = len(ordered), sum(ordered)
    return sum((2 * place - count + 1) * mass for place, mass in enumerate(ordered)) / (count * whole)


def top_share(masses: Sequence[float]) -> float:
    top = max(1, round(_TOP * len(masses)))
    return sum(sorted(masses)[-top:]) / sum(masses)


def _top_of(turns: WindowTurns) -> float:
    masses = turns.totals(_mass).values()
    return top_share(sorted(masses)) if any(masses) else 0.0


def _mass(turn: WatchedTurn) -> Iterable[tuple[str, float]]:
    return ((turn.unit, abs(turn.value or 0.0)),)


def _feedback(turn: WatchedTurn) -> Iterable[tuple[str, float]]:
    return ((turn.unit, float(len(turn.told))),)
