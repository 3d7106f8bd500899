"""Monitors: what gaming the reward looks like, each a small pure function over a window of turns."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from scoring.monitors import conduct, fidelity, level, signals, users
from scoring.monitors.level import floor
from scoring.monitors.tally import LEAST, LEAST_UNITS
from scoring.monitors.watched import WatchedTurn, hear, watch, with_reward, with_roles
from scoring.monitors.window import Finding, Window
from scoring.monitors.window_turns import MovedTurns, WindowTurns

__all__ = [
    "LEAST",
    "LEAST_UNITS",
    "MONITORS",
    "Finding",
    "Monitor",
    "MovedTurns",
    "WatchedTurn",
    "Window",
    "WindowTurns",
    "floor",
    "hear",
    "watch",
    "with_reward",
    "with_roles",
]

Examine = Callable[[Window], Finding | None]
Severity = Literal["warning", "critical"]


@dataclass(frozen=True)
class Monitor:
    """A monitor of one way to game the reward.

    `critical` monitors hold releases: the model does what it should not. The others are for people to look at. `ripe`
    monitors look at the outcomes of turns, which must be old enough to have them. Those `of_sides` compare the latest
    simulated turns with the latest of production, and not with the past."""

    name: str
    examine: Examine
    severity: Severity
    ripe: bool
    of_sides: bool = False

    @property
    def meaning(self) -> str:
        return " ".join((self.examine.__doc__ or "").split())


def _made(severity: Severity, *examine: Examine, ripe: bool = False, of_sides: bool = False) -> tuple[Monitor, ...]:
    return tuple(Monitor(each.__name__, each, severity, ripe, of_sides) for each in examine)


MONITORS: Final = (
    *_made(
        "critical",
        conduct.invalid_calls,
        conduct.questions,
        conduct.no_edits,
        conduct.silence,
        conduct.refusals,
        conduct.length,
        conduct.repetition,
        conduct.entropy_blowup,
    ),
    *_made(
        "critical",
        signals.dropped,
        signals.reported_against_verified,
        signals.judge_against_outcome,
        signals.simulated_against_production,
        signals.length_bias,
        signals.default_pays,
        ripe=True,
    ),
    *_made("warning", conduct.entropy_collapse, conduct.brevity, conduct.effort),
    *_made(
        "warning",
        level.worse_than_best,
        signals.coverage,
        signals.component_share,
        users.reward_mass,
        users.feedback_rate,
        ripe=True,
    ),
    *_made("warning", fidelity.simulation_shows, of_sides=True),
)
