"""The release controller: the one place that decides which version serves whom.

    candidate ──newer one waits──► superseded
        │ verified on a host, sanity gate; cases, where there is a suite
        ├──refused──► rejected                  held for a person ──► superseded, or live when promoted
        ├──where a canary can run──► canary ──worse, or a guard──► rolled_back
        ▼                              │ not worse
      live ◄───────────────────────────┘ in a small crowd newer ones take its place in the lane until that is decided
        │
        ├──the next one is live──► retired
        └──operator, guard──► rolled_back          an earlier version is live again

A candidate is asked its cases where a canary would be, on an engine that serves it to nobody.
While an alarm holds releases that no operator has acknowledged, candidates wait, and a canary is rolled back.

It decides on the store alone, and its words are targets in the store, which the engines' hosts follow: so it may end at
any point, and the next one goes on. A version is said to be live when engines serve it, and not before.
"""

import logging
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace

from core import telemetry
from core.errors import Conflict, GateRefused
from core.events import PolicyVersion, Release, ReleaseState
from core.ids import PolicyRef
from core.operations.fleet import GUARD, Experiment, ReplicaTarget
from core.ports import Clock, EventLog, Store, Weights
from core.settings import ReleaseSettings, ServingSettings
from core.stages.stage import Stage
from core.store.work import Work
from serving.releases.canaries.guards import ALARMED
from serving.releases.canaries.verdict import CanaryVerdict
from serving.releases.canary import Canary
from serving.releases.candidates import Candidates
from serving.releases.cases import CaseGate
from serving.releases.chain import Chain
from serving.releases.gate import check
from serving.releases.keeping import Keeping
from serving.releases.orders import OrderExecutor, OrderOutcome
from serving.releases.targets import Intent, can_split, leaves_users, plan
from serving.releases.view import ReleaseView, look

_LOOK_S = 0.2
_WOKEN_S = 0.5  # where it is told of changes: how often the log is asked what became of turns
_STANDS_BY_S = 1.0
_VERIFIED_AHEAD_S = 0.5  # of when a version may serve: it takes a while, and a newer one may still come
logger = logging.getLogger(__name__)


