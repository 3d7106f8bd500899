"""Experiments of one policy: begun and ended with the chain's steps, and judged by what the log says of their turns.

Where no canary runs, the turns of the version that was released last are guarded against those before it.
"""

import logging
import secrets
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Literal, Protocol

import msgspec

from core import telemetry
from core.events import Alarm, Reward
from core.ids import BASE, PolicyName, PolicyRef
from core.operations.fleet import Experiment
from core.ports import Clock
from core.settings import ReleaseSettings, RingSettings
from core.store.work import Work
from serving.releases.canaries.evidence import RewardEvidence
from serving.releases.canaries.guards import LEAST_TURNS, tripped
from serving.releases.canaries.observations import ServedTurn
from serving.releases.canaries.ratchet import steps_to
from serving.releases.canaries.rings import by_guards_alone, lacking, next_ring, ring_of
from serving.releases.canaries.verdict import CanaryVerdict, drifted, judge
from serving.releases.suspect_versions import Doubts
from serving.releases.view import ReleaseView

_JUDGE_EVERY_S = 0.5
logger = logging.getLogger(__name__)


class Heard(Protocol):
    """What a canary needs of whoever reads the log for it."""

    def alarms(self) -> Sequence[Alarm]:
        """Return the alarms of its policy that are open and not acknowledged."""
        ...

    def forget_alarms(self) -> None: ...

    def commit(self) -> None:
        """Let nobody read again what was read, unless another policy's experiment still needs it."""
        ...


