"""What people and machines say of an answer, as one word: good or bad. What a judge is held against."""

from collections.abc import Mapping
from typing import Final

GOOD: Final = ("accepted", "tests_passed", "build_passed", "answer_useful", "plan_useful")
"""True says that it is good, false that it is bad."""
BAD: Final = ("rejected", "follow_up", "regenerated", "reverted")
"""True says that it is bad; false says nothing: no complaint is no praise."""
SHARES: Final = ("partially_accepted", "edited")
"""Of it that was kept: good from a half on."""
SIGNED: Final = ("rating",)
"""Good above 0, bad below."""
NAMES: Final = GOOD + BAD + SHARES + SIGNED


def word_of(name: str, value: float) -> bool | None:
    """Whether that says good; None where it says neither."""
    if name in GOOD:
        return value > 0
    if name in BAD:
        return False if value > 0 else None
    if name in SHARES:
        return value >= 0.5
    if name in SIGNED and value:
        return value > 0
    return None


def verdict(told: Mapping[str, float]) -> bool | None:
    """Of all that was said, by name. Bad where anything says bad; None where nothing says either."""
    words = {word_of(name, value) for name, value in told.items()} - {None}
    return all(words) if words else None
