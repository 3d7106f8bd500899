"""Experiments: begun and ended with the chain's steps, and judged by what the log says of their turns.

Where no canary runs, the turns of the version that was released last are guarded against those before it.
"""

import logging
import math
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from core import telemetry
from core.events import Alarm, Reward
from core.ids import PolicyRef
from core.operations.fleet import Experiment
from core.ports import Clock, EventLog
from core.settings import ReleaseSettings
from core.store.work import Work
from serving.releases.canaries.crowd import certified, crowd_of
from serving.releases.canaries.evidence import RewardEvidence
from serving.releases.canaries.guards import LEAST_TURNS, tripped
from serving.releases.canaries.observations import Observations, ServedTurn
from serving.releases.canaries.ratchet import steps_to
from serving.releases.canaries.recent import RecentTurns
from serving.releases.canaries.verdict import CanaryVerdict, drifted, judge, judge_few
from serving.releases.suspect_versions import Doubts
from serving.releases.view import ReleaseView

_JUDGE_EVERY_S = 0.5
_COMMIT_EVERY_S = 1.0
_TELL_EVERY_S = 5.0
_LANE_TURNS = 100
"""The newest of a lane that guards judge, where the newest version has fewer: a fault of it is seen within as many."""
logger = logging.getLogger(__name__)


