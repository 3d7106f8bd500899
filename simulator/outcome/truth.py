"""The truth about a run, kept apart from what the service is told, and the figures that follow from it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from simulator.users.crowd import UserKind
from simulator.users.ide import EditorSession

WINDOW_S = 20.0  # at the usual rate of 20 sessions a second; longer where fewer come
MIN_SESSIONS = 200
LONGEST = 3.0  # windows: how far back a figure looks where a loaded machine let too few sessions in
_Z = 1.96
FIGURES = ("syntax_ok", "tests_pass", "in_taste", "good")


@dataclass(frozen=True)
class Lived:
    """One session that took place.

    `started_s` counts from the first arrival. `reported` is the name of the metric by which the client counts the
    session, None for silence. `words` is how many pieces of feedback were sent."""

    started_s: float
    session: EditorSession
    reported: str | None
    user_kind: UserKind = "honest"
    words: int = 0

    @property
    def good(self) -> bool:
        return self.session.quality is not None and self.session.quality.good


@dataclass
class Truth:
    """All sessions of a run in order of completion, and what went wrong.

    A failure is a request that the service refused or did not answer."""

    window_s: float = WINDOW_S
    lived: list[Lived] = field(default_factory=list)
    outcome_ids: dict[str, str] = field(default_factory=dict)  # acknowledged: feedback id to session id
    failures: list[str] = field(default_factory=list)
    silenced: int = 0  # words of spammers that the service's limits refused
    turned_away: int = 0  # arrivals beyond the bound on concurrent sessions

    @property
    def judged(self) -> list[Lived]:
        """Sessions that came to an end, including failed ones, which are as bad as bad code.

        A user who hung up leaves nothing to judge."""
        return [lived for lived in self.lived if lived.session.ending != "hung_up"]

    def before(self, moment_s: float, longest: float = LONGEST) -> list[Lived]:
        """Return the sessions started in the window [moment - window, moment).

        If these are fewer than 200, return the last 200 before the moment if they started within `longest` windows."""
        recent = [lived for lived in self.judged if moment_s - longest * self.window_s <= lived.started_s < moment_s]
        within = [lived for lived in recent if moment_s - self.window_s <= lived.started_s]
        if len(within) >= MIN_SESSIONS or len(recent) < MIN_SESSIONS:
            return within
        return sorted(recent, key=lambda lived: lived.started_s)[-MIN_SESSIONS:]

    def untaught(self) -> list[Lived]:
        """Return the first 200 sessions, or fewer, that the first version answered alone: nothing was learned yet."""
        first = min((version for lived in self.judged for version in lived.session.versions), default=None)
        chosen = [lived for lived in self.judged if set(lived.session.versions) == {first}]
        return sorted(chosen, key=lambda lived: lived.started_s)[:MIN_SESSIONS]

    def quality_at(self, moment_s: float, longest: float = LONGEST) -> float | None:
        """Return the share truly good among the sessions started before, or None with fewer than 200 of them."""
        chosen = self.before(moment_s, longest)
        return quality(chosen) if len(chosen) >= MIN_SESSIONS else None

    def quality_start(self) -> float | None:
        return quality(self.untaught())

    def rise(self, moment_s: float) -> tuple[float, float] | None:
        """Return the 95 % interval of the quality at the moment less that at the start; None where one is unknown."""
        start, end = self.untaught(), self.before(moment_s)
        if not start or self.quality_at(moment_s) is None:
            return None
        return difference_of_shares(sum(one.good for one in end), len(end), sum(one.good for one in start), len(start))

    def accepted_share(self, moment_s: float) -> float | None:
        """Return the share reported as accepted among the sessions of the window before that were reported at all."""
        reported = [lived.reported for lived in self.before(moment_s) if lived.reported is not None]
        return sum(name == "accepted" for name in reported) / len(reported) if reported else None

    def acknowledged(self) -> dict[str, list[str]]:
        """Return, for each session, the ids of the turns and outcomes that the service acknowledged."""
        ids = {
            lived.session.session_id: list(lived.session.inference_ids)
            for lived in self.lived
            if lived.session.session_id is not None
        }
        for outcome_id, session_id in self.outcome_ids.items():
            ids[session_id].append(outcome_id)
        return ids


def window_s(rate: float) -> float:
    """Return a window long enough for half as many sessions again as a figure needs."""
    return max(WINDOW_S, 1.5 * MIN_SESSIONS / rate)


def difference_of_shares(good: int, of: int, other_good: int, of_other: int) -> tuple[float, float]:
    """Return Newcombe's 95 % interval for the difference of two independent shares, from Wilson's intervals for each.

    Statistics in Medicine 17, 1998, method 10."""
    p, q = good / of, other_good / of_other
    (p_low, p_high), (q_low, q_high) = _wilson(good, of), _wilson(other_good, of_other)
    return p - q - math.hypot(p - p_low, q_high - q), p - q + math.hypot(p_high - p, q - q_low)


def _wilson(good: int, of: int) -> tuple[float, float]:
    share = good / of
    middle = (share + _Z**2 / (2 * of)) / (1 + _Z**2 / of)
    reach = _Z / (1 + _Z**2 / of) * math.sqrt(share * (1 - share) / of + _Z**2 / (4 * of**2))
    return middle - reach, middle + reach


def quality(lived: Sequence[Lived]) -> float | None:
    return sum(one.good for one in lived) / len(lived) if lived else None


def rates(lived: Sequence[Lived]) -> dict[str, dict[str, float]]:
    """Return, for each kind of session, the shares whose code parses, passes its tests, is in taste, and is good."""
    shares = {}
    for kind in ("write", "fix"):
        judged = [one.session.quality for one in lived if one.session.task.kind == kind and one.session.quality]
        if judged:
            shares[kind] = {figure: sum(getattr(q, figure) for q in judged) / len(judged) for figure in FIGURES}
    return shares
