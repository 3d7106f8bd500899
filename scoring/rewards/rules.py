"""The reward of a turn: pure functions of the ledger, the spec and a moment of event time.

The value depends on the set of outcomes that stand and on which waits are over, not on the order they came in."""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from operator import itemgetter

import msgspec

from core.events import Outcome
from core.ids import OutcomeId
from core.operations.ledger import Heard, Turn
from core.reward_spec import Aggregation, OutcomeSpec, RewardSpec, Rules
from scoring.rewards.amendments import Standing
from scoring.rewards.conduct import effort_of, penalties_of
from scoring.rewards.contradictions import contradicting, outweighed
from scoring.rewards.defence import is_on, left_out, standing_of
from scoring.rewards.state import Session
from scoring.rewards.usable import fault_of

Amount = tuple[float, float]  # what `weight` and what `false_weight` are multiplied by


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The decision on a turn's reward.

    `decided` is False while a wait runs, and when nothing at all is known: then there is no reward, not a zero. So it
    is for a turn that is void, whose `value` is None.
    `due_at` is None when no wait runs any more (`final`); `closed` when the waits ran out rather than being cut short
    by an outcome that decides."""

    decided: bool
    due_at: datetime | None
    closed: bool
    value: float | None
    components: dict[str, float]
    outcome_ids: tuple[OutcomeId, ...]
    contradicting: tuple[str, ...]  # names of outcomes
    why: str

    @property
    def final(self) -> bool:
        return self.due_at is None


def decide(turn: Turn, session: Session, about: Sequence[Standing], spec: RewardSpec, now: datetime) -> Decision:
    """Decide what a turn is worth now. `about`: the standing outcomes on this turn (`outcomes_about`)."""
    rules = spec.rules(turn.workload, turn.namespace)
    if voiding := _voiding(turn, session, rules):
        return _void(voiding)
    less = outweighed(about, rules.roles)
    heard = _by_name(turn, [entry for entry in about if entry.outcome.outcome_id not in less], rules)
    components = {name: _contribution(turn, name, entries, rules) for name, entries in heard.items()}
    cut_short = turn.silent or any(rules.outcomes[name].decides for name in heard)
    seen_at = seen_at_of(turn, about, rules)
    due_at = None if cut_short or turn.closed else _due_at(turn, session, heard, rules, seen_at)
    over = due_at is None or due_at <= now
    defaults = _defaults(turn, heard, rules, seen_at) if over and (turn.silent or not cut_short) else {}
    faults = penalties_of(turn, rules)
    known = bool(components or defaults or faults)
    conduct = {**faults, **effort_of(turn, rules)} if known else {}
    sum_of_all = math.fsum([*components.values(), *defaults.values(), *conduct.values()])
    value = min(max(sum_of_all, rules.clip[0]), rules.clip[1])
    components |= conduct
    contrary = contradicting(about, rules.roles)
    return Decision(
        decided=over and known,
        due_at=None if over else due_at,
        closed=turn.closed or (over and not cut_short and seen_at is not None),
        value=value,
        components={**components, **defaults},
        outcome_ids=tuple(entry.outcome.outcome_id for entries in heard.values() for entry in entries),
        contradicting=contrary,
        why=_why(components, defaults, value if value != sum_of_all else None, contrary)
        + _left_out(turn, session, heard, rules, len(less)),
    )


def _voiding(turn: Turn, session: Session, rules: Rules) -> list[Outcome]:
    """Return what says that the turn, or its session as a whole, came about by a fault that is not the answer's.

    It holds for all of a session's turns, whenever it was said and whatever their purpose."""
    if "void" not in rules.roles.values():
        return []
    standing = (entry.outcome for subject in (turn.inference_id, None) for entry in session.standing_of(subject))
    return [each for each in standing if rules.roles.get(each.name) == "void" and each.value is True]


def _void(voiding: Sequence[Outcome]) -> Decision:
    names = ", ".join(sorted({outcome.name for outcome in voiding}))
    return Decision(
        decided=False,
        due_at=None,
        closed=True,
        value=None,
        components={},
        outcome_ids=tuple(outcome.outcome_id for outcome in voiding),
        contradicting=(),
        why=f"void: {names}",
    )


