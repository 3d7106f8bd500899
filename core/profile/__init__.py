"""The profile of a model on a machine: which settings fit, and what they are expected to cost."""

from core.profile.choice import ChosenSetting, Profile, choose
from core.profile.expectation import Expectation, Work, expect
from core.profile.machine import Card, Machine
from core.profile.shape import ModelShape, read_shape

__all__ = [
    "Card",
    "ChosenSetting",
    "Expectation",
    "Machine",
    "ModelShape",
    "Profile",
    "Work",
    "choose",
    "expect",
    "read_shape",
]
