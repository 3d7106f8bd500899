"""Which outcomes of a session are left out: those of a burst, and those that repeat another.

A function of what was said and when it arrived, not of the order in which it is read.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Literal

from core.events import Outcome
from core.ids import OutcomeId
from core.reward_spec import DefenceSpec
from scoring.amendments import Standing, standing
from scoring.state import Session, Subject

Reason = Literal["burst", "repeated"]


def is_on(spec: DefenceSpec) -> bool:
    return spec.burst_outcomes is not None or spec.identical_outcomes is not None


def left_out(session: Session, spec: DefenceSpec) -> dict[OutcomeId, Reason]:
    if not is_on(spec):
        return {}
    known: dict[OutcomeId, Reason] | None = session.memory.get(("left out", spec))
    if known is None:
        out: dict[OutcomeId, Reason] = dict.fromkeys(_bursts(session, spec), "burst")
        known = out | dict.fromkeys(_repeated(_standing(session, out), spec), "repeated")
        session.memory["left out", spec] = known
    return known


def standing_of(session: Session, subject: Subject, spec: DefenceSpec) -> list[Standing]:
    """What stands of what was said of it, without what is left out: of what an amendment that is left out amends, it is
    what was said before."""
    if not (out := left_out(session, spec)):
        return session.standing_of(subject)
    found: dict[Subject, list[Standing]] | None = session.memory.get(("standing", spec))
    if found is None:
        found = session.memory["standing", spec] = defaultdict(list)
        for entry in _standing(session, out):
            found[entry.outcome.inference_id].append(entry)
    return found.get(subject, [])


def _standing(session: Session, out: Mapping[OutcomeId, Reason]) -> list[Standing]:
    repeated = {outcome_id for outcome_id, reason in out.items() if reason == "repeated"}
    heard = (entry.outcome for entry in session.heard.values() if out.get(entry.outcome.outcome_id) != "burst")
    return [entry for entry in standing(heard) if entry.outcome.outcome_id not in repeated]


def _bursts(session: Session, spec: DefenceSpec) -> Iterable[OutcomeId]:
    if spec.burst_outcomes is None:
        return
    window = timedelta(seconds=spec.burst_window_s)
    counted: defaultdict[object, deque[datetime]] = defaultdict(deque)
    for outcome in sorted(_said(session), key=lambda outcome: (outcome.received_at, outcome.outcome_id)):
        latest = counted[outcome.user_id]
        while latest and latest[0] <= outcome.received_at - window:
            latest.popleft()
        if len(latest) < spec.burst_outcomes:
            latest.append(outcome.received_at)
        else:
            yield outcome.outcome_id


def _said(session: Session) -> Iterable[Outcome]:
    for heard in session.heard.values():
        if heard.outcome.source != "derived" and not heard.outcome.withdrawn:
            yield heard.outcome


def _repeated(stand: Iterable[Standing], spec: DefenceSpec) -> Iterable[OutcomeId]:
    if spec.identical_outcomes is None:
        return
    times: Counter[object] = Counter()
    for outcome in (entry.outcome for entry in stand):
        if outcome.source == "derived":
            continue
        same = outcome.user_id, outcome.inference_id, outcome.name, type(outcome.value), outcome.value
        times[same] += 1
        if times[same] > spec.identical_outcomes:
            yield outcome.outcome_id