def outcomes_about(turn: Turn, session: Session, spec: RewardSpec) -> list[Standing]:
    """Return the turn's own outcomes, and its share of the session's that were said after the request."""
    defence = spec.rules(turn.workload, turn.namespace).defence
    own, general = (standing_of(session, subject, defence) for subject in (turn.inference_id, None))
    if not general:
        return own
    shared = ((entry, _share(turn, session, entry.since, spec)) for entry in general)
    about = [
        entry if share == 1 else msgspec.structs.replace(entry, share=share) for entry, share in shared if share != 0
    ]
    return sorted(own + about, key=lambda entry: (entry.since, entry.outcome.outcome_id))


def news_about(turn: Turn, session: Session, spec: RewardSpec) -> list[Heard]:
    """Return what was said since the turn's last reward, amendments and withdrawals too, whether or not they stand."""
    own = [heard for heard in session.heard_of(turn.inference_id) if heard.offset >= turn.seen_offset]
    return own + [
        heard
        for heard in session.heard_of(None)
        if heard.offset >= turn.seen_offset and _hears_session(turn, heard.outcome.received_at, spec)
    ]


def _share(turn: Turn, session: Session, since: datetime, spec: RewardSpec) -> float:
    """Return the share of an outcome of the session at that time that the turn is credited with."""
    if not _hears_session(turn, since, spec):
        return 0.0
    rules = spec.rules(turn.workload, turn.namespace).session
    if rules.credit == "equal":
        return 1.0
    hearing = _hearing(session, spec)
    later = bisect_right(hearing, since, key=itemgetter(0)) - bisect_right(hearing, turn.order)
    return float(rules.discount**later if rules.credit == "discounted" else later == 0)


def _hearing(session: Session, spec: RewardSpec) -> list[tuple[datetime, int, str]]:
    """Return the places, in order, of the turns that outcomes of their session can be about."""
    if "hearing" not in session.memory:
        turns = session.turns.values()
        session.memory["hearing"] = sorted(turn.order for turn in turns if _hears_session(turn, turn.opened_at, spec))
    found: list[tuple[datetime, int, str]] = session.memory["hearing"]
    return found


def _hears_session(turn: Turn, at: datetime, spec: RewardSpec) -> bool:
    """Return whether an outcome of its session at that time can be about the turn."""
    purposes = spec.rules(turn.workload, turn.namespace).session.purposes
    return turn.opened_at <= at and turn.purpose in purposes and not turn.silent


def _by_name(turn: Turn, about: Iterable[Standing], rules: Rules) -> dict[str, list[Standing]]:
    """Return the outcomes that can move the reward, by name in alphabetical order."""
    found: dict[str, list[Standing]] = {}
    for entry in about:
        name = entry.outcome.name
        spec = rules.outcomes.get(name)
        if spec is None or spec.type == "text" or fault_of(entry.outcome, spec):
            continue
        if spec.moves or spec.decides or is_thresholded(turn, name, rules):
            found.setdefault(name, []).append(entry)
    found = {name: _said(entries) for name, entries in found.items()}
    return _without_repetition(turn, dict(sorted(found.items())), rules)


def _said(entries: list[Standing]) -> list[Standing]:
    """Return the outcomes that somebody stated; those that were derived when there are none."""
    return [entry for entry in entries if entry.outcome.source != "derived"] or entries


def is_thresholded(turn: Turn, name: str, rules: Rules) -> bool:
    """Return whether the show threshold decides what this outcome is worth, rather than its weights."""
    is_about_acceptance = rules.roles.get(name) in ("accept", "reject")
    return turn.purpose == "suggestion" and rules.suggestion.show_threshold is not None and is_about_acceptance


def _without_repetition(turn: Turn, heard: dict[str, list[Standing]], rules: Rules) -> dict[str, list[Standing]]:
    """Keep the most exact of several outcomes on one suggestion's acceptance, by threshold.

    Elsewhere a share that was accepted says more than the fact that it was accepted."""
    shares, wholes, refusals = _about_acceptance(heard, rules)
    said = [name for name in (*shares, *wholes, *refusals) if is_thresholded(turn, name, rules)]
    repeated = said[1:]
    if not said and any(rules.outcomes[name].moves for name in shares):
        repeated = wholes
    return {name: entries for name, entries in heard.items() if name not in repeated}


