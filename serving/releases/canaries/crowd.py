"""How a canary is tried on a crowd: in a small one twenty users an arm never come, so users change arms.

docs/decisions/0066-small-crowds.md has what was measured."""

from dataclasses import dataclass

from core.settings import CanarySettings

_KNOWN_TURNS = 5
"""Of each user. Before there are so many, others are still to come: the controller may have started just now."""
_MOST_SHARE = 0.5
"""More says less: the comparison needs both sides."""


@dataclass(frozen=True)
class Crowd:
    """`share`: of users, or of their time where they change arms after each `switch_s`; None: they never do."""

    share: float
    switch_s: float | None


def crowd_of(users: int, turns: int, settings: CanarySettings) -> Crowd:
    """Return how so many users, of so many turns, are to try a canary; where they are few, more of them do."""
    if not settings.switch_s or users >= 3 * settings.min_users / settings.share:
        return Crowd(settings.share, None)
    if not users or turns < _KNOWN_TURNS * users:
        return Crowd(settings.share, settings.switch_s)
    return Crowd(max(settings.share, min(_MOST_SHARE, settings.min_users / users)), settings.switch_s)
