"""What a journal's attempts come to, by task."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean, median

import msgspec

from environments.harness.harness import Ending
from environments.rollouts.episode import Episode, Verdict


@dataclass(frozen=True)
class WorkFigures:
    """Of `Work` what is counted. Calls and turns are not looked into: there are very many of them.

    `policy_versions` are those of each turn."""

    ending: Ending
    output_tokens: int
    calls: tuple[msgspec.Raw, ...]
    inference_ids: tuple[msgspec.Raw, ...]
    policy_versions: tuple[int | str, ...] = ()


@dataclass(frozen=True)
class Attempt:
    """Of `EpisodeResult` what the page shows."""

    episode: Episode
    verdict: Verdict
    reward: float | None
    work: WorkFigures | None
    started_at: float
    ended_at: float
    part: str | None = None
    why: str = ""


@dataclass
class TaskFigures:
    """The figures of one task in one set.

    Rates and sizes are of the attempts that were judged; `failures` are counted by the part that failed."""

    environment: str
    task: str
    rewards: list[float] = field(default_factory=list)
    verdicts: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)

    @property
    def pass_rate(self) -> float | None:
        """The share of judged attempts with a full reward; None where none was judged."""
        return fmean(reward >= 1 for reward in self.rewards) if self.rewards else None

    @property
    def mean_reward(self) -> float | None:
        return fmean(self.rewards) if self.rewards else None

    @property
    def median_seconds(self) -> float | None:
        return median(self.seconds) if self.seconds else None

    def add(self, result: Attempt) -> None:
        self.verdicts[result.verdict] += 1
        if result.part is not None:
            self.failures[result.part] += 1
        if result.reward is None:
            return
        self.rewards.append(result.reward)
        self.seconds.append(result.ended_at - result.started_at)
        if result.work is not None:
            self.endings[result.work.ending] += 1
            self.tokens.append(result.work.output_tokens)
            self.calls.append(len(result.work.calls))
            self.turns.append(len(result.work.inference_ids))


def figures_of(attempts: Iterable[Attempt]) -> list[TaskFigures]:
    """Return the figures of each task, in order of set and name."""
    found: dict[tuple[str, str], TaskFigures] = {}
    for result in attempts:
        key = result.episode.environment, result.episode.task
        found.setdefault(key, TaskFigures(*key)).add(result)
    return [found[key] for key in sorted(found)]
