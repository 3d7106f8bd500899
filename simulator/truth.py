"""What really happened, kept apart from what the service is told, and the figures that follow from it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from simulator.ide import Session

WINDOW_S = 20.0
MIN_SESSIONS = 200


@dataclass(frozen=True)
class Lived:
    """One session; `started_s` since the first arrival. `reported` is the metric's name, None for silence."""

    started_s: float
    session: Session
    reported: str | None

    @property
    def good(self) -> bool:
        return self.session.quality is not None and self.session.quality.good


@dataclass
class Truth:
    """Everything, in order of completion."""

    lived: list[Lived] = field(default_factory=list)
    outcome_ids: dict[str, str] = field(default_factory=dict)  # acknowledged: feedback id to session id
    failures: list[str] = field(default_factory=list)
    turned_away: int = 0  # arrivals beyond the bound on concurrent sessions

    @property
    def judged(self) -> list[Lived]:
        """Sessions that came to an end: a user who hung up leaves nothing to judge."""
        return [lived for lived in self.lived if lived.session.quality is not None]

    def quality_at(self, moment_s: float) -> float | None:
        """Share truly good among the sessions started in the 20 s before; None with fewer than 200 of them."""
        chosen = [lived for lived in self.judged if moment_s - WINDOW_S <= lived.started_s < moment_s]
        return share(chosen, "good") if len(chosen) >= MIN_SESSIONS else None

    def quality_start(self) -> float | None:
        """The same of the first 200 sessions (or fewer) that the first version answered alone: nothing was learned."""
        first = min((version for lived in self.judged for version in lived.session.versions), default=None)
        untaught = [lived for lived in self.judged if set(lived.session.versions) == {first}]
        chosen = sorted(untaught, key=lambda lived: lived.started_s)[:MIN_SESSIONS]
        return share(chosen, "good") if chosen else None

    def accepted_share(self, moment_s: float) -> float | None:
        """Share reported as accepted among those reported at all, of the sessions started in the 20 s before."""
        chosen = [
            lived
            for lived in self.lived
            if lived.reported is not None and moment_s - WINDOW_S <= lived.started_s < moment_s
        ]
        return sum(lived.reported == "accepted" for lived in chosen) / len(chosen) if chosen else None


def share(lived: Sequence[Lived], figure: str) -> float:
    return sum(bool(getattr(one, figure)) for one in lived) / len(lived)
