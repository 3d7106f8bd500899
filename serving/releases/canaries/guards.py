"""Guards: checks that need no rewards, so that a broken version is rolled back within tens of turns.

Each guard compares the share of bad turns under the new version with that under the one it replaces, and trips when the
sequential interval (core.statistics.sequential) of the difference lies above the tolerated difference. The
guards' alphas add up to the stated one (union bound). Latency is compared as the mean logarithm of milliseconds per
token.

No single user can decide or hide anything: errors are computed over users; only the newest turns count of a user with
many more than others; and a guard says nothing before there are enough users on both sides. Workloads with fewer users
are judged together, since somebody may have invented one.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import median_low

from core.events import Alarm
from core.operations.alarms import RELEASE
from core.statistics.clustered import Values, effective_units, mean, share_error, squared_error
from core.statistics.sequential import confidence_sequence
from serving.releases.canaries.observations import ServedTurn

ALPHA = 0.01
ALARMED = "an alarm holds releases"
"""No more than that: whoever may read of releases may not read of the alarms of all namespaces."""
LEAST_TURNS = 20
LEAST_USERS = 5
"""Effective users (Kish) on either side. Services of fewer than twenty need a quarter of them, and two at least."""
_MOST_TURNS = 5  # of a user; twice as many as the median user has, where that is more
_USUAL = 0.9  # of whole answers, which are no longer than an over-long one
_SCALE = 0.2  # a share that differs by as much is what guards are for
_LATENCY_SCALE = 0.5


@dataclass(frozen=True)
class Guard:
    """`bad` judges a turn, by how many tokens nine in ten whole answers have at most; None: it says nothing.

    `matters`: the difference of shares that is tolerated."""

    name: str
    bad: Callable[[ServedTurn, float], bool | None]
    matters: float


GUARDS = (
    # Where numbers were not finite, the version's own probe is asked (serving.releases.suspect_versions).
    Guard("error_rate", lambda turn, _: turn.finish_reason == "error" if turn.not_finite is None else None, 0.02),
    Guard("invalid_tool_calls", lambda turn, _: turn.invalid_call if turn.purpose == "turn" else None, 0.05),
    # Silence is a right answer for suggestions.
    Guard("empty_answers", lambda turn, _: turn.empty if turn.purpose == "turn" and _ended(turn) else None, 0.05),
    Guard("over_long_answers", lambda turn, usual: _over_long(turn, usual) if _ended(turn) else None, 0.1),
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
    strata = _strata(new, old)
    alpha = ALPHA / max(1, len(strata) * (len(GUARDS) + 1))
    for workload, mine, theirs in strata:
        usual = _usual_tokens([*mine, *theirs])
        for guard in GUARDS:
            why = _shares(guard, mine, theirs, usual, alpha)
            if why is not None:
                return f"{guard.name} in {workload}: {why}"
        why = _slower(mine, theirs, slower_times, alpha) if slower_times is not None else None
        if why is not None:
            return f"latency in {workload}: {why}"
    return None


def _ended(turn: ServedTurn) -> bool:
    return turn.finish_reason in ("stop", "length", "tool_calls")


def _over_long(turn: ServedTurn, usual: float) -> bool | None:
    """Return whether an answer was cut off by the limit; None where the request's limit lies below usual answers."""
    if not turn.over_long:
        return False
    return True if turn.tokens >= usual else None


def _usual_tokens(turns: Sequence[ServedTurn]) -> float:
    """Return how many tokens nine in ten whole answers have at most."""
    whole = sorted(turn.tokens for turn in turns if _ended(turn) and not turn.over_long)
    return whole[int(_USUAL * (len(whole) - 1))] if whole else 0.0


Turns = list[ServedTurn]


def _strata(new: Iterable[ServedTurn], old: Iterable[ServedTurn]) -> list[tuple[str, Turns, Turns]]:
    """Return what is compared with each other: the workloads, and together those in which too few users are."""
    mine, theirs = _by_workload(new), _by_workload(old)
    compared, few = [], (Turns(), Turns())
    for workload in sorted(mine.keys() & theirs.keys()):
        sides = _newest(mine[workload]), _newest(theirs[workload])
        if _have_users(*map(_users, sides)):
            compared.append((workload, *sides))
        else:
            for pooled, turns in zip(few, (mine[workload], theirs[workload]), strict=True):
                pooled += turns
    if all(few):
        new_few, old_few = (_newest(sorted(turns, key=lambda turn: turn.received_at_s)) for turns in few)
        compared.append(("workloads of few users", new_few, old_few))
    return compared


def _by_workload(turns: Iterable[ServedTurn]) -> dict[str, Turns]:
    found: defaultdict[str, Turns] = defaultdict(list)
    for turn in turns:
        if turn.finish_reason != "abort":  # the user went: nobody's fault
            found[turn.workload].append(turn)
    return found


def least_users(everybody: int) -> int:
    """Return how many effective users it takes, of so many who are there."""
    return min(LEAST_USERS, max(2, everybody // 4))


def most_of_one(turns: Collection[int]) -> int:
    """Return how many turns of a user count, by how many each has."""
    return max(_MOST_TURNS, 2 * median_low(turns)) if turns else 0


def _newest(turns: Turns) -> Turns:
    """Return the newest turns of each user, of turns in order of time."""
    most = most_of_one(Counter(_users(turns)).values())
    taken: Counter[str] = Counter()
    found = []
    for turn in reversed(turns):
        taken[turn.unit] += 1
        if taken[turn.unit] <= most:
            found.append(turn)
    return found


def _users(turns: Sequence[ServedTurn]) -> list[str]:
    return [turn.unit for turn in turns]


def _have_users(mine: Sequence[str], theirs: Sequence[str]) -> bool:
    return min(effective_units(mine), effective_units(theirs)) >= least_users(len({*mine, *theirs}))


def _shares(guard: Guard, new: Turns, old: Turns, usual: float, alpha: float) -> str | None:
    mine = [(turn.unit, float(bad)) for turn in new if (bad := guard.bad(turn, usual)) is not None]
    theirs = [(turn.unit, float(bad)) for turn in old if (bad := guard.bad(turn, usual)) is not None]
    found = _excess(mine, theirs, guard.matters, alpha, _SCALE, share_error)
    return found and f"{found[0]:.0%} of {len(mine)} turns, {found[1]:.0%} of {len(theirs)} before"


def _slower(new: Turns, old: Turns, times: float, alpha: float) -> str | None:
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
    if not _have_users([unit for unit, _ in mine], [unit for unit, _ in theirs]):
        return None
    a, b = mean(mine), mean(theirs)
    if a - b <= matters:  # mostly so, and cheap
        return None
    se = math.sqrt(error_of(mine, a) + error_of(theirs, b))
    return (a, b) if confidence_sequence(a - b, se, alpha, scale).low > matters else None


def _log_pace(turns: Sequence[ServedTurn]) -> list[tuple[str, float]]:
    return [
        (turn.unit, math.log(turn.latency_ms / turn.tokens))
        for turn in turns
        if turn.waited_for and turn.tokens and turn.latency_ms > 0
    ]
