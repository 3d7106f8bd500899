"""The worth of what was said: which outcomes can move a reward, and by how much."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

from core.ids import OutcomeId
from core.operations.ledger import LedgerEntry
from core.reward_spec import Aggregation, OutcomeSpec, RewardRules
from scoring.rewards.amendments import Standing
from scoring.rewards.usable import fault_of

Amount = tuple[float, float]  # what `weight` and what `false_weight` are multiplied by
Heard = Mapping[str, Sequence[Standing]]


def heard_of(turn: LedgerEntry, about: Sequence[Standing], rules: RewardRules) -> dict[str, list[Standing]]:
    """Return the outcomes that can move the reward, by name in alphabetical order; some may say the same thing."""
    found: dict[str, list[Standing]] = {}
    for entry in without_replaced(about, rules):
        name = entry.outcome.name
        spec = rules.outcomes.get(name)
        if spec is None or spec.type == "text" or fault_of(entry.outcome, spec):
            continue
        if spec.moves or spec.decides or is_thresholded(turn, name, rules):
            found.setdefault(name, []).append(entry)
    return dict(sorted(found.items()))


def without_replaced(about: Sequence[Standing], rules: RewardRules) -> list[Standing]:
    """Return the outcomes without those that were derived where somebody stated one of the same name."""
    derived = {entry.outcome.name for entry in about if entry.outcome.source == "derived"}
    said = (entry.outcome for entry in about if entry.outcome.source != "derived" and entry.outcome.name in derived)
    stated = {outcome.name for outcome in said if not fault_of(outcome, rules.outcomes.get(outcome.name))}
    return [entry for entry in about if entry.outcome.source != "derived" or entry.outcome.name not in stated]


def is_thresholded(turn: LedgerEntry, name: str, rules: RewardRules) -> bool:
    """Return whether the show threshold decides what this outcome is worth, rather than its weights."""
    is_about_acceptance = rules.roles.get(name) in ("accept", "reject")
    return turn.purpose == "suggestion" and rules.suggestion.show_threshold is not None and is_about_acceptance


def without_repetition(turn: LedgerEntry, heard: Heard, rules: RewardRules) -> dict[str, Sequence[Standing]]:
    """Keep the most exact of several outcomes on one suggestion's acceptance, by threshold.

    Elsewhere a share that was accepted says more than the fact that it was accepted."""
    shares, wholes, refusals = _about_acceptance(heard, rules)
    said = [name for name in (*shares, *wholes, *refusals) if is_thresholded(turn, name, rules)]
    repeated = said[1:]
    if not said and any(rules.outcomes[name].moves for name in shares):
        repeated = wholes
    return {name: entries for name, entries in heard.items() if name not in repeated}


def _about_acceptance(heard: Iterable[str], rules: RewardRules) -> tuple[list[str], list[str], list[str]]:
    """Return the names of the accepted shares, of the other acceptances, and of the rejections."""
    accepted = [name for name in heard if rules.roles.get(name) == "accept"]
    shares = [name for name in accepted if rules.outcomes[name].type == "number"]
    wholes = [name for name in accepted if name not in shares]
    return shares, wholes, [name for name in heard if rules.roles.get(name) == "reject"]


def contribution(turn: LedgerEntry, name: str, entries: Sequence[Standing], rules: RewardRules) -> float:
    """Return what the outcomes of one name add to the reward."""
    spec = rules.outcomes[name]
    thresholded = is_thresholded(turn, name, rules)
    amounts = [_credited(entry, spec, thresholded) for entry in sorted(entries, key=_observed)]
    amount = _AGGREGATE[spec.aggregation](_trimmed(amounts, spec.trim) if spec.trim else amounts)
    if not thresholded:
        return spec.worth(*amount)
    threshold = rules.suggestion.show_threshold
    assert threshold is not None
    if rules.roles[name] == "reject":
        return -threshold if amount[0] else 0.0  # not to be turned down is not yet to be taken
    return min(max(amount[0], 0.0), 1.0) - threshold


def _observed(entry: Standing) -> tuple[datetime, datetime, OutcomeId]:
    """Return the place of an outcome in time: a check that began earlier may be reported later."""
    return entry.observed_at, entry.since, entry.outcome.outcome_id


def _credited(entry: Standing, spec: OutcomeSpec, thresholded: bool) -> Amount:
    value = entry.outcome.value
    assert isinstance(value, bool | int | float)
    true, false = (float(value), 0.0) if thresholded else spec.amounts(value)
    return entry.share * true, entry.share * false


def _trimmed(amounts: Sequence[Amount], share: float) -> Sequence[Amount]:
    """Remove that share at either end; one or two amounts are never trimmed."""
    ordered = sorted(amounts, key=lambda amount: amount[0] - amount[1])
    out = trimmed_at_an_end(len(ordered), share)
    return ordered[out : len(ordered) - out]


def trimmed_at_an_end(number: int, share: float) -> int:
    return int(share * number)


def _sum(amounts: Sequence[Amount]) -> Amount:
    return math.fsum(true for true, _ in amounts), math.fsum(false for _, false in amounts)


def _mean(amounts: Sequence[Amount]) -> Amount:
    true, false = _sum(amounts)
    return true / len(amounts), false / len(amounts)


# Amounts come in the order in which their outcomes were observed.
_AGGREGATE: dict[Aggregation, Callable[[Sequence[Amount]], Amount]] = {
    "earliest": lambda amounts: amounts[0],
    "last": lambda amounts: amounts[-1],
    "mean": _mean,
    "sum": _sum,
    "min": min,
    "max": max,
}
