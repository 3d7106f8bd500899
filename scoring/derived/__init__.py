"""Outcomes that follow from how a conversation goes on: an unchanged client teaches without a word of feedback.

Deterministic: a function of the turn that arrives and of the session before it, so a log scored anew gives the same
outcomes under the same ids. They are the scorer's: they live in its ledger and in the store, and not in the log.
"""

from collections.abc import Callable, Iterable
from typing import Final

from core.events import Completion, Outcome
from core.reward_spec import DerivedSpec
from scoring.derived import branches, follow_ups, results, survival
from scoring.derived.conclusion import Conclusion, outcome_of
from scoring.derived.conversation import LoggedConversation
from scoring.rewards.state import Session

VERSION: Final = "4"
"""Version of all rules, which is the outcomes' `source_version`: it changes when what a rule concludes changes."""

_RULES: Final[dict[str, Callable[[LoggedConversation, DerivedSpec], Iterable[Conclusion]]]] = {
    "follow_up": follow_ups.displeased,
    "regenerated": branches.regenerated,
    "abandoned": branches.abandoned,
    "reverted": follow_ups.taken_back,
    "tool_results": results.passed,
    "failed_calls": results.failed_calls,
    "survival": survival.survived,
}


def derive(turn: Completion, session: Session, spec: DerivedSpec, names: Iterable[str]) -> list[Outcome]:
    """Return the outcomes on earlier turns that follow from the arrival of `turn`, which the session holds already.

    `names`: of the outcomes that the spec knows."""
    if not spec.rules or turn.purpose != "turn" or turn.unstored is not None:
        return []
    conversation, known = LoggedConversation(turn, session), frozenset(names)
    concluded = (conclusion for rule in spec.rules for conclusion in _RULES[rule](conversation, spec))
    return [outcome_of(conclusion, turn, VERSION) for conclusion in concluded if conclusion.name in known]
