"""Outcomes that cannot both be true: the answer was taken, and it was turned down."""

from collections.abc import Iterable, Mapping

from core.events import Outcome
from core.reward_spec import Role
from scoring.rewards.amendments import Standing


def contradicting(about: Iterable[Standing], roles: Mapping[str, Role]) -> tuple[str, ...]:
    """The names of verdicts of one turn, or one session, of which some say yes and some say no, all of which stand. A
    session may be taken of which one turn was not: these two are no contradiction."""
    said: dict[bool, dict[bool, set[str]]] = {}
    for entry in about:
        outcome = entry.outcome
        if (verdict := _verdict(outcome, roles.get(outcome.name))) is not None:
            said.setdefault(outcome.inference_id is None, {}).setdefault(verdict, set()).add(outcome.name)
    both = (yes_and_no for yes_and_no in said.values() if len(yes_and_no) == 2)
    return tuple(sorted({name for yes_and_no in both for names in yes_and_no.values() for name in names}))


def _verdict(outcome: Outcome, role: Role | None) -> bool | None:
    """None: not to be turned down is not yet to be taken."""
    match role:
        case "accept":
            return bool(outcome.value)
        case "reject":
            return False if outcome.value else None
    return None
