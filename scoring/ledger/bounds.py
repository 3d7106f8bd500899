"""Bounds on what the ledger keeps: how many outcomes of one turn or session, and how much of each text.

Each outcome makes the scorer decide its turn again, or all turns of its session. So the cost of one outcome grows with
the number of earlier ones, and the cost of all with its square; and each reward names the outcomes that moved it. A
user may report as often as she likes. Outcomes beyond a bound are in the log and in the stories of turns, but count in
no reward (`onward_scorer_oddities{reason="too_many"}`). The bounds depend only on the order of the log, so scoring it
again gives the same result."""

from collections.abc import Iterable
from typing import Final

import msgspec

from core.events import Outcome
from core.operations.ledger import Heard
from core.reward_spec.roles import CONSENT_WITHDRAWN
from scoring.rewards.spans import LONGEST_HINT
from scoring.rewards.state import Session

_MOST_HEARD: Final = 256
"""Outcomes of one turn, or of one session as such, that are heard."""
_LEAST_OF_A_SESSION: Final = 16
_MOST_DECISIONS: Final = 6_400
"""Outcomes of a session as such, times its turns; of a longer session the least are heard all the same."""
_MOST_PUT_IN: Final = 1 << 18
"""Tokens of users' own texts in a session: what is measured of a further text counts, and nobody learns its words."""


def is_heard(session: Session, outcome: Outcome) -> bool:
    """Return whether an outcome is heard, after all that was before.

    What takes back something heard always is, and so is that a user no longer consents to learning."""
    if outcome.name == CONSENT_WITHDRAWN or (outcome.withdrawn and outcome.supersedes in session.heard):
        return True
    most = _MOST_HEARD
    if outcome.inference_id is None:
        most = min(most, max(_LEAST_OF_A_SESSION, _MOST_DECISIONS // max(1, len(session.turns))))
    return len(session.heard_of(outcome.inference_id)) < most


def may_wait(outcome: Outcome, waiting: Iterable[Heard]) -> bool:
    """Return whether an outcome may wait for its turn, beside those that do: so many of each namespace."""
    return sum(heard.outcome.namespace == outcome.namespace for heard in waiting) < _MOST_HEARD


def kept(heard: Heard, session: Session | None = None) -> Heard:
    """Return an outcome without what no reward tells of: the rest of long words, and texts beyond the session's bound.

    `session`: where it is heard; None: its turn has not come."""
    outcome = heard.outcome
    value, evidence = outcome.value, outcome.evidence
    put_in = sum(len(edit.token_ids) for edit in outcome.edits)
    is_over = put_in + (0 if session is None else session.put_in) > _MOST_PUT_IN
    words = _words(value) if isinstance(value, str) else value
    shorter = None if evidence is None else _words(evidence)
    if not (is_over and put_in) and words == value and shorter == evidence:
        return heard
    edits = () if is_over else outcome.edits
    return Heard(msgspec.structs.replace(outcome, value=words, evidence=shorter, edits=edits), heard.offset)


def _words(text: str) -> str:
    """Return as much of a text as a hint has; of one without words some of it, for it is not nothing."""
    return text if len(text) <= LONGEST_HINT else text.strip()[:LONGEST_HINT] or text[:LONGEST_HINT]
