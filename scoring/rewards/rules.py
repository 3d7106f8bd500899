"""The reward of a turn: pure functions of the ledger, the spec and a moment of event time.

The value depends on the set of outcomes that stand and on which waits are over, not on the order they came in."""

import hashlib
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from operator import itemgetter

import msgspec

from core.events import Credit, Hint, Outcome, TextEdit
from core.ids import OutcomeId, UserHash
from core.operations.ledger import Heard, LedgerEntry
from core.reward_spec import RewardRules, RewardSpec
from core.reward_spec.roles import CONSENT_WITHDRAWN
from scoring.rewards.amendments import Standing
from scoring.rewards.contradictions import contradicting, outweighed
from scoring.rewards.defence import is_on, left_out, standing_of
from scoring.rewards.spans import author_of, credits_of, demonstrated, hints_of
from scoring.rewards.state import Session
from scoring.rewards.worth import contribution, heard_of, trimmed_at_an_end, without_repetition

_FAULTS = ("malformed_call", "cut_off", "empty_answer", "repeated_answer", "unbacked_claim")


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
    credits: tuple[Credit, ...] = ()
    hints: tuple[Hint, ...] = ()
    edits: tuple[TextEdit, ...] = ()
    edited_by: UserHash | None = None
    said_by: tuple[UserHash, ...] = ()

    @property
    def on_spans(self) -> str | None:
        """A digest of what it says of some of the turn's tokens; None when it says nothing of them."""
        said = (self.credits, self.hints, self.edits)
        return hashlib.blake2b(msgspec.msgpack.encode(said), digest_size=8).hexdigest() if any(said) else None

    @property
    def final(self) -> bool:
        return self.due_at is None


def decide(turn: LedgerEntry, session: Session, about: Sequence[Standing], spec: RewardSpec, now: datetime) -> Decision:
    """Decide what a turn is worth now. `about`: the standing outcomes on this turn (`outcomes_about`)."""
    rules = spec.rules(turn.workload, turn.namespace)
    if voiding := _voiding(turn, session, rules):
        return _void(voiding)
    if not about and turn.revision < 0 and not (turn.closed or turn.purpose == "suggestion"):
        ends_at = _due_at(turn, session, {}, rules, turn.opened_at)
        if ends_at > now:  # as most are when they come: nothing to weigh
            return _waiting(ends_at)
    less = outweighed(about, rules)
    counted = [entry for entry in about if entry.outcome.outcome_id not in less]
    said = heard_of(turn, counted, rules)
    heard = without_repetition(turn, said, rules)
    components = {name: contribution(turn, name, entries, rules) for name, entries in heard.items()}
    ended_by = heard_of(turn, about, rules) if less else heard  # also what does not count came
    cut_short = turn.silent or any(rules.outcomes[name].decides for name in ended_by)
    seen_at = seen_at_of(turn, about, rules)
    due_at = None if cut_short or turn.closed else _due_at(turn, session, heard, rules, seen_at)
    over = due_at is None or due_at <= now
    defaults = _defaults(turn, heard, rules, seen_at) if over and (turn.silent or not cut_short) else {}
    faults = penalties_of(turn, rules)
    known = bool(components or defaults or faults)
    effort = effort_of(turn, rules) if known else {}
    conduct = {**faults, **effort}
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
        credits=credits_of(turn, said, {**defaults, **effort}, faults, rules, value),
        hints=hints_of(turn, counted, rules),
        edits=demonstrated(turn, counted, rules),
        edited_by=author_of(turn, counted, rules),
        said_by=_users(entry.outcome for entry in about),
        why=_why(components, defaults, value if value != sum_of_all else None, contrary)
        + _left_out(turn, session, heard, rules, len(less)),
    )


def _voiding(turn: LedgerEntry, session: Session, rules: RewardRules) -> list[Outcome]:
    """Return what says that the turn, or its session as a whole, came about by a fault that is not the answer's.

    It holds for all of a session's turns, whenever it was said and whatever their purpose. That a user has withdrawn
    consent to learning is said of each turn by the service itself."""
    standing = (entry.outcome for subject in (turn.inference_id, None) for entry in session.standing_of(subject))
    return [each for each in standing if _voids(each, rules) and each.value is True]


def _voids(outcome: Outcome, rules: RewardRules) -> bool:
    return rules.roles.get(outcome.name) == "void" or outcome.name == CONSENT_WITHDRAWN


def _waiting(due_at: datetime) -> Decision:
    return Decision(
        decided=False,
        due_at=due_at,
        closed=False,
        value=0.0,
        components={},
        outcome_ids=(),
        contradicting=(),
        why="",
    )


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
        said_by=_users(voiding),
    )


def _users(outcomes: Iterable[Outcome]) -> tuple[UserHash, ...]:
    return tuple(sorted({outcome.user_id for outcome in outcomes if outcome.user_id is not None}))


def outcomes_about(turn: LedgerEntry, session: Session, spec: RewardSpec) -> list[Standing]:
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


