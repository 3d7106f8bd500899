"""How a canary is tried: a small crowd never has twenty users in each arm, so there users change arms.

That takes a day, so meanwhile the canary's lane follows the learner, and the lane as a whole is judged.
docs/decisions/0066-small-crowds.md and 0069-two-lanes.md have figures."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from core.ids import PolicyRef
from core.settings import CanarySettings
from core.statistics.clustered import contrast, together
from serving.releases.canaries.evidence import ArmStatistics
from serving.releases.canaries.guards import most_of_one

_KNOWN_TURNS = 5
"""Of each user. Before there are so many, others are still to come: the controller may have started just now."""
_MOST_SHARE = 0.5
"""More says less: the comparison needs both sides."""
_DOUBTED_AT = 0.5
"""Standard errors below the live version at which what came later in a lane is not certified. A doubt costs little: the
lane goes on, and is held against what was certified."""


@dataclass(frozen=True)
class CanaryCrowd:
    """`share`: of users, or of their time where they change arms after each `switch_s`; None: they never do."""

    share: float
    switch_s: float | None


def crowd_of(users: int, turns: int, settings: CanarySettings) -> CanaryCrowd:
    """Return how so many users, of so many turns, are to try a canary; where they are few, more of them do."""
    if not settings.switch_s or users >= 3 * settings.min_users / settings.share:
        return CanaryCrowd(settings.share, None)
    if not users or turns < _KNOWN_TURNS * users:
        return CanaryCrowd(settings.share, settings.switch_s)
    return CanaryCrowd(max(settings.share, min(_MOST_SHARE, settings.min_users / users)), settings.switch_s)


def certified(lane: Sequence[tuple[PolicyRef, ArmStatistics]], live: ArmStatistics) -> PolicyRef:
    """Return the version of a lane, whose oldest is first, that its evidence speaks for.

    That is the one in the middle: half of the judged turns are of those before, half of it and those after. Of a line
    that drifts, the lane's mean is its own; and what fell is certified only where most of the evidence is of what fell.
    Where that half looks worse, it is the first, for which all of it speaks."""
    so_far = list(accumulate(_turns([arm for _, arm in lane])))
    middle = next(place for place, turns in enumerate(so_far) if 2 * turns >= so_far[-1])
    later = contrast(together(arm.units for _, arm in lane[middle:]), live.units)
    is_doubted = later.difference < -_DOUBTED_AT * math.sqrt(later.squared_error)
    return lane[0 if is_doubted else middle][0]


def _turns(lane: Sequence[ArmStatistics]) -> list[float]:
    """Return each version's turns. Of who has many more than others only as many count as guards look at of one user.

    Else one user would choose the version."""
    known = {unit: sums.count for unit, sums in together(arm.units for arm in lane).items()}
    most = most_of_one(known.values())
    return [sum(sums.count * min(1.0, most / known[unit]) for unit, sums in arm.units.items()) for arm in lane]
