"""The sanity gate: a check of milliseconds that every version must pass before it serves."""

import math
from collections.abc import Mapping
from statistics import median

from core.errors import GateRefused
from core.ids import PolicyRef
from core.settings import GateSettings

_REMEMBERED = 15
_LEAST = 8  # versions, before anything is usual
LITTLE = 0.01
"""A KL that is never too much: no answer's probability changes by more than sqrt(0.01 / 2), 0.07 (Pinsker)."""


class UsualKl:
    """How far a learner's update usually goes: the KL to the live version, for each update since, of those seen last.

    Refused versions are among them, so that steps which have become larger for good are let through after some. Kept
    in memory: the next controller learns it anew."""

    def __init__(self) -> None:
        self._seen: dict[PolicyRef, float] = {}

    def most(self, version: PolicyRef, kl: float, updates: int, settings: GateSettings) -> float:
        """Return the largest KL that a version may have, `updates` after the live one; remember its own.

        So many updates in one direction go that many times as far, squared in the KL."""
        known = [usual for seen, usual in self._seen.items() if seen != version]
        if math.isfinite(kl):
            self._seen.setdefault(version, kl / updates)
            if len(self._seen) > _REMEMBERED:
                del self._seen[next(iter(self._seen))]
        if len(known) < _LEAST:
            return settings.max_kl
        return min(settings.max_kl, max(LITTLE, settings.usual_kl_times * median(known) * updates**2))


def check(figures: Mapping[str, float], vocabulary: int, settings: GateSettings, most_kl: float | None = None) -> None:
    """Check `figures`, which are those of `Engine.probe`. Raises GateRefused naming the bound that was broken.

    `most_kl`: what is usual, where that is less than the settings allow."""
    kl, entropy = figures["kl_to_live"], figures["entropy"]
    most = settings.max_kl if most_kl is None else most_kl
    is_usual = most < settings.max_kl
    bound = f"{most:.3g}, as far as updates usually go" if is_usual else f"{settings.max_kl}"
    highest = settings.max_entropy_share * math.log(vocabulary)
    for broken, why in (
        (figures["finite"] != 1, "its outputs are not finite"),
        (not kl <= most, f"KL to the live version {kl:.3g} is above {bound}"),
        (not entropy >= settings.min_entropy, f"entropy {entropy:.3g} is below {settings.min_entropy}"),
        (not entropy <= highest, f"entropy {entropy:.3g} is above {highest:.3g}"),
    ):
        if broken:
            raise GateRefused(why, dict(figures))
