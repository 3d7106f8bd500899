"""How much of an update a turn may be: none of a user's turns counts less for others' sake, but who speaks for many
turns does not speak for more than a share of them.

It divides the turn's recorded scale, so that a correction, which is divided by the same, takes back what was applied.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence

from core.settings import LearnerSettings
from learner.scored import ScoredTurn


def influences(batch: Sequence[ScoredTurn], settings: LearnerSettings) -> list[float]:
    """Of each turn, above 0 and up to 1."""
    weights = [1.0] * len(batch)
    if settings.share_repeats:
        times = Counter(map(_content, batch))
        weights = [1 / times[_content(scored)] for scored in batch]
    if settings.max_user_share is None:
        return weights
    mass: defaultdict[str, float] = defaultdict(float)
    for scored, weight in zip(batch, weights, strict=True):
        mass[_user(scored)] += weight
    most = settings.max_user_share * sum(weights)
    return [weight * min(1.0, most / mass[_user(scored)]) for scored, weight in zip(batch, weights, strict=True)]


def _user(scored: ScoredTurn) -> str:
    """Who names nobody counts by session."""
    turn = scored.turn
    return f"{turn.namespace}\0{turn.user_id or ''}\0{'' if turn.user_id else turn.session_id}"


def _content(scored: ScoredTurn) -> tuple[object, ...]:
    return _user(scored), scored.turn.prompt_token_ids, scored.turn.token_ids
