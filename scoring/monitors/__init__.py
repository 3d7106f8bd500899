"""Monitors: what gaming the reward looks like, each a small pure function over a window of turns."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from scoring.monitors import conduct, signals, users
from scoring.monitors.watched import Watched, watch, with_reward
from scoring.monitors.window import Finding, Window

__all__ = ["MONITORS", "Finding", "Monitor", "Watched", "Window", "watch", "with_reward"]

Examine = Callable[[Window], Finding | None]
Severity = Literal["warning", "critical"]


@dataclass(frozen=True)
class Monitor:
    """`critical` ones hold releases: the model does what it should not. The others are for people to look at."""

    name: str
    examine: Examine
    severity: Severity

    @property
    def meaning(self) -> str:
        return " ".join((self.examine.__doc__ or "").split())


_HOLD: Final[tuple[Examine, ...]] = (
    conduct.invalid_calls,
    conduct.questions,
    conduct.no_edits,
    conduct.silence,
    conduct.refusals,
    conduct.length,
    conduct.repetition,
    conduct.entropy_collapse,
    conduct.entropy_blowup,
    signals.dropped,
    signals.reported_against_verified,
    signals.judge_against_outcome,
    signals.simulated_against_production,
)
_WARN: Final[tuple[Examine, ...]] = (
    conduct.brevity,
    conduct.effort,
    signals.coverage,
    signals.component_share,
    users.reward_mass,
    users.feedback_rate,
)
MONITORS: Final = (
    *(Monitor(examine.__name__, examine, "critical") for examine in _HOLD),
    *(Monitor(examine.__name__, examine, "warning") for examine in _WARN),
)
