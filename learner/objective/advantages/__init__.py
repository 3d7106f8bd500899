"""Baselines, one file each over one interface."""

from core.settings import AdvantageSettings
from learner.objective.advantages.base import Advantages
from learner.objective.advantages.batch import BatchBaseline
from learner.objective.advantages.beta import BetaBaseline
from learner.objective.advantages.ema import EmaBaseline
from learner.objective.advantages.leave_one_out import LeaveOneOut
from learner.objective.advantages.raw import RawReward
from learner.objective.advantages.value import ValueHead

__all__ = ["Advantages", "make_advantages"]


def make_advantages(settings: AdvantageSettings, hidden_size: int, seed: int, device: str) -> Advantages:
    """Make the baseline that the settings name; only a value head needs `seed` and `device`."""
    match settings.baseline:
        case "value":
            return ValueHead(hidden_size, settings.value_learning_rate, seed, device)
        case "ema":
            return EmaBaseline(settings.ema_decay, settings.channels)
        case "beta":
            return BetaBaseline(*settings.reward_range, settings.channels)
        case "batch" | "centre":
            return BatchBaseline(whiten=settings.baseline == "batch")
        case "leave_one_out":
            return LeaveOneOut(settings.ema_decay, settings.channels)
        case "raw":
            return RawReward()
