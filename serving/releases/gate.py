"""The sanity gate: milliseconds, for every version, before it may serve."""

import math
from collections.abc import Mapping

from core.errors import GateRefused
from core.settings import GateSettings


def check(figures: Mapping[str, float], vocabulary: int, settings: GateSettings) -> None:
    """Check `figures`, which are those of `Engine.probe`. Raises GateRefused naming the bound that was broken."""
    kl, entropy = figures["kl_to_live"], figures["entropy"]
    highest = settings.max_entropy_share * math.log(vocabulary)
    for broken, why in (
        (figures["finite"] != 1, "its outputs are not finite"),
        (not kl <= settings.max_kl, f"KL to the live version {kl:.3g} is above {settings.max_kl}"),
        (not entropy >= settings.min_entropy, f"entropy {entropy:.3g} is below {settings.min_entropy}"),
        (not entropy <= highest, f"entropy {entropy:.3g} is above {highest:.3g}"),
    ):
        if broken:
            raise GateRefused(why, dict(figures))
