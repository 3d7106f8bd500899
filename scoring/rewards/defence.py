"""The outcomes of a session that are left out: those of a burst, and those that repeat another.

It is a function of what was said and when it arrived, not of the order in which it is read."""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Literal

from core.events import Outcome
from core.ids import OutcomeId
from core.reward_spec import DefenceSpec
from scoring.rewards.amendments import Standing, standing
from scoring.rewards.state import Session, Subject

Reason = Literal["burst", "repeated"]


def is_on(spec: DefenceSpec) -> bool:
    return spec.burst_outcomes is not None or spec.identical_outcomes is not None


def left_out(session: Session, spec: DefenceSpec) -> "LeftOut":
    found: LeftOut | None = session.kept.get(spec)
    if found is None:
        found = session.kept[spec] = LeftOut(spec)
    if is_on(spec):
        found.go_on(session)
    return found


class LeftOut:
    """The outcomes of one session that are left out.

    `changes`: outcomes that ever began, or ceased, to be left out, in order."""

    def __init__(self, spec: DefenceSpec) -> None:
        self._spec = spec
        self.changes: list[OutcomeId] = []
        self._of: dict[Subject, dict[OutcomeId, Reason]] = {}
        self._reasons: dict[OutcomeId, Reason] = {}
        self._seen = 0  # of what was said
        self._last: tuple[datetime, OutcomeId] | None = None
        self._latest: defaultdict[object, deque[datetime]] = defaultdict(deque)  # of each user
        self._times: Counter[object] = Counter()

    def reason(self, outcome_id: OutcomeId) -> Reason | None:
        return self._reasons.get(outcome_id)

    def of(self, subject: Subject) -> Mapping[OutcomeId, Reason]:
        return self._of.get(subject, {})

    def go_on(self, session: Session) -> None:
        """Take in what was said since. An outcome that comes last and amends nothing does not change earlier ones."""
        for heard in session.said[self._seen :]:
            if not (session.is_alone(heard.outcome) and self._goes_on(heard.outcome)):
                self._begin_again(session)
                break
        self._seen = len(session.said)

    def _goes_on(self, outcome: Outcome) -> bool:
        if outcome.source == "derived":
            return True
        place = outcome.received_at, outcome.outcome_id
        if outcome.withdrawn or (self._last is not None and place < self._last):
            return False
        self._last = place
        if self._is_burst(outcome):
            self._leave_out(outcome, "burst")
        elif self._is_repeated(outcome):
            self._leave_out(outcome, "repeated")
        return True

    def _begin_again(self, session: Session) -> None:
        before, self._of, self._reasons = self._reasons, {}, {}
        counted = len(self.changes)
        self._latest.clear()
        self._times.clear()
        for outcome in sorted(_said(session), key=lambda outcome: (outcome.received_at, outcome.outcome_id)):
            if self._is_burst(outcome):
                self._leave_out(outcome, "burst")
        counting = [heard.outcome for heard in session.said if heard.outcome.outcome_id not in self._reasons]
        for entry in standing(counting):
            if entry.outcome.source != "derived" and self._is_repeated(entry.outcome):
                self._leave_out(entry.outcome, "repeated")
        self._last = max((heard.outcome.received_at, heard.outcome.outcome_id) for heard in session.said)
        changed = before.items() ^ self._reasons.items()
        self.changes[counted:] = dict.fromkeys(outcome_id for outcome_id, _ in changed)

    def _leave_out(self, outcome: Outcome, reason: Reason) -> None:
        self._reasons[outcome.outcome_id] = reason
        self._of.setdefault(outcome.inference_id, {})[outcome.outcome_id] = reason
        self.changes.append(outcome.outcome_id)

    def _is_burst(self, outcome: Outcome) -> bool:
        if self._spec.burst_outcomes is None:
            return False
        latest = self._latest[outcome.user_id]
        while latest and latest[0] <= outcome.received_at - timedelta(seconds=self._spec.burst_window_s):
            latest.popleft()
        if len(latest) >= self._spec.burst_outcomes:
            return True
        latest.append(outcome.received_at)
        return False

    def _is_repeated(self, outcome: Outcome) -> bool:
        if self._spec.identical_outcomes is None:
            return False
        same = outcome.user_id, outcome.inference_id, outcome.name, type(outcome.value), outcome.value
        self._times[same] += 1
        return self._times[same] > self._spec.identical_outcomes


def _said(session: Session) -> Iterable[Outcome]:
    for heard in session.said:
        if heard.outcome.source != "derived" and not heard.outcome.withdrawn:
            yield heard.outcome


def standing_of(session: Session, subject: Subject, spec: DefenceSpec) -> list[Standing]:
    """Return the outcomes on a subject that stand, without those that are left out.

    When an amendment is left out, what it amends stands as it was."""
    if not is_on(spec):
        return session.standing_of(subject)
    out, said = left_out(session, spec), session.chained(subject)
    if not any(out.reason(outcome.outcome_id) for outcome in said):
        return session.standing_of(subject)
    return [
        entry
        for entry in standing(outcome for outcome in said if out.reason(outcome.outcome_id) != "burst")
        if entry.outcome.inference_id == subject and out.reason(entry.outcome.outcome_id) is None
    ]
