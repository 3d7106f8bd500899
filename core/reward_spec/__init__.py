"""The reward spec: the file in which an operator says what counts as good.

Read by api (which outcomes exist, of which type) and scoring (what they are worth). Identified by the hash of its
meaning, not of its spelling: comments and order do not change it.
"""

from core.reward_spec.conduct import ClaimSpec, EffortSpec, PenaltySpec
from core.reward_spec.defence import DefenceSpec
from core.reward_spec.derived import DerivedRule, DerivedSpec, call_line
from core.reward_spec.file import load_reward_spec
from core.reward_spec.outcomes import Aggregation, Measure, OutcomeSpec, OutcomeType, SessionSpec, SuggestionSpec
from core.reward_spec.roles import Role
from core.reward_spec.rules import RewardRules, RewardSpec, ScopeSpec

__all__ = [
    "Aggregation",
    "ClaimSpec",
    "DefenceSpec",
    "DerivedRule",
    "DerivedSpec",
    "EffortSpec",
    "Measure",
    "OutcomeSpec",
    "OutcomeType",
    "PenaltySpec",
    "RewardRules",
    "RewardSpec",
    "Role",
    "ScopeSpec",
    "SessionSpec",
    "SuggestionSpec",
    "call_line",
    "load_reward_spec",
]
