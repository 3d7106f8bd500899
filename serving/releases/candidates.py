"""Chooses the next candidate, and decides what happens to the others."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil

from core.events import PolicyVersion, ReleaseState
from core.ids import PolicyRef
from core.ports import Store
from core.settings import ReleaseSettings
from serving.releases.canaries.guards import least_users
from serving.releases.gate import UsualKl
from serving.releases.view import ReleaseView

_ANYBODYS = 4  # times `first_turns`
LastStep = tuple[PolicyRef, ReleaseState, str]
"""Of a candidate that goes no further: its state, and why."""


@dataclass
class Candidates:
    """Used by the controller's thread. `current`: the one under way."""

    store: Store
    settings: ReleaseSettings
    asks_cases: bool
    current: PolicyRef | None = None
    _has_first: bool = False
    _usual_kl: UsualKl = field(default_factory=UsualKl)

    def choose(self, view: ReleaseView) -> tuple[PolicyVersion | None, list[LastStep]]:
        """Return the candidate in progress, else the newest; and the last steps of the others.

        Older ones are superseded, those of a refused line rejected. In a canary's lane only what descends from it goes
        on, and what was proposed waits until the lane is decided on."""
        steps: list[LastStep] = []
        left: list[PolicyVersion] = []
        for candidate in view.candidates:
            end = self._end_of(candidate, view)
            if end is not None:
                steps.append((candidate.version, *end))
            elif candidate.version not in view.switches.held and not self._waits_for_promotion(candidate):
                left.append(candidate)
        if view.canary is not None:
            left = [each for each in left if not each.is_proposed]
        served = {replica.serving for replica in view.replicas}  # by a controller that ended before it said so
        under_way = [c for c in left if c.version == self.current or c.version in served]
        proposed = [c for c in left if c.is_proposed]
        going_on = left if view.canary is None else [c for c in left if self._descends(c, view.canary)]
        chosen = next(reversed([c for c in under_way if c in going_on] or proposed or going_on), None)
        for candidate in left:
            if chosen is not None and candidate.version < chosen.version:
                steps.append((candidate.version, "superseded", f"version {chosen.version} is newer"))
        return chosen, steps

    def come_too_soon(self, candidate: PolicyVersion, view: ReleaseView) -> bool:
        """Return whether the first version still has too few rewarded turns for later ones to be compared with.

        Of `first_turns`, none of several users has more than a share (as many as guards ask for make them up), so that
        what all later versions are compared with is not one user's. Of four times as many anybody's will do: else a
        user who came once, or one who sends without end, would hold releases for ever."""
        least = self.settings.first_turns
        if self._has_first or least == 0 or view.live != view.anchor or candidate.is_proposed:
            return False
        with self.store.look() as stored:
            of_users = stored.curves.first_rewarded(view.anchor, 2 * _ANYBODYS * least)
        of_each = least if len(of_users) < 2 else ceil(least / least_users(len(of_users)))
        counted = sum(min(turns, of_each) for turns in of_users.values())
        self._has_first = counted >= least or of_users.total() >= _ANYBODYS * least
        return not self._has_first

    def has_proposed(self, view: ReleaseView) -> bool:
        """Return whether a proposed version could go on."""
        return any(
            each.is_proposed
            and each.version not in view.switches.held
            and not self._waits_for_promotion(each)
            and self._end_of(each, view) is None
            for each in view.candidates
        )

    def most_kl(self, candidate: PolicyVersion, figures: Mapping[str, float]) -> float | None:
        """Return the KL that is usual; None for a proposed version, which is no update of the learner's."""
        if candidate.is_proposed:
            return None
        updates = len(self._lineage(candidate)) - 1
        return self._usual_kl.most(candidate.version, figures["kl_to_live"], max(1, updates), self.settings.gate)

    def _end_of(self, candidate: PolicyVersion, view: ReleaseView) -> tuple[ReleaseState, str] | None:
        """Its last step, and why, where it cannot go live whatever the sanity gate says."""
        if candidate.verdict is not None and candidate.verdict.action == "refuse":
            return "rejected", candidate.verdict.why
        lineage = self._lineage(candidate)
        undone = next(((v, state) for v, state in lineage[1:] if state in ("rolled_back", "rejected")), None)
        if undone is not None:
            return "rejected", f"descends from version {undone[0]}, which was {undone[1].replace('_', ' ')}"
        if self._is_overtaken(candidate, view):
            return "superseded", f"version {view.live} is newer"
        if view.live_was_proposed and not candidate.is_proposed and view.live not in dict(lineage):
            return "superseded", f"does not descend from version {view.live}, which was proposed"
        return None

    def _descends(self, candidate: PolicyVersion, canary: PolicyVersion) -> bool:
        return canary.version in dict(self._lineage(candidate))

    def _lineage(self, candidate: PolicyVersion) -> list[tuple[PolicyRef, str]]:
        with self.store.look() as stored:
            return stored.policies.states_of_lineage(candidate.version)

    def _is_overtaken(self, candidate: PolicyVersion, view: ReleaseView) -> bool:
        """Return whether a candidate is overtaken.

        A learner's version waits for an operator only until the next one is live; a proposed one, however long it
        takes."""
        waits = self._waits_for_promotion(candidate) and candidate.version not in view.switches.held
        return waits and not candidate.is_proposed and candidate.version < view.live

    def _waits_for_promotion(self, candidate: PolicyVersion) -> bool:
        waits_for = ("hold",) if self.asks_cases else ("hold", "ask")
        return candidate.verdict is not None and candidate.verdict.action in waits_for
