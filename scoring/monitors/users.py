"""Monitors of the users: whether a few of them teach for all.

They look at all turns of a user, where the other monitors look at a fifth of a window at most."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from scoring.monitors.watched import Watched
from scoring.monitors.window import Finding, Window
from scoring.monitors.window_turns import LEAST

_LEAST_USERS = 20
_TOP = 0.01  # of the users, and one at least


def reward_mass(window: Window) -> Finding | None:
    """Find that one user in a hundred has much of the rewards' absolute mass; also give its Gini coefficient.

    The coefficient is 0 when all have the same, 1 when one has all. The share must be ten times what it would be if all
    had the same, and have grown."""
    if not window.reference:
        return None
    mass: defaultdict[str, float] = defaultdict(float)
    for turn in window.all_users:
        mass[turn.unit] += abs(turn.value or 0.0)
    if len(mass) < _LEAST_USERS or not sum(mass.values()):
        return None
    top, before = top_share(list(mass.values())), window.reference.once(_reference_top)
    figures = {"top_share": top, "reference": before, "gini": gini(list(mass.values())), "users": float(len(mass))}
    fair = max(1, round(_TOP * len(mass))) / len(mass)
    return Finding(top > max(0.1, 10 * fair, 2 * before), figures)


def feedback_rate(window: Window) -> Finding | None:
    """Find a user with more than a fifth of all feedback, and ten times that of the median user."""
    said: Counter[str] = Counter()
    for turn in window.all_users:
        said[turn.unit] += len(turn.told)
    if len(said) < _LEAST_USERS or said.total() < LEAST:
        return None
    counts = sorted(said.values())
    most, middle = counts[-1], counts[len(counts) // 2]
    figures = {"most": float(most), "middle": float(middle), "share": most / said.total(), "users": float(len(said))}
    return Finding(most > 0.2 * said.total() and most > 10 * max(1, middle), figures)


def gini(masses: Sequence[float]) -> float:
    """Return the Gini coefficient of masses that are not negative and not all zero."""
    ordered = sorted(masses)
    count, whole = len(ordered), sum(ordered)
    return sum((2 * place - count + 1) * mass for place, mass in enumerate(ordered)) / (count * whole)


def top_share(masses: Sequence[float]) -> float:
    top = max(1, round(_TOP * len(masses)))
    return sum(sorted(masses)[-top:]) / sum(masses)


def _reference_top(turns: Sequence[Watched]) -> float:
    mass: defaultdict[str, float] = defaultdict(float)
    for turn in turns:
        mass[turn.unit] += abs(turn.value or 0.0)
    return top_share(list(mass.values())) if sum(mass.values()) else 0.0
