"""Batches of a logged past, and settings that drop none of their turns."""

from logged_world import logged_past

from core.settings import AdmissionSettings, LearnerSettings
from learner.sequences.scored import ScoredTurn

DEFAULT = LearnerSettings(admission=AdmissionSettings(max_divergence=1e9, min_ess=0.0))  # nothing is left out


def some_batch(seed: int, count: int = 16) -> list[ScoredTurn]:
    return [ScoredTurn(turn, reward) for turn, reward in logged_past(count, seed)]
