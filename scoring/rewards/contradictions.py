"""Outcomes that contradict each other: the answer was accepted, and it was rejected."""

from collections.abc import Iterable, Mapping

from core.events import Outcome
from core.reward_spec import Role
from scoring.rewards.amendments import Standing


def contradicting(about: Iterable[Standing], roles: Mapping[str, Role]) -> tuple[str, ...]:
    """Return the names of standing verdicts on one turn, or one session, of which some say yes and some no.

    A session may be accepted although one of its turns was rejected: these two do not contradict each other."""
    said: dict[bool, dict[bool, set[str]]] = {}
    for entry in about:
        outcome = entry.outcome
        if (verdict := _verdict(outcome, roles.get(outcome.name))) is not None:
            said.setdefault(outcome.inference_id is None, {}).setdefault(verdict, set()).add(outcome.name)
    both = (yes_and_no for yes_and_no in said.values() if len(yes_and_no) == 2)
    return tuple(sorted({name for yes_and_no in both for names in yes_and_no.values() for name in names}))


def _verdict(outcome: Outcome, role: Role | None) -> bool | None:
    """Return what the outcome says; None when it says neither: not to be rejected is not yet to be accepted."""
    match role:
        case "accept":
            return bool(outcome.value)
        case "reject":
            return False if outcome.value else None
    return None
