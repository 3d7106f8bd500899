"""Rewards by arm, with the user as the unit: turns of one user resemble each other, and are not independent."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from core.ids import InferenceId
from core.statistics.clustered import SCALE, UnitSums, parts
from core.statistics.sequential import NOTHING_KNOWN, Interval, confidence_sequence

LIKENESS = 0.1
"""The intraclass correlation that turns of one user are taken to have when users are weighed. The
error is the users' own whatever this is; near the truth it is smallest (Liang & Zeger 1986)."""


def _weight(unit: UnitSums) -> float:
    """Return the number of independent turns that a user's are worth."""
    return unit.count / (1 + LIKENESS * (unit.count - 1))


class Arm(Protocol):
    """The evidence on an arm, as verdicts use it."""

    @property
    def turns(self) -> int: ...

    @property
    def users(self) -> int: ...

    @property
    def units(self) -> Mapping[str, UnitSums]: ...

    def turns_of(self, most: float) -> float: ...

    @property
    def mean(self) -> float: ...

    @property
    def squared_error(self) -> float: ...


@dataclass
class ArmStatistics:
    """Weighted mean of the users' mean rewards, and its error, kept as rewards come and change: in constant time.

    The sums are exact, so that a reward which was taken back leaves nothing behind, however large it was."""

    turns: int = 0
    units: dict[str, UnitSums] = field(default_factory=dict)
    _weight: int = 0  # sums over users of w, w m, w², w² m, w² m², in parts
    _sum: int = 0
    _weight2: int = 0
    _sum2: int = 0
    _squares2: int = 0

    @property
    def users(self) -> int:
        return len(self.units)

    def turns_of(self, most: float) -> float:
        """Return how many turns there are, of each user so many at most."""
        return sum(min(unit.count, most) for unit in self.units.values())

    def add(self, unit: str, value: float) -> None:
        known = self.units.setdefault(unit, UnitSums())
        if known.count:
            self._sum_up(known, -1)
        known.change(value)
        self.turns += 1
        self._sum_up(known, 1)

    def remove(self, unit: str, value: float) -> None:
        known = self.units[unit]
        self._sum_up(known, -1)
        known.change(value, -1)
        self.turns -= 1
        if known.count:
            self._sum_up(known, 1)
        else:
            del self.units[unit]

    def replace(self, unit: str, old: float, new: float) -> None:
        self.add(unit, new)
        self.remove(unit, old)

    def _sum_up(self, unit: UnitSums, sign: int) -> None:
        weight, mean = _weight(unit), unit.mean
        self._weight += sign * parts(weight)
        self._sum += sign * parts(weight * mean)
        self._weight2 += sign * parts(weight**2)
        self._sum2 += sign * parts(weight**2 * mean)
        self._squares2 += sign * parts(weight**2 * mean**2)

    @property
    def mean(self) -> float:
        return self._sum / self._weight if self.units else math.nan

    @property
    def squared_error(self) -> float:
        """The squared error of the mean, from how far the users' means lie from it."""
        if self.users < 2:
            return math.inf
        weight, total = self._weight, self._sum
        spread = weight**2 * self._squares2 - 2 * weight * total * self._sum2 + total**2 * self._weight2
        return max(0, spread) * SCALE / weight**4 * self.users / (self.users - 1)


def difference(one: Arm, other: Arm, least_users: int, alpha: float, scale: float) -> Interval:
    """Return the interval of the means' difference, `one` less `other`.

    It is unbounded until both have `least_users`."""
    if min(one.users, other.users) < least_users:
        return NOTHING_KNOWN
    se = math.sqrt(one.squared_error + other.squared_error)
    return confidence_sequence(one.mean - other.mean, se, alpha, scale)


@dataclass(frozen=True)
class _Waiting:
    inference_id: InferenceId
    unit: str
    arm: str
    received_at_s: float


class RewardEvidence:
    """Turns count once they are of age, in every arm alike: else what is decided quickly (rejections) would decide.

    A turn that has no reward by then counts when it gets one; a revised reward takes the place of the old one.
    """

    def __init__(self, maturity_s: float) -> None:
        self._maturity_s = maturity_s
        self._waiting: deque[_Waiting] = deque()
        self._mature: dict[InferenceId, _Waiting] = {}
        self._rewards: dict[InferenceId, float] = {}
        self._counted: dict[InferenceId, float] = {}
        self.arms: dict[str, ArmStatistics] = {}

    def turn(self, inference_id: InferenceId, unit: str, arm: str, received_at_s: float) -> None:
        self._waiting.append(_Waiting(inference_id, unit, arm, received_at_s))

    def reward(self, inference_id: InferenceId, value: float | None) -> None:
        """Take a turn's reward; None: it has none any more."""
        if value is None:
            self._rewards.pop(inference_id, None)
        else:
            self._rewards[inference_id] = value
        if inference_id in self._mature:
            self._count(self._mature[inference_id])

    def ripen(self, now_s: float) -> None:
        while self._waiting and self._waiting[0].received_at_s <= now_s - self._maturity_s:
            turn = self._waiting.popleft()
            self._mature[turn.inference_id] = turn
            if turn.inference_id in self._rewards:
                self._count(turn)

    def arm(self, name: str) -> ArmStatistics:
        return self.arms.setdefault(name, ArmStatistics())

    def _count(self, turn: _Waiting) -> None:
        value, before = self._rewards.get(turn.inference_id), self._counted.pop(turn.inference_id, None)
        if value is None:
            if before is not None:
                self.arm(turn.arm).remove(turn.unit, before)
            return
        if before is None:
            self.arm(turn.arm).add(turn.unit, value)
        else:
            self.arm(turn.arm).replace(turn.unit, before, value)
        self._counted[turn.inference_id] = value