def news_about(turn: LedgerEntry, session: Session, spec: RewardSpec) -> list[Heard]:
    """Return what was said since the turn's last reward, amendments and withdrawals too, whether or not they stand."""
    own = [heard for heard in session.heard_of(turn.inference_id) if heard.offset >= turn.seen_offset]
    return own + [
        heard
        for heard in session.heard_of(None)
        if heard.offset >= turn.seen_offset and _hears_session(turn, heard.outcome.received_at, spec)
    ]


def _share(turn: LedgerEntry, session: Session, since: datetime, spec: RewardSpec) -> float:
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


def _hears_session(turn: LedgerEntry, at: datetime, spec: RewardSpec) -> bool:
    """Return whether an outcome of its session at that time can be about the turn."""
    purposes = spec.rules(turn.workload, turn.namespace).session.purposes
    return turn.opened_at <= at and turn.purpose in purposes and not turn.silent


def seen_at_of(turn: LedgerEntry, about: Iterable[Standing], rules: RewardRules) -> datetime | None:
    """Return when the user saw what the turn suggests; None while nobody is known to have seen it.

    An answer counts as seen when it was asked for, and so does a suggestion whose client does not say what it shows.
    What nobody has seen is not ignored, and its wait begins anew when it is shown after all."""
    if turn.purpose != "suggestion" or not (rules.suggestion.ignored_if_shown or turn.facts.reports_shown):
        return turn.opened_at
    shown = (entry for entry in about if rules.roles.get(entry.outcome.name) == "shown" and entry.outcome.value is True)
    moments = [entry.since for entry in shown]
    return max(turn.opened_at, min(moments)) if moments else None


def _due_at(
    turn: LedgerEntry, session: Session, heard: Mapping[str, object], spec: RewardRules, seen_at: datetime | None
) -> datetime:
    """Return when the last wait for missing outcomes is over: by itself or because the session is."""
    if turn.purpose == "suggestion":
        wait_s = spec.suggestion.wait_s
    else:
        wait_s = next((wait_s for wait_s, name in spec.waits if name not in heard), 0.0)
    ends = [(seen_at or turn.opened_at) + timedelta(seconds=wait_s)]
    if session.last_at is not None:
        ends.append(session.last_at + timedelta(seconds=spec.session.idle_timeout_s))
    if session.ended_at is not None:
        ends.append(session.ended_at + timedelta(seconds=spec.session.end_wait_s))
    return max(turn.opened_at, min(ends))


def _defaults(
    turn: LedgerEntry, heard: Mapping[str, object], spec: RewardRules, seen_at: datetime | None
) -> dict[str, float]:
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
    return {name: added for name, added in spec.defaults if name not in heard}


def _why(
    components: Mapping[str, float], defaults: Mapping[str, float], clipped_to: float | None, contrary: Sequence[str]
) -> str:
    parts = [f"{name} {value:+.2f}" for name, value in components.items()]
    parts += [f"{name} {value:+.2f} by default" for name, value in defaults.items()]
    clipped = "" if clipped_to is None else f", clipped to {clipped_to:+.2f}"
    contradiction = f"; contradicting: {' and '.join(contrary)}" if contrary else ""
    return (", ".join(parts) or "nothing stands") + clipped + contradiction


def _left_out(
    turn: LedgerEntry, session: Session, heard: Mapping[str, Sequence[object]], rules: RewardRules, outweighed: int
) -> str:
    """Say which outcomes of the turn, or of its session, do not count."""
    parts = [f"{outweighed} against a plainer verdict"] if outweighed else []
    if is_on(rules.defence):
        out = left_out(session, rules.defence)
        counts = Counter(reason for subject in (turn.inference_id, None) for reason in out.of(subject).values())
        parts += [f"{counts[reason]} {reason}" for reason in sorted(counts)]
    for name, entries in heard.items():
        trimmed = 2 * trimmed_at_an_end(len(entries), rules.outcomes[name].trim)
        parts += [f"{trimmed} of {len(entries)} {name} trimmed"] if trimmed else []
    return f"; left out: {', '.join(parts)}" if parts else ""


def penalties_of(turn: LedgerEntry, rules: RewardRules) -> dict[str, float]:
    """Return what the turn's faults cost. A fault is a reason for a reward by itself; effort is not."""
    if turn.purpose != "turn":
        return {}
    costs = {fault: float(getattr(rules.penalties, fault)) for fault in _FAULTS if getattr(turn.facts, fault)}
    return {fault: cost for fault, cost in costs.items() if cost}


def effort_of(turn: LedgerEntry, rules: RewardRules) -> dict[str, float]:
    """Return what the turn adds to the cost of the path to it; nothing for suggestions, which cost nobody's time."""
    spec = rules.effort
    if not spec.coefficient or turn.purpose == "suggestion":
        return {}
    before = turn.facts.before.weighed(spec)
    added = spec.cost(before + turn.facts.effort.weighed(spec)) - spec.cost(before)
    return {"effort": -spec.coefficient * added}
