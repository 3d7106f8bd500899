"""Baselines, one file each over one interface."""

from core.settings import LearnerSettings
from learner.advantages.base import Advantages
from learner.advantages.batch import BatchBaseline
from learner.advantages.beta import BetaBaseline
from learner.advantages.ema import EmaBaseline
from learner.advantages.leave_one_out import LeaveOneOut
from learner.advantages.raw import RawReward
from learner.advantages.value import ValueHead

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