def _about_acceptance(heard: Iterable[str], rules: Rules) -> tuple[list[str], list[str], list[str]]:
    """Return the names of the accepted shares, of the other acceptances, and of the rejections."""
    accepted = [name for name in heard if rules.roles.get(name) == "accept"]
    shares = [name for name in accepted if rules.outcomes[name].type == "number"]
    wholes = [name for name in accepted if name not in shares]
    return shares, wholes, [name for name in heard if rules.roles.get(name) == "reject"]


def seen_at_of(turn: Turn, about: Iterable[Standing], rules: Rules) -> datetime | None:
    """Return when the user saw what the turn suggests; None while nobody is known to have seen it.

    An answer counts as seen when it was asked for, and so does a suggestion whose client does not say what it shows.
    What nobody has seen is not ignored, and its wait begins anew when it is shown after all."""
    if turn.purpose != "suggestion" or not (rules.suggestion.ignored_if_shown or turn.facts.reports_shown):
        return turn.opened_at
    shown = (entry for entry in about if rules.roles.get(entry.outcome.name) == "shown" and entry.outcome.value is True)
    moments = [entry.since for entry in shown]
    return max(turn.opened_at, min(moments)) if moments else None


def _due_at(
    turn: Turn, session: Session, heard: Mapping[str, object], spec: Rules, seen_at: datetime | None
) -> datetime:
    """Return when the last wait for missing outcomes is over: by itself or because the session is."""
    if turn.purpose == "suggestion":
        wait_s = spec.suggestion.wait_s
    else:
        wait_s = max((awaited.wait_s for name, awaited in spec.outcomes.items() if name not in heard), default=0.0)
    ends = [(seen_at or turn.opened_at) + timedelta(seconds=wait_s)]
    if session.last_at is not None:
        ends.append(session.last_at + timedelta(seconds=spec.session.idle_timeout_s))
    if session.ended_at is not None:
        ends.append(session.ended_at + timedelta(seconds=spec.session.end_wait_s))
    return max(turn.opened_at, min(ends))


def _defaults(turn: Turn, heard: Mapping[str, object], spec: Rules, seen_at: datetime | None) -> dict[str, float]:
    """Return the values that stand in for missing outcomes."""
    if turn.purpose == "suggestion":
        if heard:
            return {}
        if turn.empty:
            return {"silent": spec.suggestion.empty_reward}
        if seen_at is None:
            return {}
        threshold = spec.suggestion.show_threshold
        return {"ignored": spec.suggestion.ignored_reward if threshold is None else -threshold}
    return {
        name: added
        for name, awaited in sorted(spec.outcomes.items())
        if name not in heard and (added := _by_default(awaited)) is not None
    }


def _by_default(spec: OutcomeSpec) -> float | None:
    return spec.default_reward if spec.default is None else spec.worth(*spec.amounts(spec.default))


def _contribution(turn: Turn, name: str, entries: Sequence[Standing], rules: Rules) -> float:
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
    out = _trimmed_at_an_end(len(ordered), share)
    return ordered[out : len(ordered) - out]


def _trimmed_at_an_end(number: int, share: float) -> int:
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


def _why(
    components: Mapping[str, float], defaults: Mapping[str, float], clipped_to: float | None, contrary: Sequence[str]
) -> str:
    parts = [f"{name} {value:+.2f}" for name, value in components.items()]
    parts += [f"{name} {value:+.2f} by default" for name, value in defaults.items()]
    clipped = "" if clipped_to is None else f", clipped to {clipped_to:+.2f}"
    contradiction = f"; contradicting: {' and '.join(contrary)}" if contrary else ""
    return (", ".join(parts) or "nothing stands") + clipped + contradiction


def _left_out(
    turn: Turn, session: Session, heard: Mapping[str, Sequence[object]], rules: Rules, outweighed: int
) -> str:
    """Say which outcomes of the turn, or of its session, do not count."""
    parts = [f"{outweighed} against what was said of the answer itself"] if outweighed else []
    if is_on(rules.defence):
        out = left_out(session, rules.defence)
        counts = Counter(reason for subject in (turn.inference_id, None) for reason in out.of(subject).values())
        parts += [f"{counts[reason]} {reason}" for reason in sorted(counts)]
    for name, entries in heard.items():
        trimmed = 2 * _trimmed_at_an_end(len(entries), rules.outcomes[name].trim)
        parts += [f"{trimmed} of {len(entries)} {name} trimmed"] if trimmed else []
    return f"; left out: {', '.join(parts)}" if parts else ""
