"""The cost of a turn by itself, from its facts: a part of its reward once there is one.

A fault is a reason for a reward by itself; effort is not: nothing is known of a turn without feedback."""

from core.operations.ledger import Turn
from core.reward_spec import RewardRules

_FAULTS = ("malformed_call", "cut_off", "empty_answer", "repeated_answer", "unbacked_claim")


def penalties_of(turn: Turn, rules: RewardRules) -> dict[str, float]:
    if turn.purpose != "turn":
        return {}
    costs = {fault: float(getattr(rules.penalties, fault)) for fault in _FAULTS if getattr(turn.facts, fault)}
    return {fault: cost for fault, cost in costs.items() if cost}


def effort_of(turn: Turn, rules: RewardRules) -> dict[str, float]:
    """Return what the turn adds to the cost of the path to it; nothing for suggestions, which cost nobody's time."""
    spec = rules.effort
    if not spec.coefficient or turn.purpose == "suggestion":
        return {}
    before = turn.facts.before.weighed(spec)
    added = spec.cost(before + turn.facts.effort.weighed(spec)) - spec.cost(before)
    return {"effort": -spec.coefficient * added}
