"""Outcomes that contradict each other: the answer was accepted, and it was rejected."""

from collections.abc import Iterable, Mapping
from typing import Final

from core.events import Outcome
from core.ids import OutcomeId
from core.reward_spec import RewardRules, Role
from scoring.rewards.amendments import Standing
from scoring.rewards.usable import fault_of

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


def outweighed(about: Iterable[Standing], rules: RewardRules) -> set[OutcomeId]:
    """Return the outcomes that do not count, since somebody said the opposite of the answer itself.

    Those are what was said of its session, or a check of all of that decided, and, of what was found good, that
    another was asked for. Where somebody said both of the answer, everything counts."""
    said = [(entry.outcome, rules.roles.get(entry.outcome.name)) for entry in about]
    of_answer = _explicit(pair for pair in said if pair[0].inference_id is not None)
    if len(of_answer) == 1:
        (good,) = of_answer
        return {
            outcome.outcome_id
            for outcome, role in said
            if (outcome.inference_id is None or role == "retry") and _weighed(outcome, role, rules) is (not good)
        }
    of_session = [pair for pair in said if pair[0].inference_id is None]
    if of_answer or _explicit(of_session) != {True}:
        return set()
    return {outcome.outcome_id for outcome, role in of_session if role == "retry" and outcome.value}


def _explicit(said: Iterable[tuple[Outcome, Role | None]]) -> set[bool]:
    """Return the opinions that those who report had of one thing; of each name the last one counts."""
    own = {
        outcome.name: _opinion(outcome, role)
        for outcome, role in said
        if outcome.source != "derived" and role in _EXPLICIT
    }
    return {opinion for opinion in own.values() if opinion is not None}


def _weighed(outcome: Outcome, role: Role | None, rules: RewardRules) -> bool | None:
    """Return the opinion, or what a check of a whole session that decides found: it knows no single answer.

    A check found that good which it adds something for: of a share of tests that may be half of them, or more."""
    if role != "check" or not rules.outcomes[outcome.name].decides or isinstance(outcome.value, str | None):
        return _opinion(outcome, role)
    spec = rules.outcomes[outcome.name]
    added = 0.0 if fault_of(outcome, spec) else spec.worth(*spec.amounts(outcome.value))
    return added > 0 if added else None


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
