"""The assignment of users to arms: sticky, salted, and with a known probability.

A unit (a user's hash; the session where there is no user) is hashed with a salt to a number in [0, 1). The holdback's
salt never changes, so that its users stay in it over all experiments and slow drift can be seen; a canary's is its own,
so that it is not always the same users who try new versions. In a small crowd users change arms from one block of time
to the next: then each is compared with themselves."""

import hashlib
import math
from dataclasses import dataclass

from core.errors import ConfigError
from core.events import Arm

_BYTES = 8


@dataclass(frozen=True)
class Shares:
    """The shares of the arms. Raises ConfigError naming a share that is not in range."""

    canary: float
    holdback: float
    canary_salt: str = ""
    holdback_salt: str = ""

    def __post_init__(self) -> None:
        for name, value in (("canary", self.canary), ("holdback", self.holdback)):
            if not 0 <= value <= 1:
                raise ConfigError(f"release.{name}.share: {value} is no share between 0 and 1")


def assign(shares: Shares, unit: str) -> tuple[Arm, float]:
    """Return the unit's arm, and the probability with which a unit gets it.

    The canary draws from units that are not held back."""
    if point(shares.holdback_salt, unit) < shares.holdback:
        return "holdback", shares.holdback
    if point(shares.canary_salt, unit) < shares.canary:
        return "canary", (1 - shares.holdback) * shares.canary
    return "live", (1 - shares.holdback) * (1 - shares.canary)


def salt_at(salt: str, at_s: float, switch_s: float | None) -> str:
    """Return a canary's salt at a time, of UTC: where users change arms, each block of time draws anew."""
    return salt if switch_s is None else f"{salt}@{math.floor(at_s / switch_s)}"


def point(salt: str, unit: str) -> float:
    """Return a number in [0, 1), uniform over units, and independent between salts."""
    digest = hashlib.blake2b(unit.encode(), digest_size=_BYTES, key=hashlib.sha256(salt.encode()).digest()).digest()
    return int.from_bytes(digest, "big") / 2.0 ** (8 * _BYTES)
