"""An operator's or a guard's orders, carried out round by round until they are done or refused.

rollback V   serve V, which served before, again at once; what came after it is rolled back
promote V    serve V now: a canary, an earlier version of its lane, a candidate that waits or is held, or one that was
             superseded; not while an alarm holds releases
pin V        serve V and release nothing until unpinned; what came after it is only retired
hold V       V is neither released, promoted nor superseded by itself

Where the weights of V are gone, the learner makes them again first; where it cannot, the order is refused at once. So
it is where an exclusion left V behind: the learner would go on from what was taken out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from core import telemetry
from core.errors import GateRefused
from core.events import Release, ReleaseState
from core.ids import PolicyRef
from core.operations.fleet import GUARD, Order, Switches
from core.operations.servable import Servable
from core.ports import Clock, Store
from core.settings import ReleaseSettings
from core.store.work import Work
from serving.releases.gate import check
from serving.releases.targets import Intent
from serving.releases.view import ReleaseView

_SERVES: Final = ("rollback", "promote", "pin")
_LONGEST_LOAD_S: Final = 900.0  # that an order waits for, as long as an engine says that it loads the version
_LONGER: Final = 3.0  # than a version took when it was made, until it counts as not made again
ErrorCode = Literal["unknown_version", "invalid", "refused", "unavailable"]


@dataclass(frozen=True)
class OrderOutcome:
    """The next step of an order: targets to aim at, or the last writes."""

    intent: Intent | None = None
    steps: Sequence[Release] = ()
    also: Callable[[Work], object] | None = None


@dataclass
class OrderExecutor:
    """Knows since when it has tried the order at hand; a new controller tries it afresh."""

    store: Store
    cluster: str
    settings: ReleaseSettings
    vocabulary: int
    clock: Clock
    _since_s: dict[int, float] = field(default_factory=dict)
    _loading_s: dict[int, float] = field(default_factory=dict)  # since when an engine loads the version
    _asked: dict[int, tuple[float, float]] = field(default_factory=dict)  # when the learner was, and for how long

    def carry_out(self, view: ReleaseView) -> OrderOutcome | None:
        """Carry out the oldest order that need not wait for the learner; None where there is none."""
        return next((outcome for order in view.orders if (outcome := self._step_of(order, view)) is not None), None)

    def _step_of(self, order: Order, view: ReleaseView) -> OrderOutcome | None:
        """Take the next step of an order; None while its version is made again."""
        self._since_s.setdefault(order.order_id, self.clock.monotonic())
        with self.store.look() as stored:
            state = stored.policies.state_of(order.version)
            served = stored.releases.live_history(self.cluster)
            servable = stored.files.servable([order.version])[order.version]
            is_wanted = order.version in stored.files.wanted(order.version.policy)
            known = stored.policies.get(order.version)
        verdict = None if known is None else known.verdict
        wrong = _what_is_wrong(order, view, state, served)
        if wrong is None and order.kind in _SERVES and order.version != view.live and servable.exclusion_id is not None:
            wrong = "invalid", f"version {order.version} serves no more: {servable.lost}; take one from before it"
        is_untried = state in ("candidate", "superseded")
        if order.kind == "promote" and is_untried and verdict is not None and verdict.action == "refuse":
            wrong = "invalid", f"version {order.version} was refused: {verdict.why}"
        if wrong is not None:
            return self._refuse(order, *wrong)
        match order.kind:
            case "hold" | "unhold" | "unpin":
                return self._done(order, _switched(order, view.switches))
            case "pin" if order.version == view.live:
                return self._done(order, _switched(order, view.switches))
            case "rollback" if order.version == view.live:  # a canary runs: its lane goes
                steps = [self._step(order, each.version, "rolled_back") for each in view.lane]
                return self._done(order, None, steps, view)
        if servable.servable == "now" or view.verified_by(order.version) is not None:
            return self._serve(order, view, served)
        return self._have_made(order, view, servable, is_wanted)

    # ------------------------------------------------------------------------------------------ making it again

    def _have_made(self, order: Order, view: ReleaseView, servable: Servable, is_wanted: bool) -> OrderOutcome | None:
        """Let the learner make the version again, and everything else go on meanwhile."""
        if servable.about_s is None:
            why = servable.lost or ""
            return self._refuse(order, "refused", f"the weights of version {order.version} are gone: {why}")
        later = next((o for o in view.orders if o.order_id > order.order_id and o.kind in _SERVES), None)
        if later is not None:
            return self._overtaken(order, later, view)
        now_s, order_id = self.clock.monotonic(), order.order_id
        self._since_s[order_id] = now_s  # engines have their time once it is there
        asked_s, about_s = self._asked.setdefault(order_id, (now_s, servable.about_s))
        if not is_wanted:
            return OrderOutcome(also=lambda work: work.files.want(order.version))
        most_s = self.settings.order_timeout_s + _LONGER * about_s
        if now_s - asked_s > most_s:
            why = f"no learner made version {order.version} again in {most_s:.0f} s"
            return self._refuse(order, "unavailable", why)
        return None

    def _overtaken(self, order: Order, later: Order, view: ReleaseView) -> OrderOutcome:
        """Refuse an order that waits; one to go back to what serves has done what it was for by that."""
        if not (later.kind == "rollback" and later.version == view.live and view.canary is None):
            return self._refuse(order, "refused", f"version {order.version} was not made again before the next order")
        refused = self._refuse(order, "refused", f"taken back before version {order.version} was made again")
        done = self._done(later, None)

        def also(work: Work) -> None:
            for each in (refused, done):
                assert each.also is not None
                each.also(work)

        return OrderOutcome(also=also)

    # ------------------------------------------------------------------------------------------ serving another version

    def _serve(self, order: Order, view: ReleaseView, served: Sequence[PolicyRef]) -> OrderOutcome:
        undone = _undone(order, view, served)
        lane = view.live_lane
        if any(replica.serving == order.version for replica in lane) and self._gate(order, view) is None:
            return self._finish(order, view, undone)
        refused = view.refused_by_all(order.version) or self._gate(order, view)
        if refused is not None:
            return self._refuse(order, "refused", refused)
        if self._has_waited(order, view):
            return self._refuse(order, "unavailable", f"no engine serves version {order.version} yet: {_engines(view)}")
        is_verified = view.verified_by(order.version) is not None
        intent = Intent(
            serve=order.version if is_verified else view.live,
            hold=frozenset({order.version, view.live}),
            holdback=view.anchor if self.settings.holdback.share > 0 else None,
            avoid=undone if is_verified else frozenset(),
        )
        return OrderOutcome(intent=intent)

    def _has_waited(self, order: Order, view: ReleaseView) -> bool:
        """Return whether engines had their time, which is long for one that loads the version: it may be busy."""
        now_s, order_id = self.clock.monotonic(), order.order_id
        is_loading = any(replica.loading == order.version for replica in view.replicas)
        if is_loading and now_s - self._loading_s.setdefault(order_id, now_s) <= _LONGEST_LOAD_S:
            self._since_s[order_id] = now_s
        return now_s - self._since_s[order_id] > self.settings.order_timeout_s

    def _gate(self, order: Order, view: ReleaseView) -> str | None:
        """Return why the sanity gate refuses; a version that served before is not checked again."""
        figures = view.verified_by(order.version)
        if order.kind != "promote" or figures is None:
            return None
        try:
            check(figures, self.vocabulary, self.settings.gate)
        except GateRefused as error:
            return error.why
        return None

    def _finish(self, order: Order, view: ReleaseView, undone: frozenset[PolicyRef]) -> OrderOutcome:
        if order.kind == "rollback":
            telemetry.ROLLBACKS.labels(by=GUARD if order.by == GUARD else "operator").inc()
            with self.store.look() as stored:
                states = stored.policies.states_of(undone)
            back = sorted(version for version in undone if states[version] != "rolled_back")  # those are so already
            steps = [self._step(order, version, "rolled_back") for version in back]
        else:
            before = [each.version for each in view.lane if each.version < order.version]
            steps = [self._step(order, view.live, "retired")]
            steps += [self._step(order, version, "superseded") for version in before]
        steps.append(self._step(order, order.version, "live"))
        telemetry.SWAPS.inc()
        switched = _switched(order, view.switches)
        return self._done(order, switched, steps, view)

    # ------------------------------------------------------------------------------------------ ends

    def _done(
        self,
        order: Order,
        switches: Switches | None,
        steps: Sequence[Release] = (),
        view: ReleaseView | None = None,
    ) -> OrderOutcome:
        def also(work: Work) -> None:
            if switches is not None:
                work.fleet.put_switches(self.cluster, switches)
            if view is not None and view.experiment is not None:
                verdict: Literal["promote", "stopped"] = "promote" if order.kind == "promote" else "stopped"
                certified = order.version if verdict == "promote" else None
                ended = msgspec.structs.replace(
                    view.experiment, ended_at=self.clock.now(), verdict=verdict, why=order.why, certified=certified
                )
                work.experiments.put(ended)
            work.orders.finish(order.order_id, self.clock.now())

        return OrderOutcome(steps=steps, also=also)

    def _refuse(self, order: Order, code: ErrorCode, why: str) -> OrderOutcome:
        now = self.clock.now()

        def also(work: Work) -> None:
            work.files.want_no_more(order.version)
            work.orders.finish(order.order_id, now, code, why)

        return OrderOutcome(also=also)

    def _step(self, order: Order, version: PolicyRef, state: ReleaseState) -> Release:
        return Release(
            version=version, cluster=self.cluster, state=state, why=order.why, by=order.by, at=self.clock.now()
        )


def _what_is_wrong(
    order: Order, view: ReleaseView, state: str | None, served: Sequence[PolicyRef]
) -> tuple[ErrorCode, str] | None:
    version = order.version
    if state is None or state == "allocated":
        return "unknown_version", f"no version {version}"
    match order.kind:
        case "rollback" if version not in served:
            return "invalid", f"version {version} never served"
        case "rollback" if version == view.live and view.canary is None:
            return "invalid", f"version {version} serves already"
        case "promote" if version == view.live:
            return "invalid", f"version {version} serves already"
        case "promote" if state not in ("canary", "candidate", "superseded"):
            return "invalid", f"version {version} is {state}: a canary or a candidate can be promoted"
        case "promote" if view.switches.pinned is not None:
            return "invalid", f"version {view.switches.pinned} is pinned: unpin it first"
        case "promote" if view.alarms:
            return "invalid", f"alarm {view.alarms[0].alarm_id} holds releases: acknowledge it first"
        case "promote" if view.canary is not None and version not in [each.version for each in view.lane]:
            return "invalid", f"version {view.canary.version} is a canary: promote it or roll it back first"
        case "hold" if state not in ("canary", "candidate"):
            return "invalid", f"version {version} is {state}: a canary or a candidate can be held"
        case "unhold" if version not in view.switches.held:
            return "invalid", f"version {version} is not held"
        case "unpin" if version != view.switches.pinned:
            return "invalid", f"version {version} is not pinned"
        case "pin" if version != view.live and version not in served:
            return "invalid", f"version {version} never served: promote it first"
        case "pin" if view.canary is not None:
            return "invalid", f"version {view.canary.version} is a canary: promote it or roll it back first"
    return None


def _engines(view: ReleaseView) -> str:
    """Return in words what the engines do meanwhile."""
    said = [
        f"{each.name} loads version {each.loading}" if each.loading is not None
        else f"{each.name} is {each.state}" + (f" ({each.detail})" if each.detail else "")
        for each in view.replicas
    ]  # fmt: skip
    return "; ".join(said) or "no engine was heard of lately"


def _undone(order: Order, view: ReleaseView, served: Sequence[PolicyRef]) -> frozenset[PolicyRef]:
    """Return what a rollback takes back: all that went live since, the live version, and a canary's lane."""
    if order.kind != "rollback":
        return frozenset()
    since = served[served.index(order.version) + 1 :]
    return frozenset((*since, view.live, *(each.version for each in view.lane))) - {order.version}


def _switched(order: Order, switches: Switches) -> Switches | None:
    """Return the switches that the order leaves; None: unchanged."""
    version, others = order.version, tuple(v for v in switches.held if v != order.version)
    match order.kind:
        case "pin":
            return msgspec.structs.replace(switches, pinned=version)
        case "unpin":
            return msgspec.structs.replace(switches, pinned=None)
        case "hold":
            return msgspec.structs.replace(switches, held=(*others, version))
        case "unhold" | "promote":
            return msgspec.structs.replace(switches, held=others)
        case "rollback" if switches.pinned is not None:
            return msgspec.structs.replace(switches, pinned=version)
    return None
