"""The verdict on a canary: promote, roll back, or wait.

rollback   the interval of canary less live lies below 0: worse, at any look, wrongly with probability at most alpha
promote    it lies above -margin: no worse than that
           in either case no worse, with the steps before it, than an earlier version
           (serving.releases.canaries.ratchet)
           where users change arms a fifth of alpha is for these looks, the rest for one at the horizon
horizon    undecided after `horizon_turns` matured canary turns, or `horizon_s`: promoted, since it was not shown to be
           worse; the figures say by how much it may be at most, and the holdback sees slow drift. Of each user at most
           a fifth of those turns counts; where there are fewer than ten users, more"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Literal

from core.ids import UNKNOWN, PolicyRef
from core.settings import CanarySettings
from core.statistics.clustered import contrast
from core.statistics.sequential import NOTHING_KNOWN, Interval, confidence_sequence
from serving.releases.canaries.evidence import Arm, ArmStatistics, difference
from serving.releases.canaries.guards import LEAST_TURNS, LEAST_USERS
from serving.releases.canaries.ratchet import REFUSED_AT, RETURNED_AT, PromotionStep, behind

EFFECT = 0.15
"""A difference in reward of about this size is found soonest."""
_AT_THE_HORIZON = 0.8
"""The part of alpha that is kept for one look at the horizon, where users change arms."""
_FIRST_SHARE = 6 / math.pi**2
"""The first horizon's share of alpha against drift; the n-th has an n²-th of it, and all together have alpha."""


@dataclass(frozen=True)
class CanaryVerdict:
    action: Literal["promote", "rollback", "wait"]
    why: str
    figures: dict[str, float] = field(default_factory=dict)
    back_to: PolicyRef | None = None  # of a rollback by rewards: where the live version is to go as well


def judge(
    canary: Arm,
    live: Arm,
    age_s: float,
    settings: CanarySettings,
    live_version: PolicyRef = UNKNOWN,
    steps: Sequence[PromotionStep] = (),
) -> CanaryVerdict:
    """Judge a canary. `steps`: those that led to the live version, the newest first."""
    return _with_steps(_alone(canary, live, age_s, settings), live_version, steps)


def judge_few(
    canary: ArmStatistics,
    live: ArmStatistics,
    age_s: float,
    settings: CanarySettings,
    live_version: PolicyRef = UNKNOWN,
    steps: Sequence[PromotionStep] = (),
) -> CanaryVerdict:
    """Judge a canary whose users change arms: each is held against themselves."""
    return _with_steps(_within(canary, live, age_s, settings), live_version, steps)


def _with_steps(found: CanaryVerdict, live_version: PolicyRef, steps: Sequence[PromotionStep]) -> CanaryVerdict:
    if found.action == "promote":
        step = PromotionStep.measured(live_version, found.figures["difference"], found.figures["error"])
        worse = behind((step, *steps), REFUSED_AT)
        if worse is not None:
            found = replace(found, action="rollback", why=f"worse than version {worse.version}: {worse}")
    returned = behind(steps, RETURNED_AT) if found.action == "rollback" else None
    return found if returned is None else replace(found, back_to=returned.version)


def _alone(canary: Arm, live: Arm, age_s: float, settings: CanarySettings) -> CanaryVerdict:
    """Against the live version."""
    found = difference(canary, live, settings.min_users, settings.alpha, EFFECT)
    return _decided(canary, live, found, _error(canary, live), age_s, settings, settings.min_users)


def _within(canary: ArmStatistics, live: ArmStatistics, age_s: float, settings: CanarySettings) -> CanaryVerdict:
    found = contrast(canary.units, live.units)
    everybody = len(canary.units.keys() | live.units.keys())
    least = max(LEAST_USERS, min(settings.min_users, everybody // 2))
    few = min(canary.users, live.users) < least or min(canary.turns, live.turns) < LEAST_TURNS
    if few or found.units < LEAST_USERS:
        return _decided(canary, live, NOTHING_KNOWN, math.inf, age_s, settings, least)
    error = math.sqrt(found.squared_error)
    if _is_over(canary, live, age_s, settings):
        reach = NormalDist().inv_cdf(1 - _AT_THE_HORIZON * settings.alpha) * error
        interval = Interval(found.difference, found.difference - reach, found.difference + reach)
    else:
        interval = confidence_sequence(found.difference, error, (1 - _AT_THE_HORIZON) * settings.alpha, EFFECT)
    return _decided(canary, live, interval, error, age_s, settings, least)


def _is_over(canary: Arm, live: Arm, age_s: float, settings: CanarySettings) -> bool:
    """Return whether the horizon is reached: in time, or in turns, of which a share of each user counts at most."""
    if age_s >= settings.horizon_s:
        return True
    if canary.turns < settings.horizon_turns:  # mostly so, and cheap
        return False
    users = min(LEAST_USERS, max(1, len(canary.units.keys() | live.units.keys()) // 2))
    return canary.turns_of(settings.horizon_turns / users) >= settings.horizon_turns


def _decided(
    canary: Arm, live: Arm, found: Interval, error: float, age_s: float, settings: CanarySettings, needed_users: int
) -> CanaryVerdict:
    figures = _figures(canary, live, found, error) | {"needed_users": float(needed_users)}
    said = f"reward {found.estimate:+.3f} against the live version, within [{found.low:+.3f}, {found.high:+.3f}]"
    if found.high < 0:
        return CanaryVerdict("rollback", f"worse: {said}", figures)
    if found.low > -settings.margin:
        return CanaryVerdict("promote", f"no worse by {settings.margin}: {said}", figures)
    if _is_over(canary, live, age_s, settings):
        return CanaryVerdict("promote", f"not shown to be worse by the horizon: {said}", figures)
    return CanaryVerdict("wait", said, figures)


def drifted(live: Arm, holdback: Arm, settings: CanarySettings, horizons: int = 0) -> CanaryVerdict:
    """Return whether the live version is worse than the first, by the users who stayed on that.

    Each horizon looks at its own evidence, and spends less of alpha than those before it (`horizons` of them), so that
    all together are wrong no more often than alpha says."""
    alpha = settings.alpha * _FIRST_SHARE / (1 + horizons) ** 2
    found = difference(live, holdback, settings.min_users, alpha, EFFECT)
    figures = _figures(live, holdback, found, _error(live, holdback))
    said = f"reward {found.estimate:+.3f} against the first version, within [{found.low:+.3f}, {found.high:+.3f}]"
    return CanaryVerdict("rollback" if found.high < 0 else "wait", said, figures)


def _error(one: Arm, other: Arm) -> float:
    return math.sqrt(one.squared_error + other.squared_error)


def _figures(one: Arm, other: Arm, found: Interval, error: float) -> dict[str, float]:
    return {
        "turns": float(one.turns),
        "users": float(one.users),
        "control_turns": float(other.turns),
        "control_users": float(other.users),
        "difference": found.estimate,
        "error": error,
        "low": found.low,
        "high": found.high,
    }