class Canary:
    """Used by the controller's thread."""

    def __init__(
        self,
        heard: "Heard",
        cluster: str,
        settings: ReleaseSettings,
        clock: Clock,
        policy: PolicyName = BASE,
        rings: Sequence[RingSettings] = (),
    ) -> None:
        """Make the canary of a policy, whose versions pass these rings."""
        self._heard, self._policy, self._rings = heard, policy, tuple(rings)
        self._cluster, self._settings, self._clock = cluster, settings, clock
        self.doubts = Doubts(clock)
        self._experiment: Experiment | None = None
        self._rewards = RewardEvidence(settings.canary.maturity_s)
        self._sessions = RewardEvidence(settings.canary.maturity_s)  # of a ring, each as a unit
        self._recent: dict[str, deque[ServedTurn]] = {}  # by arm of the experiment
        most = 2 * settings.canary.guard_turns
        self._served: deque[ServedTurn] = deque(maxlen=most)  # of the live arm, whatever runs
        self._drift = RewardEvidence(settings.canary.maturity_s)  # live against holdback, whatever runs; of one horizon
        self._drift_since_s = self._judged_s = float("-inf")

    # ------------------------------------------------------------------------------------------ listening

    @property
    def is_running(self) -> bool:
        """True while an experiment runs, by the last look."""
        return self._experiment is not None

    @property
    def has_rings(self) -> bool:
        """True when nothing goes to all at once."""
        return bool(self._rings)

    def follow(self, view: ReleaseView) -> None:
        """Take note of which experiment runs, before more of the log is heard."""
        if self._rings:
            place = 0 if view.experiment is None else len(view.experiment.rings)
            telemetry.RING.labels(policy=self._policy).set(place)
        known, self._experiment = self._experiment, view.experiment
        if _number(known) != _number(view.experiment):
            maturity_s = self._settings.canary.maturity_s
            self._rewards, self._sessions, self._recent = RewardEvidence(maturity_s), RewardEvidence(maturity_s), {}

    def ripen(self) -> None:
        """Count what has come of age."""
        now_s = self._clock.now().timestamp()
        self._rewards.ripen(now_s)
        self._sessions.ripen(now_s)
        if now_s - self._drift_since_s > self._settings.canary.horizon_s:
            self._drift, self._drift_since_s = RewardEvidence(self._settings.canary.maturity_s), now_s
        self._drift.ripen(now_s)

    def take_turn(self, turn: ServedTurn) -> None:
        """Take a turn that the policy answered."""
        if turn.not_finite is not None:
            self.doubts.raised(turn.not_finite)
        if turn.arm == "live":
            self._served.append(turn)
        if self._shows_drift(turn):
            self._drift.turn(turn.inference_id, turn.unit, turn.arm, turn.received_at_s)
        if not self._is_evidence(turn):
            return
        kept = self._recent.setdefault(turn.arm, deque(maxlen=self._settings.canary.guard_turns))
        kept.append(turn)
        if self._compares_rewards:
            self._rewards.turn(turn.inference_id, turn.unit, self._drawn_arm(turn), turn.received_at_s)
        if self._counts_session(turn):
            self._sessions.turn(turn.inference_id, turn.session_id, turn.arm, turn.received_at_s)

    def take_reward(self, turn: ServedTurn, reward: Reward, *, is_excluded: bool) -> None:
        """Take the reward of such a turn, or a revision of it; one that an order excludes counts as none."""
        value = None if reward.void or is_excluded else reward.value
        if self._shows_drift(turn):
            self._drift.reward(turn.inference_id, value)
        if not self._is_evidence(turn):
            return
        if self._compares_rewards:
            self._rewards.reward(turn.inference_id, value)
        if self._counts_session(turn):
            self._sessions.reward(turn.inference_id, value)

    def leave_out(self, turn: ServedTurn) -> None:
        """Take back what a user said of a turn that an order excludes by now; how the turn went still counts."""
        self._drift.reward(turn.inference_id, None)
        self._rewards.reward(turn.inference_id, None)
        self._sessions.reward(turn.inference_id, None)

    def _shows_drift(self, turn: ServedTurn) -> bool:
        """Return whether a turn shows drift: its user was drawn for an arm, and not named by a ring."""
        if self._settings.holdback.share == 0 or (self._rings and turn.propensity == 1):
            return False
        return turn.arm == turn.arm_assigned and turn.arm in ("live", "holdback")

    @property
    def _tries_ring(self) -> bool:
        return self._experiment is not None and bool(self._experiment.rings)

    @property
    def _compares_rewards(self) -> bool:
        """Whether anybody was drawn: what a ring of named users may wait for is not kept of all others."""
        return self._experiment is not None and self._experiment.share > 0

    def _counts_session(self, turn: ServedTurn) -> bool:
        return self._tries_ring and turn.arm == "canary"

    def _drawn_arm(self, turn: ServedTurn) -> str:
        """Return the arm for which a turn's rewards are compared.

        Users whom a ring names were not drawn, and may be harder to please than others: they have one of their own."""
        is_named = self._tries_ring and turn.arm == "canary" and turn.propensity == 1
        return "named" if is_named else turn.arm

    def _is_evidence(self, turn: ServedTurn) -> bool:
        """Return whether a turn is evidence in the running experiment.

        Where an engine was missing for the arm, it was missing for all its users alike."""
        running = self._experiment
        return running is not None and turn.experiment_id == running.experiment_id and turn.arm == turn.arm_assigned

    # ------------------------------------------------------------------------------------------ experiments

    def wanted(self, view: ReleaseView) -> bool:
        if self._rings:
            return True
        match self._settings.canary.enabled:
            case "on":
                return True
            case "off":
                return False
        return sum(not replica.holds_many for replica in view.replicas) > 1

    def next_ring(self, reached: Collection[str]) -> RingSettings | None:
        """Return the first ring that a version has not reached; None: next are all."""
        return next_ring(self._rings, reached)

    def begin(self, work: Work, view: ReleaseView, canary: PolicyRef) -> None:
        """Begin the first ring or, where there are none, the only experiment."""
        ring, share = self.next_ring(()), self._settings.canary.share
        names, share = ((), share) if ring is None else ((ring.name,), ring.share)
        self._put(work, canary, view.live, share, secrets.token_hex(16), names)

    def go_on(self, work: Work, view: ReleaseView, ring: RingSettings, why: CanaryVerdict) -> None:
        """End the ring under test, and begin the next: who has the version keeps it."""
        passed = view.experiment
        assert passed is not None
        self.end(work, view, "passed", why)
        share = max(passed.share, ring.share)
        self._put(work, passed.canary, passed.control, share, passed.salt, (*passed.rings, ring.name))

    def _put(
        self, work: Work, canary: PolicyRef, control: PolicyRef, share: float, salt: str, rings: tuple[str, ...]
    ) -> None:
        self._heard.commit()  # from here on the evidence is read again by whoever comes next
        experiment = Experiment(
            experiment_id=f"canary-{canary}-{secrets.token_hex(4)}",
            cluster=self._cluster,
            canary=canary,
            control=control,
            share=share,
            salt=salt,
            started_at=self._clock.now(),
            rings=rings,
        )
        work.experiments.put(experiment)

    def end(
        self, work: Work, view: ReleaseView, action: Literal["passed", "promote", "rollback"], why: CanaryVerdict
    ) -> None:
        if view.experiment is not None:
            ended = msgspec.structs.replace(
                view.experiment, ended_at=self._clock.now(), verdict=action, why=why.why, figures=why.figures
            )
            work.experiments.put(ended)

    # ------------------------------------------------------------------------------------------ judging

    def verdict(self, view: ReleaseView) -> CanaryVerdict | None:
        """Return the verdict on the running experiment; None when it is too early, or an operator holds the version."""
        experiment = view.experiment
        if experiment is None:
            return None
        why = view.refused_by_all_asked(experiment.canary) or self.doubts.confirmed(view, experiment.canary)
        if why is not None:
            return CanaryVerdict("rollback", why)
        if not self._due():
            return None
        alarms = self._alarms_since(experiment.started_at)
        sides = self._recent.get("canary", ()), self._recent.get("live", ())
        why = tripped(*sides, alarms, slower_times=self._settings.canary.slower_times)
        if why is not None:
            return CanaryVerdict("rollback", why)
        age_s = (self._clock.now() - experiment.started_at).total_seconds()
        found = self._judged(experiment, age_s, view)
        if experiment.canary.policy == BASE:
            for figure, value in found.figures.items():
                telemetry.CANARY.labels(figure=figure).set(value)
        held = experiment.canary in view.switches.held
        return None if found.action == "wait" or held else found

    def _judged(self, experiment: Experiment, age_s: float, view: ReleaseView) -> CanaryVerdict:
        """Judge by rewards and, in a ring, by how many sessions and minutes there were."""
        arms = self._rewards.arm("canary"), self._rewards.arm("live")
        live = experiment.control, steps_to(experiment.control, view.past)
        if not experiment.rings:
            return judge(*arms, age_s, self._settings.canary, *live)
        ring = ring_of(self._rings, experiment)
        if ring is None:
            return CanaryVerdict("rollback", "the settings no longer have this ring")
        sessions = self._sessions.arm("canary").users
        lacks = lacking(ring, sessions, age_s)
        if experiment.share == 0:
            return by_guards_alone(sessions, lacks)
        found = judge(*arms, age_s, self._settings.canary, *live, lacks)
        return replace(found, figures=found.figures | {"sessions": float(sessions)})

    def broken_release(self, view: ReleaseView) -> tuple[PolicyRef, str] | None:
        """(version to go back to, why) when the turns since the last release are worse than those before it."""
        if view.previous is None or view.switches.pinned is not None:
            return None
        why = self.doubts.confirmed(view, view.live)
        if why is not None:
            return view.previous, why
        if not self._due():
            return None
        undecided = {candidate.version for candidate in view.candidates}  # half of the fleet may serve one already
        turns = [turn for turn in self._served if turn.version not in undecided]
        before_and_after = self._before_and_after(turns, view.live)
        why = tripped(*before_and_after, self._alarms_since(view.live_since), slower_times=None)
        if why is None and self._settings.holdback.share > 0:
            found = drifted(self._drift.arm("live"), self._drift.arm("holdback"), self._settings.canary)
            why = found.why if found.action == "rollback" else None
        return None if why is None else (view.previous, why)

    def forget(self) -> None:
        """Forget what was observed of a version that was rolled back: it says nothing about the one that serves."""
        self._served.clear()
        self._drift = RewardEvidence(self._settings.canary.maturity_s)
        self._heard.forget_alarms()
        self._heard.commit()

    def _alarms_since(self, moment: datetime) -> list[Alarm]:
        """Return alarms that opened since then.

        An alarm is about the version that served when it opened: the log may repeat it, and the next version is not
        blamed."""
        return [alarm for alarm in self._heard.alarms() if alarm.at >= moment]

    def _before_and_after(
        self, turns: Sequence[ServedTurn], live: PolicyRef
    ) -> tuple[Sequence[ServedTurn], Sequence[ServedTurn]]:
        """Return turns by the live version, and by the one before.

        Where versions come every few seconds, the newest of them together that have enough turns to be judged."""
        first = next((place for place, turn in enumerate(turns) if turn.version == live), None)
        if first is None:
            return (), ()  # nothing can be said of a version that served nobody
        since = max(0, min(first, len(turns) - LEAST_TURNS))
        return turns[since:], turns[max(0, since - self._settings.canary.guard_turns) : since]

    def _due(self) -> bool:
        """Verdicts are looked for twice a second: what is read needs no more."""
        now_s = self._clock.monotonic()
        if now_s - self._judged_s < _JUDGE_EVERY_S:
            return False
        self._judged_s = now_s
        return True


def _number(experiment: Experiment | None) -> str | None:
    return None if experiment is None else experiment.experiment_id
