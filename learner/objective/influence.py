"""Influence: how much of an update a turn may be.

One user's turns are at most a share of all, and a user who keeps saying the opposite of all others soon counts for
almost nothing.

A turn's influence divides its recorded scale, so that a correction, which is divided by the same, undoes what was
applied. What one user loses the others gain, up to a bound, so that the update stays as large as without.

The bound is for a crowd: among few users everybody has more than a small share. So it is never less than twice an even
share of those heard lately, and users who all say the same can be of any number without reaching it."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from core.settings import UserSettings
from learner.objective.trust import Trust
from learner.sequences.scored import ScoredTurn

_KEPT = 0.9  # of what is remembered, from one update to the next: shares are of the last ten or so
_FORGOTTEN = 0.01  # turns
_MOST = 2.0  # influence of a turn: what others lose goes to few turns at most so far
_EVEN_SHARES = 2.0  # that one user may always be


class Influence:
    """The influence of users: `weigh` a batch, then `end` it once it was learned from.

    State is part of the checkpoint, and the same in all processes."""

    def __init__(self, settings: UserSettings) -> None:
        self._settings = settings
        self._masses: dict[str, float] = {}  # of the last updates' turns, by user, before any bound
        self._turns = 0.0  # of the last updates
        self._trust = Trust()

    @property
    def weighs_users(self) -> bool:
        return self._settings.max_share < 1 or self._settings.distrust

    def weigh(self, batch: Sequence[ScoredTurn]) -> list[float]:
        """Return the influence of each turn, above 0; 1 is a turn like any other."""
        weights = self._plain(batch)
        if not self.weighs_users:
            return weights
        masses, turns = self._remembered(batch, weights)
        most = self._bound(len(masses)) * turns
        if not self._settings.distrust and all(mass <= most for mass in masses.values()):
            return weights
        raised = _raised(list(masses.values()), most, turns)
        return [
            weight if scored.reward.void else weight * min(raised, most / masses[user_of(scored)])
            for scored, weight in zip(batch, weights, strict=True)
        ]

    def end(self, batch: Sequence[ScoredTurn], expected: Sequence[float]) -> None:
        """Record that the batch was learned from. `expected`: the baseline's expected reward of each turn."""
        if not self.weighs_users:
            return
        bounded = self.weigh(batch)  # or loud liars would decide what users usually agree with
        masses, self._turns = self._remembered(batch, self._plain(batch))
        self._masses = {user: mass for user, mass in masses.items() if mass > _FORGOTTEN}
        if self._settings.distrust:
            first = [place for place, scored in enumerate(batch) if not (scored.is_correction or scored.reward.void)]
            said = [(user_of(batch[p]), batch[p].worth, expected[p], bounded[p]) for p in first]
            self._trust.hear(said)

    def figures(self, batch: Sequence[ScoredTurn]) -> dict[str, float]:
        """Return `distrusted_users`: how many users of the batch count less than half."""
        if not self._settings.distrust:
            return {}
        users = set(map(user_of, batch))
        return {"distrusted_users": float(sum(self._trust.of(user) < 0.5 for user in users))}

    def state_dict(self) -> dict[str, Any]:
        return {"masses": dict(self._masses), "turns": self._turns, "trust": self._trust.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._masses, self._turns = dict(state["masses"]), state["turns"]
        self._trust.load_state_dict(state["trust"])

    def _bound(self, users: int) -> float:
        """Return the share that one of so many users may have; infinite where one may have all."""
        if not users:
            return math.inf
        share = max(self._settings.max_share, _EVEN_SHARES / users)
        return share if share < 1 else math.inf

    def _plain(self, batch: Sequence[ScoredTurn]) -> list[float]:
        """Return the turns' influence before a user's share is bounded."""
        weights = [1.0] * len(batch)
        if self._settings.share_repeats:
            times = Counter(_content(scored) for scored in batch if not scored.reward.void)
            weights = [1 / max(1, times[_content(scored)]) for scored in batch]
        if self._settings.distrust:
            return [weight * self._trust.of(user_of(s)) for weight, s in zip(weights, batch, strict=True)]
        return weights

    def _remembered(self, batch: Sequence[ScoredTurn], weights: Sequence[float]) -> tuple[dict[str, float], float]:
        """Return (mass of each user, number of turns) of the last updates and this one."""
        masses = defaultdict(float, {user: _KEPT * mass for user, mass in self._masses.items()})
        told = [(scored, weight) for scored, weight in zip(batch, weights, strict=True) if not scored.reward.void]
        for scored, weight in told:
            masses[user_of(scored)] += weight
        return masses, _KEPT * self._turns + len(told)


def _raised(masses: Sequence[float], most: float, turns: float) -> float:
    """Return the factor for all masses so that they sum to `turns` once those above `most` are cut to it.

    It is at most `_MOST`, also where the users are too few for that sum."""
    rest, cut = math.fsum(masses), 0.0
    for mass in sorted(masses, reverse=True):
        factor = (turns - cut) / rest
        if factor * mass <= most:
            return min(factor, _MOST)
        rest, cut = rest - mass, cut + most
        if rest <= 0 or cut >= turns:
            break
    return _MOST


def user_of(scored: ScoredTurn) -> str:
    """Return the user of a turn; without one, the session counts as the user."""
    turn = scored.turn
    return f"{turn.namespace}\0{turn.user_id or ''}\0{'' if turn.user_id else turn.session_id}"


def _content(scored: ScoredTurn) -> tuple[object, ...]:
    return user_of(scored), scored.turn.prompt_token_ids, scored.turn.token_ids
