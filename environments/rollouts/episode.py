"""An episode: one try of one policy at one task, and how it ended."""

from dataclasses import dataclass
from typing import Literal

from environments.harness.harness import HarnessRun

# `judged` is the model's doing, `out_of_time` the harness's clock, `infrastructure` neither's.
Verdict = Literal["judged", "out_of_time", "infrastructure"]


@dataclass(frozen=True)
class Episode:
    """One episode that was begun.

    `attempt` counts from 1, and an infrastructure failure is tried again under the same id."""

    episode_id: str
    task: str
    task_digest: str
    harness: str  # name@version
    environment: str  # the task set's name
    attempt: int = 1

    @property
    def session_id(self) -> str:
        """The session of the attempt's turns, known before the first of them."""
        return f"{self.episode_id}.{self.attempt}"


@dataclass(frozen=True)
class EpisodeResult:
    """How one attempt at an episode ended.

    `reward` is what the tests gave, None where they were not asked: an infrastructure failure is never a 0. Out of time
    has one only where the plan has such work judged as it stands. `why` says in words what failed; `part` names it for
    an infrastructure failure."""

    episode: Episode
    verdict: Verdict
    reward: float | None
    work: HarnessRun | None
    started_at: float
    ended_at: float
    part: str | None = None
    why: str = ""