class ReleaseController(Stage):
    """Woken when a host's status has changed, and when a version was published where it `is_told`."""

    def __init__(
        self,
        log: EventLog,
        store: Store,
        weights: Weights,
        serving: ServingSettings,
        settings: ReleaseSettings,
        vocabulary: int,
        clock: Clock,
        holder: str,
        on_change: Callable[[], None] | None = None,
        cases: CaseGate | None = None,
    ) -> None:
        """Make a controller.

        `holder` names this process in the lease; `on_change` is called when targets have changed. Without `cases`
        candidates are not asked any."""
        super().__init__()
        self.is_told = False  # woken by who reads of new versions
        self._store, self._clock = store, clock
        store.wake(self.woken)
        self._serving, self._settings, self._vocabulary = serving, settings, vocabulary
        self._on_change = on_change
        self._cluster = serving.cluster
        self._chain = Chain(store, log, self._cluster, clock, holder, settings.lease_s)
        self._keeping = Keeping(store, weights, serving.versions, clock, cluster=self._cluster)
        self._orders = OrderExecutor(store, self._cluster, settings, vocabulary, clock)
        self._canary = Canary(log, self._cluster, settings, clock)
        self._cases = cases
        self._candidates = Candidates(store, settings, cases is not None)
        self._swapped_at_s = float("-inf")

    def tick(self) -> float:
        """Look, decide, write."""
        if not self._chain.lead():
            self._canary.close()  # who leads reads what canaries are judged by
            self._ask_nothing()
            return min(_STANDS_BY_S, self._settings.lease_s / 3)
        more = False
        view = look(self._store, self._cluster, self._clock.now(), self._serving.fleet.heartbeat_timeout_s)
        if view is not None:
            with nullcontext() if self._canary.listens else self._chain.kept():  # who begins to may need long
                more = self._canary.listen(view)
            try:
                self._decide(view)
            except Conflict as error:  # nothing was written: look again
                logger.warning("releases: %s", error)
                return _LOOK_S
        told = self._chain.announce()
        if told or more:
            return 0.0
        if view is None or not (view.candidates or view.canary or view.orders):
            return _WOKEN_S if self._store.wakes or self.is_told else _LOOK_S
        due_in_s = self._due_in_s()
        return min(each for each in (_LOOK_S, due_in_s - _VERIFIED_AHEAD_S, due_in_s) if each > 0)

    def close(self) -> None:
        self._ask_nothing()
        self._canary.close()
        self._chain.resign()

    # ------------------------------------------------------------------------------------------ decisions

    def _decide(self, view: ReleaseView) -> None:
        self._keeping.look_once()
        answer = self._orders.carry_out(view)  # first those that can be carried out now
        intent = self._proceed(view) if answer is None else self._obey(view, answer)
        if intent is not None:
            self._aim(view, intent)

    def _proceed(self, view: ReleaseView) -> Intent | None:
        if view.canary is not None:
            return self._try_canary(view)
        return self._guard(view) or self._try_candidate(view)

    def _obey(self, view: ReleaseView, answer: OrderOutcome) -> Intent | None:
        """Take the next step of an order."""
        if answer.steps or answer.also:
            self._write(view, answer.steps, answer.also)
            return None  # look again: the chain has grown
        return answer.intent

    def _try_canary(self, view: ReleaseView) -> Intent | None:
        verdict = self._held_back(view) or self._canary.verdict(view)
        if verdict is not None and verdict.action == "rollback":
            self._take_back(view, verdict)
            return None
        if verdict is not None and verdict.action == "promote":
            self._write(view, [], lambda work: self._canary.end(work, view, "promote", verdict))
            return None
        if view.certified is not None:  # the live lane turns
            why = "no worse than the live version, by its users' rewards"
            if len(view.lane) > 1:
                why += (
                    f"; of its lane's versions {view.lane[0].version} to {view.lane[-1].version} the one they speak for"
                )
            return self._roll_out(view, view.certified, why)
        if view.experiment is None:
            return self._go_on(view)
        news = self._canary.news(view.experiment)
        if news is not None:
            self._write(view, [], lambda work: work.experiments.put(news))
        if self._canary.may_follow(view):
            return self._try_candidate(view)
        self._ask_nothing()
        return self._intent(view)

    def _go_on(self, view: ReleaseView) -> Intent | None:
        """Hold the newest of a lane against what was certified of it, unless a proposed version waits."""
        *earlier, newest = (each.version for each in view.lane)
        why = f"version {newest}, which came after it in its lane, is held against version {view.live}"
        if self._candidates.has_proposed(view):
            earlier, why = (
                [*earlier, newest],
                f"came after version {view.live} in its lane, and a proposed version is next",
            )
        elif not (self._canary.wanted(view) and can_split(view.replicas)):
            return self._roll_out(view, newest, f"came after version {view.live} in its lane, and no canary can run")
        steps = [self._event(each, "superseded", why, "gate") for each in earlier]
        is_tried = newest not in earlier
        self._write(view, steps, (lambda work: self._canary.begin(work, view, newest)) if is_tried else None)
        return None

    def _take_back(self, view: ReleaseView, verdict: CanaryVerdict) -> None:
        """Roll a canary's lane back; where the steps before it led down as well, order the live version back, too."""
        now = self._clock.now()

        def also(work: Work) -> None:
            self._canary.end(work, view, "rollback", verdict)
            if verdict.back_to is not None:
                why = f"its steps since version {verdict.back_to} led down, and the next one, too: {verdict.why}"
                work.orders.give(self._cluster, "rollback", verdict.back_to, why, "guard", now)

        self._write(view, [self._event(each.version, "rolled_back", verdict.why, "guard") for each in view.lane], also)
        telemetry.ROLLBACKS.labels(by="guard").inc()
        if verdict.back_to is not None:
            self._canary.forget()

    @staticmethod
    def _held_back(view: ReleaseView) -> CanaryVerdict | None:
        """Withdraw a canary while an alarm holds releases, also one that was promoted and is about to serve all."""
        return CanaryVerdict("rollback", ALARMED) if view.alarms else None

    def _guard(self, view: ReleaseView) -> Intent | None:
        """Guard a direct release, which has no canary: when it is seen to be broken, order the way back."""
        broken = self._canary.broken_release(view) if view.canary is None else None
        if broken is None:
            return None
        version, why = broken
        logger.error("version %s is taken back: %s", view.live, why)
        now = self._clock.now()
        self._write(view, [], lambda work: work.orders.give(self._cluster, "rollback", version, why, GUARD, now))
        self._canary.forget()
        return self._intent(view)

    def _try_candidate(self, view: ReleaseView) -> Intent | None:
        if view.switches.pinned is not None or view.alarms:
            self._candidates.current = None
            self._ask_nothing()
            return self._intent(view)
        candidate, others = self._candidates.choose(view)
        is_early = self._due_in_s() > _VERIFIED_AHEAD_S
        if candidate is not None and not is_early and not self._canary.wanted(view):
            is_early = self._candidates.come_too_soon(candidate, view)  # a canary leaves it users
        if candidate is not None and not is_early:
            self._candidates.current = candidate.version
        if others:
            self._write(view, [self._event(*step, "gate") for step in others])
            return None  # look again: the chain has grown
        if candidate is None or is_early:
            self._ask_nothing()
            return self._intent(view)
        why = view.refused_by_all(candidate.version)
        figures = view.verified_by(candidate.version)
        if why is None and figures is not None:
            try:
                check(figures, self._vocabulary, self._settings.gate, self._candidates.most_kl(candidate, figures))
            except GateRefused as error:
                why = error.why
        if why is not None:
            self._reject(view, candidate.version, why)
            return None
        if figures is None or self._due_in_s() > 0:  # only switching is spaced
            self._ask_nothing()
            return self._intent(view, hold=frozenset({candidate.version}))
        if self._cases is not None and not self._cases.has_judged(view, candidate):
            if view.experiment is not None and not any(replica.holds_many for replica in view.replicas):
                return self._intent(view, hold=frozenset({candidate.version}))  # each engine has users
            return self._try_cases(view, candidate, self._cases)
        passed = "passed the sanity gate" + ("" if candidate.verdict is None else f"; {candidate.verdict.why}")
        if view.experiment is not None:
            self._follow(view, view.experiment, candidate.version, passed)
            return None
        if self._canary.wanted(view) and can_split(view.replicas):
            step = self._event(candidate.version, "canary", passed, "gate")
            self._write(view, [step], lambda work: self._canary.begin(work, view, candidate.version))
            return None
        return self._roll_out(view, candidate.version, passed)

    def _follow(self, view: ReleaseView, experiment: Experiment, version: PolicyRef, passed: str) -> None:
        """Let the lane of an undecided canary serve a newer version, in the same experiment."""
        step = self._event(version, "canary", f"{passed}; follows version {experiment.canary} in its lane", "gate")
        self._write(view, [step], lambda work: self._canary.follow(work, experiment, version))
        self._candidates.current = None
        self._keeping.tidy(view, view.live)

    def _try_cases(self, view: ReleaseView, candidate: PolicyVersion, cases: CaseGate) -> Intent | None:
        """Let an engine serve the candidate, to no user, until its cases have judged it."""
        version = candidate.version
        asked = [r for r in view.replicas if r.name in view.targets and view.targets[r.name].serve == version]
        refused = next((r.refused[version] for r in asked if version in r.refused), None)
        if refused is not None:
            self._reject(view, version, refused)
            return None
        verdict = cases.verdict(view, candidate)
        if verdict is not None:
            self._write(view, [], lambda work: work.policies.put_verdict(version, verdict))
            logger.info("version %s: %s: %s", version, verdict.action, verdict.why)
            if verdict.action == "refuse":
                telemetry.GATE_REFUSALS.inc()
            cases.stop()
            return None
        hold = frozenset({version})
        if view.experiment is not None:  # one engine holds both: see `_try_candidate`
            return self._intent(view, hold=hold)
        intent = self._intent(view, hold=hold, canary=version)
        return intent if leaves_users(view.replicas, view.targets, intent) else self._intent(view, hold=hold)

    def _ask_nothing(self) -> None:
        if self._cases is not None:
            self._cases.stop()

    def _roll_out(self, view: ReleaseView, version: PolicyRef, why: str) -> Intent | None:
        """Turn the live lane; what its first replica refuses goes no further. Engines that are away turn later."""
        asked = [r for r in view.live_lane if r.name in view.targets and view.targets[r.name].serve == version]
        lane = [r for r in view.live_lane if r.serving is not None or r in asked]
        serving = [r for r in lane if r.serving == version]
        refused = [r.refused[version] for r in asked if version in r.refused]
        if refused and not serving:
            self._reject(view, version, refused[0])
            return None
        if serving and all(r.serving == version or version in r.refused for r in lane):
            steps = [
                self._event(view.live, "retired", f"version {version} serves", "gate"),
                *self._superseded(view, version),
                self._event(version, "live", why, "gate"),
            ]
            self._write(view, steps)
            telemetry.SWAPS.inc()
            self._keeping.tidy(view, version)
            return None
        return self._intent(view, serve=version, one_by_one=True)

    def _superseded(self, view: ReleaseView, version: PolicyRef) -> list[Release]:
        """Return the last steps of what its lane served before it."""
        why = f"version {version}, which came after it in its lane, is certified"
        return [self._event(each.version, "superseded", why, "gate") for each in view.lane if each.version < version]

    def _reject(self, view: ReleaseView, version: PolicyRef, why: str) -> None:
        telemetry.GATE_REFUSALS.inc()
        logger.warning("version %s is rejected: %s", version, why)
        self._candidates.current = None
        lane = [each.version for each in view.lane]
        if version in lane:
            self._write(view, [self._event(each, "rolled_back", why, "gate") for each in lane])
        else:
            self._write(view, [self._event(version, "rejected", why, "gate")])

    def _due_in_s(self) -> float:
        return self._swapped_at_s + self._serving.versions.min_swap_interval_s - self._clock.monotonic()

    # ------------------------------------------------------------------------------------------ what is written

    def _intent(
        self,
        view: ReleaseView,
        *,
        serve: PolicyRef | None = None,
        hold: frozenset[PolicyRef] = frozenset(),
        canary: PolicyRef | None = None,
        one_by_one: bool = False,
    ) -> Intent:
        """Return the intent. The previous live version stays on the hosts: a rollback fetches nothing."""
        canary_share = 0.0
        if view.experiment is not None:
            canary, canary_share = view.experiment.canary, view.experiment.share
        kept = {view.live, view.previous if view.previous_is_kept else None}
        return Intent(
            serve=serve or view.live,
            hold=hold | frozenset(v for v in kept if v is not None),
            canary=canary,
            canary_share=canary_share,
            holdback=view.anchor if self._settings.holdback.share > 0 else None,
            one_by_one=one_by_one,
            avoid=view.undone,
            doubt=self._canary.doubts.to_probe(view),
        )

    def _aim(self, view: ReleaseView, intent: Intent) -> None:
        """Write targets. An engine that drops a candidate gets no users until it has done so."""
        left = view.untried - {intent.serve, intent.canary}
        wanted = plan(view.replicas, view.targets, replace(intent, avoid=intent.avoid | left))
        changed = [target for name, target in wanted.items() if view.targets.get(name) != target]
        if changed:
            self._chain.write(view.sequence, also=lambda work: _put_all(work, self._cluster, changed))
            if self._on_change is not None:
                self._on_change()

    def _write(
        self,
        view: ReleaseView,
        steps: Iterable[Release],
        also: Callable[[Work], object] | None = None,
    ) -> None:
        told = list(steps)
        self._chain.write(view.sequence, told, also)
        if any(step.state == "live" for step in told):
            self._swapped_at_s = self._clock.monotonic()

    def _event(self, version: PolicyRef, state: ReleaseState, why: str, by: str) -> Release:
        return Release(
            version=version,
            cluster=self._cluster,
            state=state,
            why=why,
            by=by,
            at=self._clock.now(),
        )


def _put_all(work: Work, cluster: str, targets: Iterable[ReplicaTarget]) -> None:
    for target in targets:
        work.fleet.put_target(cluster, target)
