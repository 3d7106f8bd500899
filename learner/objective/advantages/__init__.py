"""Baselines, one file each over one interface."""

from core.settings import LearnerSettings
from learner.objective.advantages.base import Advantages
from learner.objective.advantages.batch import BatchBaseline
from learner.objective.advantages.beta import BetaBaseline
from learner.objective.advantages.ema import EmaBaseline
from learner.objective.advantages.leave_one_out import LeaveOneOut
from learner.objective.advantages.raw import RawReward
from learner.objective.advantages.value import ValueHead

__all__ = ["Advantages", "make_advantages"]


def make_advantages(settings: LearnerSettings, hidden_size: int) -> Advantages:
    match settings.advantage:
        case "value":
            return ValueHead(
                hidden_size,
                settings.value_learning_rate,
                settings.seed,
                settings.device,
                gamma=settings.discount,
                lam=settings.gae_lambda,
            )
        case "ema":
            return EmaBaseline(settings.ema_decay, settings.channels)
        case "beta":
            return BetaBaseline(*settings.reward_range, settings.channels)
        case "batch" | "centre":
            return BatchBaseline(whiten=settings.advantage == "batch")
        case "leave_one_out":
            return LeaveOneOut(settings.ema_decay, settings.channels)
        case "raw":
            return RawReward()
