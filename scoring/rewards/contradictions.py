"""Outcomes that contradict each other: the answer was accepted, and it was rejected."""

from collections.abc import Iterable, Mapping
from typing import Final

from core.events import Outcome
from core.ids import OutcomeId
from core.reward_spec import Role
from scoring.rewards.amendments import Standing

_GOOD_EDIT = 0.5  # share that was kept, from which an edit says that the answer was good
_EXPLICIT: Final = frozenset({"accept", "reject", "edit", "rating", "useful", "complaint"})
"""Roles of what is said of an answer by those who report it."""


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


def outweighed(about: Iterable[Standing], roles: Mapping[str, Role]) -> set[OutcomeId]:
    """Return the outcomes that do not count, since somebody said the opposite of the answer itself.

    Those are what was said of its session and, of an answer that was found good, that another was asked for. Where
    somebody said both of the answer, everything counts."""
    said = [(entry.outcome, roles.get(entry.outcome.name)) for entry in about]
    own = {
        outcome.name: _opinion(outcome, role)  # the last one by that name
        for outcome, role in said
        if outcome.inference_id is not None and outcome.source != "derived" and role in _EXPLICIT
    }
    opinions = set(own.values()) - {None}
    if len(opinions) != 1:
        return set()
    (good,) = opinions
    return {
        outcome.outcome_id
        for outcome, role in said
        if (outcome.inference_id is None or role == "retry") and _opinion(outcome, role) is (not good)
    }


def _verdict(outcome: Outcome, role: Role | None) -> bool | None:
    """Return what the outcome says; None when it says neither: not to be rejected is not yet to be accepted."""
    match role:
        case "accept":
            return bool(outcome.value)
        case "reject":
            return False if outcome.value else None
    return None


def _opinion(outcome: Outcome, role: Role | None) -> bool | None:
    """Return whether the outcome says that the answer, or the session, was good; None when it says neither."""
    value = outcome.value
    if isinstance(value, str | None):
        return None
    match role:
        case "edit":
            return True if value >= _GOOD_EDIT else None
        case "rating":
            return value > 0 if value else None
        case "useful":
            return value > 0
        case "complaint" | "retry":
            return False if value else None
    return _verdict(outcome, role)
