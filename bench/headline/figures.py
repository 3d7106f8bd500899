"""The figures of the headline: what users, operators and learners notice, each with its bar."""

from dataclasses import dataclass
from typing import Literal

BAR = "the bar"


@dataclass(frozen=True)
class Figure:
    """`goal` bounds the figure itself. `against`: what ran beside it, or `BAR` where nothing but its goal did."""

    name: str
    metric: str
    unit: str
    against: str
    better: Literal["more", "less"]
    goal: float

    @property
    def is_ratio(self) -> bool:
        """Return whether the figure is a ratio to what was measured beside it."""
        return self.against != BAR

    def holds(self, value: float) -> bool:
        return value >= self.goal if self.better == "more" else value <= self.goal

    def is_worse(self, now: list[float], then: list[float], allowed: float = 0.05) -> bool:
        """Return whether every value of now is worse than every one of then, and the medians differ by `allowed`.

        With two runs of each that happens by chance once in six; so it is looked at again, and not believed."""
        sign = 1 if self.better == "more" else -1
        apart = max(sign * value for value in now) < min(sign * value for value in then)
        return apart and abs(middle(now) - middle(then)) > allowed * abs(middle(then))


def middle(values: list[float]) -> float:
    """Return the median; of two values their mean."""
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


FIGURES = (
    Figure("served_p50", "demo: feedback to served, p50", "s", BAR, "less", 1.5),
    Figure("served_p99", "demo: feedback to served, p99", "s", BAR, "less", 3.0),
    Figure("turn_p50", "demo: a turn, p50", "s", BAR, "less", 0.15),
    Figure("turn_p99", "demo: a turn, p99", "s", BAR, "less", 1.0),
    Figure("versions", "demo: versions in a minute", "versions", BAR, "more", 56.0),
    Figure("turned_away", "demo: users turned away", "users", BAR, "less", 0.0),
    Figure("failed", "demo: requests that failed", "requests", BAR, "less", 0.0),
    Figure("trained", "demo: rewarded turns that train", "share", BAR, "more", 0.99),
    Figure("quality", "demo: true quality after a minute", "share", BAR, "more", 0.6),
    Figure("answers", "whole answers, every turn durable", "times", "bare FastAPI", "more", 0.6),
    Figure("answers_of_two", "whole answers, two processes", "times", "bare FastAPI", "more", 1.0),
    Figure("streams", "streams, every turn durable", "times", "bare FastAPI", "more", 1.5),
    Figure("engine_8", "tokens a second, 8 at once", "times", "transformers.generate", "more", 2.0),
    Figure("engine_32", "tokens a second, 32 at once", "times", "transformers.generate", "more", 2.0),
    Figure("log", "embedded log, 32 appenders", "times", "plain SQLite loop", "more", 0.6),
    Figure("scorer", "scorer on SQLite", "times", "reader that only decodes", "more", 0.12),
    Figure("monitors", "events into the monitors' windows", "times", "reader that only decodes", "more", 0.5),
    Figure("look", "a look of the monitors at 10 workloads", "share", "the time between looks", "less", 0.02),
    Figure("look_100", "a look of the monitors at 100 workloads", "share", "the time between looks", "less", 0.05),
    Figure("first_start", "start to ready, the first time", "s", BAR, "less", 8.0),
    Figure("later_start", "start to ready, again", "s", BAR, "less", 6.0),
)
"""The demo's are those of its goals in 150 s that a minute can tell: 140 versions in 150 s are 56 in one."""
SAID = {
    "quality_end": "quality",
    "feedback_to_served_p50_s": "served_p50",
    "feedback_to_served_p99_s": "served_p99",
    "turn_p50_s": "turn_p50",
    "turn_p99_s": "turn_p99",
    "versions": "versions",
    "turned_away": "turned_away",
    "failed_requests": "failed",
    "share_learned_from": "trained",
}
"""What is taken of a demo's report, and its name among the figures."""
