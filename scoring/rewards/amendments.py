"""Amendments and withdrawals of outcomes, and which outcomes stand after them."""

from collections.abc import Iterable
from datetime import datetime

import msgspec

from core.events import Outcome
from core.ids import OutcomeId


class Standing(msgspec.Struct, frozen=True):
    """An outcome that stands.

    `since` is the arrival of the first outcome of its chain, and `observed_at` when that was seen to happen: an
    amendment corrects what was said then, and takes its place in time. `share`: of its value, where it is one turn's
    part in its session's."""

    outcome: Outcome
    since: datetime
    observed_at: datetime
    share: float = 1.0


def standing(outcomes: Iterable[Outcome]) -> list[Standing]:
    """Return the outcomes that stand, in the order of `since`, whatever the order they come in.

    An outcome that another supersedes does not count. Of several that amend the same one the latest counts, unless one
    withdraws it: who was told that it is withdrawn has no part of it count, whatever came at the same moment. What a
    withdrawal supersedes is gone, also when it arrives after its withdrawal."""
    by_id = {outcome.outcome_id: outcome for outcome in outcomes}
    if len(by_id) == 1:  # as it is of most turns
        (only,) = by_id.values()
        stands = not (only.withdrawn or only.supersedes == only.outcome_id)
        return [Standing(only, only.received_at, only.observed_at)] if stands else []
    superseded = {outcome.supersedes for outcome in by_id.values()}
    latest: dict[OutcomeId, Outcome] = {}
    roots: dict[OutcomeId, OutcomeId] = {}
    for outcome in sorted(by_id.values(), key=lambda each: (each.withdrawn, each.received_at, each.outcome_id)):
        if outcome.outcome_id not in superseded:
            latest[_root(outcome, by_id, roots)] = outcome
    stand = [
        Standing(outcome, by_id[root].received_at, by_id[root].observed_at)
        for root, outcome in latest.items()
        if not outcome.withdrawn
    ]
    return sorted(stand, key=lambda entry: (entry.since, entry.outcome.outcome_id))


def _root(outcome: Outcome, by_id: dict[OutcomeId, Outcome], roots: dict[OutcomeId, OutcomeId]) -> OutcomeId:
    """Return the first known outcome of the chain. A circular chain ends where it would begin again.

    `roots`: those found before, whose chains are not circular."""
    passed: dict[OutcomeId, None] = {}
    while outcome.outcome_id not in roots:
        passed[outcome.outcome_id] = None
        if outcome.supersedes in passed:
            return outcome.outcome_id
        if outcome.supersedes not in by_id:
            roots[outcome.outcome_id] = outcome.outcome_id
            break
        outcome = by_id[outcome.supersedes]
    root = roots[outcome.outcome_id]
    roots.update(dict.fromkeys(passed, root))
    return root
