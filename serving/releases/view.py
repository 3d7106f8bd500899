"""The state on which the controller decides: one cluster's, read from the store at one moment."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from core.events import PolicyVersion
from core.ids import PolicyRef
from core.operations.alarms import StoredAlarm
from core.operations.fleet import Experiment, Order, ReplicaStatus, ReplicaTarget, Switches
from core.ports import Store
from core.store.work import View

_PAST = 64  # experiments: enough for the steps that are looked back on, with those that were refused in between


@dataclass(frozen=True)
class ReleaseView:
    sequence: int  # of the newest release: writes are made upon it
    anchor: PolicyRef
    anchored_at: datetime
    live: PolicyRef
    live_was_proposed: bool  # made offline: what the learner made meanwhile does not descend from it
    previous: PolicyRef | None  # what a rollback without a name goes to
    previous_is_kept: bool  # its weights are there: after a rollback it may be of long ago
    candidates: tuple[PolicyVersion, ...]  # published and undecided, the oldest first
    lane: tuple[PolicyVersion, ...]  # that the canary's lane serves or served, undecided, the oldest first
    experiment: Experiment | None  # running
    past: tuple[Experiment, ...]  # ended, the newest first; while there is a canary, for none else asks
    switches: Switches
    orders: tuple[Order, ...]
    replicas: tuple[ReplicaStatus, ...]  # whose heart beats, by name
    targets: dict[str, ReplicaTarget]
    live_since: datetime
    alarms: tuple[StoredAlarm, ...]  # that hold releases: nothing goes live while there are any, the oldest first
    undone: frozenset[PolicyRef]  # rolled back or rejected, and still in some engine
    untried: frozenset[PolicyRef]  # candidates that some engine serves: to nobody yet, or on its way to all

    @property
    def canary(self) -> PolicyVersion | None:
        """The newest of its lane, and mostly the only one."""
        return self.lane[-1] if self.lane else None

    @property
    def certified(self) -> PolicyRef | None:
        """The version that the newest experiment ended well for, until it is live."""
        promoted = self.past[0].promoted if self.past and self.experiment is None else None
        return promoted if any(each.version == promoted for each in self.lane) else None

    @property
    def live_lane(self) -> tuple[ReplicaStatus, ...]:
        """Replicas that serve, or shall serve, those who are in no experiment."""
        return tuple(r for r in self.replicas if r.name not in self.targets or self.targets[r.name].lane == "live")

    def verified_by(self, version: PolicyRef) -> dict[str, float] | None:
        """Return the figures of the first replica that holds it."""
        return next((r.figures[version] for r in self.replicas if version in r.figures), None)

    def refused_by_all(self, version: PolicyRef) -> str | None:
        """Return the reason when no replica could verify it; None while one may still, or none is there."""
        if self.replicas and all(version in replica.refused for replica in self.replicas):
            return self.replicas[0].refused[version]
        return None

    def refused_by_all_asked(self, version: PolicyRef) -> str | None:
        """Return the reason when each replica that must hold it refused, one at least; None while one may still."""
        asked = [r for r in self.replicas if r.name in self.targets and version in self.targets[r.name].hold]
        refused = [r.refused[version] for r in asked if version in r.refused]
        return refused[0] if refused and len(refused) == len(asked) else None


def look(store: Store, cluster: str, now: datetime, heartbeat_timeout_s: float) -> ReleaseView | None:
    """Read the view; None before the first version is released."""
    oldest = now - timedelta(seconds=heartbeat_timeout_s)
    with store.look() as view:
        live, since = view.releases.live(cluster), view.releases.live_since(cluster)
        if live is None or since is None:
            return None
        lane = tuple(view.policies.in_state("canary"))
        replicas = tuple(r for r in view.fleet.statuses(cluster) if r.heartbeat_at >= oldest)
        serving = {replica.serving for replica in replicas if replica.serving is not None}
        states = {version: view.policies.state_of(version) for version in serving}
        served, anchor = view.policies.get(live), view.policies.get(view.policies.first())
        assert anchor is not None
        previous = view.releases.last_in_state(cluster, "retired")
        return ReleaseView(
            sequence=view.releases.last_sequence(),
            anchor=anchor.version,
            anchored_at=anchor.created_at,
            live=live,
            live_was_proposed=served is not None and served.is_proposed,
            previous=previous,
            previous_is_kept=previous is not None and view.files.is_kept(previous),
            candidates=tuple(view.policies.candidates()),
            lane=lane,
            experiment=view.experiments.running(cluster),
            past=_ended_experiments(view, cluster) if lane else (),
            switches=view.fleet.switches(cluster),
            orders=tuple(view.orders.unfinished(cluster)),
            replicas=replicas,
            targets=view.fleet.targets(cluster),
            live_since=since,
            alarms=tuple(view.alarms.holding_releases()),
            undone=frozenset(v for v, state in states.items() if state in ("rolled_back", "rejected")),
            untried=frozenset(v for v, state in states.items() if state == "candidate"),
        )


def _ended_experiments(view: View, cluster: str) -> tuple[Experiment, ...]:
    return tuple(each for each in view.experiments.newest(cluster, _PAST) if each.ended_at is not None)