class Canary:
    """Used by the controller's thread."""

    def __init__(self, log: EventLog, cluster: str, settings: ReleaseSettings, clock: Clock) -> None:
        self._cluster, self._settings, self._clock = cluster, settings, clock
        self._seen = Observations(log, clock, self._on_turn, self._on_reward)
        self.doubts = Doubts(clock)
        self._experiment_id: str | None = None
        self._rewards = RewardEvidence(settings.canary.maturity_s)
        self._lane = RewardEvidence(settings.canary.maturity_s)  # the canary's arm, by version
        self._recent: dict[str, RecentTurns] = {}  # by arm of the experiment
        most = 2 * settings.canary.guard_turns
        self._served = RecentTurns(most)  # of the live arm, whatever runs
        self._drift = RewardEvidence(settings.canary.maturity_s)  # live against holdback, whatever runs; of one horizon
        self._horizons = 0  # that were over before this one, since the first version was made
        self._judged_s = self._committed_s = self._told_s = float("-inf")
        self._found: dict[str, float] = {}  # by the newest look at the running experiment

    # ------------------------------------------------------------------------------------------ listening

    @property
    def listens(self) -> bool:
        """True when it has its position in the log."""
        return self._seen.is_open

    def listen(self, view: ReleaseView) -> bool:
        """Read turns, rewards and alarms from the log; return whether there may be more.

        Turns that come one by one are no reason to look at everything again at once."""
        running = None if view.experiment is None else view.experiment.experiment_id
        if running != self._experiment_id:
            self._experiment_id = running
            self._rewards, self._lane = (RewardEvidence(self._settings.canary.maturity_s) for _ in range(2))
            self._recent, self._found = {}, {}
        more = self._seen.read()
        now_s = self._clock.now().timestamp()
        self._rewards.ripen(now_s)
        self._lane.ripen(now_s)
        over = max(0, int((now_s - view.anchored_at.timestamp()) / self._settings.canary.horizon_s))
        if over != self._horizons:
            self._drift, self._horizons = RewardEvidence(self._settings.canary.maturity_s), over
        self._drift.ripen(now_s)
        self._seen.forget(now_s - self._settings.canary.horizon_s)
        if running is None and self._clock.monotonic() - self._committed_s > _COMMIT_EVERY_S:
            self._committed_s = self._clock.monotonic()
            self._seen.commit()
        return more

    def close(self) -> None:
        self._seen.close()

    def _on_turn(self, turn: ServedTurn) -> None:
        if turn.not_finite is not None:
            self.doubts.raised(turn.not_finite)
        if turn.arm == "live":
            self._served.append(turn)
        if self._shows_drift(turn):
            self._drift.turn(turn.inference_id, turn.unit, turn.arm, turn.received_at_s)
        if not self._is_evidence(turn):
            return
        if turn.arm not in self._recent:
            self._recent[turn.arm] = RecentTurns(self._settings.canary.guard_turns)
        self._recent[turn.arm].append(turn)
        self._rewards.turn(turn.inference_id, turn.unit, turn.arm, turn.received_at_s)
        if turn.arm == "canary":
            self._lane.turn(turn.inference_id, turn.unit, str(turn.version), turn.received_at_s)

    def _on_reward(self, turn: ServedTurn, reward: Reward) -> None:
        value = None if reward.void else reward.value
        if self._shows_drift(turn):
            self._drift.reward(turn.inference_id, value)
        if self._is_evidence(turn):
            self._rewards.reward(turn.inference_id, value)
            if turn.arm == "canary":
                self._lane.reward(turn.inference_id, value)

    def _shows_drift(self, turn: ServedTurn) -> bool:
        return self._settings.holdback.share > 0 and turn.arm == turn.arm_assigned and turn.arm in ("live", "holdback")

    def _is_evidence(self, turn: ServedTurn) -> bool:
        """Return whether a turn is evidence in the running experiment.

        Where an engine was missing for the arm, it was missing for all its users alike."""
        running = self._experiment_id
        return running is not None and turn.experiment_id == running and turn.arm == turn.arm_assigned

    # ------------------------------------------------------------------------------------------ experiments

    def wanted(self, view: ReleaseView) -> bool:
        match self._settings.canary.enabled:
            case "on":
                return True
            case "off":
                return False
        return len(view.replicas) > 1

    def begin(self, work: Work, view: ReleaseView, canary: PolicyRef) -> None:
        self._seen.commit()  # from here on the evidence is read again by whoever comes next
        crowd = crowd_of(len({turn.unit for turn in self._served}), len(self._served), self._settings.canary)
        now = self._clock.now()
        experiment = Experiment(
            experiment_id=f"canary-{canary}-{secrets.token_hex(4)}",
            cluster=self._cluster,
            canary=canary,
            control=view.live,
            share=crowd.share,
            salt=secrets.token_hex(16),
            switch_s=crowd.switch_s,
            started_at=now,
            until=now + timedelta(seconds=self._settings.canary.horizon_s),
        )
        work.experiments.put(experiment)

    def may_follow(self, view: ReleaseView) -> bool:
        """Return whether the lane may serve a newer version now: only in a small crowd, which needs a day to decide."""
        running = view.experiment
        if running is None or running.switch_s is None or _is_held(view, running):
            return False
        since = running.followed_at or running.started_at
        return (self._clock.now() - since).total_seconds() >= self._settings.canary.follow_s

    def follow(self, work: Work, running: Experiment, version: PolicyRef) -> None:
        """Let the lane serve a newer version, in the same experiment."""
        work.experiments.put(
            msgspec.structs.replace(running, canary=version, lane=running.versions, followed_at=self._clock.now())
        )

    def end(self, work: Work, view: ReleaseView, action: Literal["promote", "rollback"], why: CanaryVerdict) -> None:
        if view.experiment is not None:
            ended = msgspec.structs.replace(
                view.experiment,
                ended_at=self._clock.now(),
                verdict=action,
                why=why.why,
                figures=why.figures,
                certified=self._certified(view.experiment) if action == "promote" else None,
            )
            work.experiments.put(ended)

    def _certified(self, experiment: Experiment) -> PolicyRef:
        lane = [(version, self._lane.arm(str(version))) for version in experiment.versions]
        return certified(lane, self._rewards.arm("live"))

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
        sides = self._newest_of_lane(experiment.canary), self._recent.get("live", ())
        why = tripped(*sides, alarms, slower_times=self._settings.canary.slower_times)
        if why is not None:
            return CanaryVerdict("rollback", why)
        age_s = (self._clock.now() - experiment.started_at).total_seconds()
        arms = self._rewards.arm("canary"), self._rewards.arm("live")
        by = judge if experiment.switch_s is None else judge_few
        found = by(*arms, age_s, self._settings.canary, experiment.control, steps_to(experiment.control, view.past))
        for figure, value in found.figures.items():
            telemetry.CANARY.labels(figure=figure).set(value)
        self._found = {figure: value for figure, value in found.figures.items() if math.isfinite(value)}
        return None if found.action == "wait" or _is_held(view, experiment) else found

    def news(self, experiment: Experiment) -> Experiment | None:
        """Return the running experiment with what the newest look at it found, where that is to be told now."""
        now_s = self._clock.monotonic()
        if self._found == experiment.figures or now_s - self._told_s < _TELL_EVERY_S:
            return None
        self._told_s = now_s
        return msgspec.structs.replace(experiment, figures=self._found)

    def _newest_of_lane(self, version: PolicyRef) -> Sequence[ServedTurn]:
        """Return what the lane's newest version served, and of those before as much as makes it enough to be judged."""
        turns = list(self._recent.get("canary", ()))
        first = next((place for place, turn in enumerate(turns) if turn.version == version), len(turns))
        return turns[max(0, min(first, len(turns) - _LANE_TURNS)) :]

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
        if why is not None:
            return view.previous, why
        if self._settings.holdback.share > 0 and view.live != view.anchor:
            arms = self._drift.arm("live"), self._drift.arm("holdback")
            found = drifted(*arms, self._settings.canary, self._horizons)
            if found.action == "rollback":
                return view.anchor, found.why  # what it was held against: no version between is known to be better
        return None

    def forget(self) -> None:
        """Forget what was observed of a version that was rolled back: it says nothing about the one that serves."""
        self._served.clear()
        self._drift = RewardEvidence(self._settings.canary.maturity_s)
        self._seen.alarms.clear()
        self._seen.commit()

    def _alarms_since(self, moment: datetime) -> list[Alarm]:
        """Return alarms that opened since then.

        An alarm is about the version that served when it opened: the log may repeat it, and the next version is not
        blamed."""
        return [alarm for alarm in self._seen.alarms.values() if alarm.at >= moment]

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
        telemetry.RELEASE_JUDGEMENTS.inc()
        return True


def _is_held(view: ReleaseView, experiment: Experiment) -> bool:
    """Return whether an operator holds a version of the lane: then it stays as it is, but for the guards."""
    return not set(view.switches.held).isdisjoint(experiment.versions)
