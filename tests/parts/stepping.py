"""Single rounds of a stage."""

from functools import lru_cache

from core.stages.rounds import Rounds
from core.stages.stage import Stage


@lru_cache(maxsize=64)
def _rounds_of(stage: Stage) -> Rounds:
    return Rounds(type(stage).__name__, stage)


def step(stage: Stage, timeout_s: float = 0.0) -> int:
    """Run the next round of `stage`, as its runner would."""
    return _rounds_of(stage).step(timeout_s)
