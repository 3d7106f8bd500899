"""Guards: what no reward is waited for. A version that breaks is taken back within tens of turns.

Each guard compares the share of bad turns under the new version with that under the one it replaces, and trips when the
sequential interval (serving.releases.canaries.sequential) of the difference lies above what would not matter. One
user whose every request fails is not many users: errors are those of users. The guards' alphas add up to the stated
one (union bound). Latency is compared as the mean logarithm of milliseconds per token.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from core.clustered import Values, mean, share_error, squared_error
from core.events import Alarm
from core.operations.alarms import RELEASE
from serving.releases.canaries.observations import ServedTurn
from serving.releases.canaries.sequential import confidence_sequence

ALPHA = 0.01
ALARMED = "an alarm holds releases"
"""No more than that: whoever may read of releases may not read of the alarms of all namespaces."""
LEAST_TURNS = 20
_SCALE = 0.2  # a share that differs by as much is what guards are for
_LATENCY_SCALE = 0.5


@dataclass(frozen=True)
class Guard:
    """`bad` judges a turn; None: the turn says nothing. `matters`: the difference of shares that is tolerated."""

    name: str
    bad: Callable[[ServedTurn], bool | None]
    matters: float


GUARDS = (
    # Where numbers were not finite, the version's own probe is asked (serving.releases.suspect_versions).
    Guard("error_rate", lambda turn: turn.finish_reason == "error" if turn.not_finite is None else None, 0.02),
    Guard("invalid_tool_calls", lambda turn: turn.invalid_call if turn.purpose == "turn" else None, 0.05),
    # Silence is a right answer for suggestions.
    Guard("empty_answers", lambda turn: turn.empty if turn.purpose == "turn" and _ended(turn) else None, 0.05),
    Guard("over_long_answers", lambda turn: turn.over_long if _ended(turn) else None, 0.1),
)


def tripped(
    new: Iterable[ServedTurn],
    old: Iterable[ServedTurn],
    alarms: Sequence[Alarm] = (),
    *,
    slower_times: float | None = 4.0,
) -> str | None:
    """Return why the new version must be withdrawn; None when no guard trips. Shares are compared within workloads.

    `slower_times`: how many times as slow it may be; None where one served after the other, since their pace reflects
    the machine's load alone then."""
    for alarm in alarms:
        if alarm.severity == "critical" and RELEASE in alarm.holds:
            return ALARMED
    mine, theirs = _by_workload(new), _by_workload(old)
    shared = sorted(mine.keys() & theirs.keys())
    alpha = ALPHA / max(1, len(shared) * (len(GUARDS) + 1))
    for workload in shared:
        for guard in GUARDS:
            why = _shares(guard, mine[workload], theirs[workload], alpha)
            if why is not None:
                return f"{guard.name} in {workload}: {why}"
        why = _slower(mine[workload], theirs[workload], slower_times, alpha) if slower_times is not None else None
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
    mine = [(turn.unit, float(bad)) for turn in new if (bad := guard.bad(turn)) is not None]
    theirs = [(turn.unit, float(bad)) for turn in old if (bad := guard.bad(turn)) is not None]
    found = _excess(mine, theirs, guard.matters, alpha, _SCALE, share_error)
    return found and f"{found[0]:.0%} of {len(mine)} turns, {found[1]:.0%} of {len(theirs)} before"


def _slower(new: Sequence[ServedTurn], old: Sequence[ServedTurn], times: float, alpha: float) -> str | None:
    found = _excess(_log_pace(new), _log_pace(old), math.log(times), alpha, _LATENCY_SCALE, squared_error)
    return found and f"{math.exp(found[0]):.1f} ms per token, {math.exp(found[1]):.1f} before"


def _excess(
    mine: Values,
    theirs: Values,
    matters: float,
    alpha: float,
    scale: float,
    error_of: Callable[[Values, float], float],
) -> tuple[float, float] | None:
    """Both means, where mine is shown to lie above theirs by more than what matters."""
    if min(len(mine), len(theirs)) < LEAST_TURNS:
        return None
    a, b = mean(mine), mean(theirs)
    if a - b <= matters:  # mostly so, and cheap
        return None
    se = math.sqrt(error_of(mine, a) + error_of(theirs, b))
    return (a, b) if confidence_sequence(a - b, se, alpha, scale).low > matters else None


def _log_pace(turns: Sequence[ServedTurn]) -> list[tuple[str, float]]:
    return [
        (turn.unit, math.log(turn.latency_ms / turn.tokens)) for turn in turns if turn.tokens and turn.latency_ms > 0
    ]
