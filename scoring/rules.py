"""What a turn is worth: pure functions of the ledger, the spec and a moment of event time.

The value depends on the set of outcomes that stand and on which waits are over, not on the order they came in.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from core.events import Outcome
from core.ids import OutcomeId
from core.reward_spec import Aggregation, OutcomeSpec, RewardSpec
from scoring.amendments import Standing
from scoring.state import Heard, Session, Turn

Amount = tuple[float, float]  # what `weight` and what `false_weight` are multiplied by


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """`decided` is False while a wait runs, and when nothing at all is known: then there is no reward, not a zero.
    `due_at` is None when no wait runs any more (`final`); `closed` when the waits ran out rather than being cut
    short by an outcome that decides."""

    decided: bool
    due_at: datetime | None
    closed: bool
    value: float
    components: dict[str, float]
    outcome_ids: tuple[OutcomeId, ...]
    why: str

    @property
    def final(self) -> bool:
        return self.due_at is None


def decide(turn: Turn, session: Session, about: Sequence[Standing], spec: RewardSpec, now: datetime) -> Decision:
    """`about`: the outcomes that stand and speak of this turn (`outcomes_about`)."""
    heard = _by_name(about, spec)
    components = {name: _contribution(spec.outcomes[name], entries) for name, entries in heard.items()}
    cut_short = turn.silent or any(spec.outcomes[name].decides for name in heard)
    due_at = None if cut_short or turn.closed else _due_at(turn, session, heard, spec)
    over = due_at is None or due_at <= now
    defaults = _defaults(turn, heard, spec) if over and (turn.silent or not cut_short) else {}
    sum_of_all = math.fsum([*components.values(), *defaults.values()])
    value = min(max(sum_of_all, spec.clip[0]), spec.clip[1])
    return Decision(
        decided=over and bool(components or defaults),
        due_at=None if over else due_at,
        closed=turn.closed or (over and not cut_short),
        value=value,
        components={**components, **defaults},
        outcome_ids=tuple(entry.outcome.outcome_id for entries in heard.values() for entry in entries),
        why=_why(components, defaults, value if value != sum_of_all else None),
    )


def outcomes_about(turn: Turn, session: Session, spec: RewardSpec) -> list[Standing]:
    """Its own, and the session's as far as they are credited to it: those said after it was asked for."""
    return [
        entry
        for entry in session.standing()
        if entry.outcome.inference_id == turn.inference_id
        or (entry.outcome.inference_id is None and _is_credited(turn, session, entry.since, spec))
    ]


def news_about(turn: Turn, session: Session, spec: RewardSpec) -> list[Heard]:
    """What was said since the turn's last reward: amendments and withdrawals too, whether or not they stand."""
    return [
        heard
        for heard in session.heard.values()
        if heard.offset >= turn.seen_offset
        and (
            heard.outcome.inference_id == turn.inference_id
            or (heard.outcome.inference_id is None and _hears_session(turn, heard.outcome.received_at, spec))
        )
    ]


def is_usable(outcome: Outcome, spec: OutcomeSpec) -> bool:
    """Whether its value is of the spec's type and within its bounds. The API refuses what is not; a log scored under
    another spec may hold some."""
    if spec.type == "boolean":
        return isinstance(outcome.value, bool)
    if spec.type == "text" or isinstance(outcome.value, bool | str | None):
        return False
    low = -math.inf if spec.minimum is None else spec.minimum
    high = math.inf if spec.maximum is None else spec.maximum
    return math.isfinite(outcome.value) and low <= outcome.value <= high


def _is_credited(turn: Turn, session: Session, since: datetime, spec: RewardSpec) -> bool:
    if not _hears_session(turn, since, spec):
        return False
    if spec.session.credit == "equal":
        return True
    candidates = (other for other in session.turns.values() if _hears_session(other, since, spec))
    return max(candidates, key=lambda other: other.order) is turn


def _hears_session(turn: Turn, at: datetime, spec: RewardSpec) -> bool:
    """Whether what was said of its session then can be meant for it."""
    return turn.opened_at <= at and turn.purpose in spec.session.purposes and not turn.silent


def _by_name(about: Iterable[Standing], spec: RewardSpec) -> dict[str, list[Standing]]:
    """Those that can move the reward, by name in the order of the alphabet."""
    found: dict[str, list[Standing]] = {}
    for entry in about:
        outcome_spec = spec.outcomes.get(entry.outcome.name)
        if outcome_spec is not None and _matters(outcome_spec) and is_usable(entry.outcome, outcome_spec):
            found.setdefault(entry.outcome.name, []).append(entry)
    return dict(sorted(found.items()))


def _matters(spec: OutcomeSpec) -> bool:
    return bool(spec.weight or spec.false_weight or spec.decides)


def _due_at(turn: Turn, session: Session, heard: Mapping[str, object], spec: RewardSpec) -> datetime:
    """When the last wait for what was not heard is over: by itself or because the session is."""
    if turn.purpose == "suggestion":
        wait_s = spec.suggestion.wait_s
    else:
        wait_s = max((awaited.wait_s for name, awaited in spec.outcomes.items() if name not in heard), default=0.0)
    ends = [turn.opened_at + timedelta(seconds=wait_s)]
    if session.last_at is not None:
        ends.append(session.last_at + timedelta(seconds=spec.session.idle_timeout_s))
    if session.ended_at is not None:
        ends.append(session.ended_at + timedelta(seconds=spec.session.end_wait_s))
    return max(turn.opened_at, min(ends))


def _defaults(turn: Turn, heard: Mapping[str, object], spec: RewardSpec) -> dict[str, float]:
    """What stands in for what was not said."""
    if turn.purpose == "suggestion":
        if heard:
            return {}
        return {"silent": spec.suggestion.empty_reward} if turn.empty else {"ignored": spec.suggestion.ignored_reward}
    return {
        name: _weighted(awaited, _amount(awaited.default))
        for name, awaited in sorted(spec.outcomes.items())
        if awaited.default is not None and name not in heard
    }


def _contribution(spec: OutcomeSpec, entries: Sequence[Standing]) -> float:
    amounts = [_amount(entry.outcome.value) for entry in entries]
    return _weighted(spec, _AGGREGATE[spec.aggregation](amounts))


def _amount(value: bool | float | str | None) -> Amount:
    assert isinstance(value, bool | int | float)
    return (0.0, 1.0) if value is False else (float(value), 0.0)


def _weighted(spec: OutcomeSpec, amount: Amount) -> float:
    return spec.weight * amount[0] + spec.false_weight * amount[1]


def _sum(amounts: Sequence[Amount]) -> Amount:
    return math.fsum(true for true, _ in amounts), math.fsum(false for _, false in amounts)


def _mean(amounts: Sequence[Amount]) -> Amount:
    true, false = _sum(amounts)
    return true / len(amounts), false / len(amounts)


# Amounts come in the order their outcomes were first heard of.
_AGGREGATE: dict[Aggregation, Callable[[Sequence[Amount]], Amount]] = {
    "earliest": lambda amounts: amounts[0],
    "last": lambda amounts: amounts[-1],
    "mean": _mean,
    "sum": _sum,
    "min": min,
    "max": max,
}


def _why(components: Mapping[str, float], defaults: Mapping[str, float], clipped_to: float | None) -> str:
    parts = [f"{name} {value:+.2f}" for name, value in components.items()]
    parts += [f"{name} {value:+.2f} by default" for name, value in defaults.items()]
    clipped = "" if clipped_to is None else f", clipped to {clipped_to:+.2f}"
    return (", ".join(parts) or "nothing stands") + clipped
