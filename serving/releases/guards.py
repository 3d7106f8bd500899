"""Guards: what no reward is waited for. A version that breaks is taken back within tens of turns.

Each guard compares the share of bad turns under the new version with that under the one it replaces, and trips when the
sequential interval (serving.releases.sequential) of the difference lies above what would not matter. Their alphas add
up to the stated one (union bound). Latency is compared as the mean logarithm of milliseconds per token.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from core.events import Alarm
from serving.releases.observations import ServedTurn
from serving.releases.sequential import confidence_sequence

ALPHA = 0.01
LEAST_TURNS = 20
_SCALE = 0.2  # a share that differs by as much is what guards are for
_SLOWER = math.log(1.5)
_LATENCY_SCALE = 0.5


@dataclass(frozen=True)
class Guard:
    """`bad` judges a turn; None: the turn says nothing. `matters`: the difference of shares that is tolerated."""

    name: str
    bad: Callable[[ServedTurn], bool | None]
    matters: float


GUARDS = (
    Guard("error_rate", lambda turn: turn.finish_reason == "error", 0.02),
    Guard("invalid_tool_calls", lambda turn: turn.invalid_call if turn.purpose == "turn" else None, 0.05),
    # Silence is a right answer for suggestions.
    Guard("empty_answers", lambda turn: turn.empty if turn.purpose == "turn" and _ended(turn) else None, 0.05),
    Guard("over_long_answers", lambda turn: turn.over_long if _ended(turn) else None, 0.1),
)


def tripped(new: Iterable[ServedTurn], old: Iterable[ServedTurn], alarms: Sequence[Alarm] = ()) -> str | None:
    """Why the new version must go; None when nothing says so. Shares are compared within each workload."""
    for alarm in alarms:
        if alarm.severity == "critical" and "release" in alarm.holds:
            return f"alarm of {alarm.monitor}: {_said(alarm.figures)}"
    mine, theirs = _by_workload(new), _by_workload(old)
    shared = sorted(mine.keys() & theirs.keys())
    alpha = ALPHA / max(1, len(shared) * (len(GUARDS) + 1))
    for workload in shared:
        for guard in GUARDS:
            why = _shares(guard, mine[workload], theirs[workload], alpha)
            if why is not None:
                return f"{guard.name} in {workload}: {why}"
        why = _slower(mine[workload], theirs[workload], alpha)
        if why is not None:
            return f"latency in {workload}: {why}"
    return None


def _ended(turn: ServedTurn) -> bool:
    return turn.finish_reason in ("stop", "length", "tool_calls")


def _by_workload(turns: Iterable[ServedTurn]) -> dict[str, list[ServedTurn]]:
    found: defaultdict[str, list[ServedTurn]] = defaultdict(list)
    for turn in turns:
        if turn.finish_reason != "abort":  # the user went: nobody's fault
            found[turn.workload].append(turn)
    return found


def _shares(guard: Guard, new: Sequence[ServedTurn], old: Sequence[ServedTurn], alpha: float) -> str | None:
    mine = [bad for turn in new if (bad := guard.bad(turn)) is not None]
    theirs = [bad for turn in old if (bad := guard.bad(turn)) is not None]
    if min(len(mine), len(theirs)) < LEAST_TURNS:
        return None
    p, q = sum(mine) / len(mine), sum(theirs) / len(theirs)
    se = math.sqrt(_variance(mine) / len(mine) + _variance(theirs) / len(theirs))
    if confidence_sequence(p - q, se, alpha, _SCALE).low <= guard.matters:
        return None
    return f"{p:.0%} of {len(mine)} turns, {q:.0%} of {len(theirs)} before"


def _variance(bad: Sequence[bool]) -> float:
    """With half a turn of each kind added, so that a share of none is not taken for certain."""
    share = (sum(bad) + 0.5) / (len(bad) + 1)
    return share * (1 - share)


def _slower(new: Sequence[ServedTurn], old: Sequence[ServedTurn], alpha: float) -> str | None:
    mine, theirs = _log_pace(new), _log_pace(old)
    if min(len(mine), len(theirs)) < LEAST_TURNS:
        return None
    (a, va), (b, vb) = _moments(mine), _moments(theirs)
    if confidence_sequence(a - b, math.sqrt(va + vb), alpha, _LATENCY_SCALE).low <= _SLOWER:
        return None
    return f"{math.exp(a):.1f} ms per token, {math.exp(b):.1f} before"


def _log_pace(turns: Sequence[ServedTurn]) -> list[float]:
    return [math.log(turn.latency_ms / turn.tokens) for turn in turns if turn.tokens and turn.latency_ms > 0]


def _moments(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and its squared error."""
    mean = sum(values) / len(values)
    return mean, sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values)


def _said(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in sorted(figures.items()))
