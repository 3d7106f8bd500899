"""The state on which the controller decides: one policy's in one cluster, read from the store at one moment."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from core.events import PolicyVersion
from core.ids import BASE, PolicyName, PolicyRef
from core.operations.alarms import StoredAlarm
from core.operations.fleet import Experiment, Order, ReplicaStatus, ReplicaTarget, Switches
from core.ports import Store
from core.settings import PolicySettings
from core.settings.policies import EMPTY, policy_of
from core.store.work import View
from serving.releases.canaries.ratchet import PAST


@dataclass(frozen=True)
class ReleaseView:
    sequence: int  # of the newest release: writes are made upon it
    anchor: PolicyRef
    live: PolicyRef
    live_was_proposed: bool  # made offline: what the learner made meanwhile does not descend from it
    live_exclusions: int  # the newest order to exclude turns that its making obeyed
    previous: PolicyRef | None  # what a rollback without a name goes to
    candidates: tuple[PolicyVersion, ...]  # published and undecided, the oldest first
    canary: PolicyVersion | None
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


def look(
    store: Store,
    cluster: str,
    now: datetime,
    heartbeat_timeout_s: float,
    policy: PolicyName = BASE,
    policies: Mapping[str, PolicySettings] = EMPTY,
) -> ReleaseView | None:
    """Read the view of a policy; None before its first version is released. `policies` says whose an alarm is."""
    oldest = oldest_heartbeat(now, heartbeat_timeout_s)
    with store.look() as view:
        live, since = view.releases.live(cluster, policy), view.releases.live_since(cluster, policy)
        if live is None or since is None:
            return None
        canaries = view.policies.in_state("canary", policy)
        replicas = tuple(r for r in view.fleet.statuses(cluster, policy) if r.heartbeat_at >= oldest)
        serving = {replica.serving for replica in replicas if replica.serving is not None}
        states = {version: view.policies.state_of(version) for version in serving}
        served = view.policies.get(live)
        return ReleaseView(
            sequence=view.releases.last_sequence(),
            anchor=view.policies.first(policy),
            live=live,
            live_was_proposed=served is not None and served.is_proposed,
            live_exclusions=0 if served is None else served.exclusions,
            previous=_previous(view, cluster, policy),
            candidates=tuple(view.policies.candidates(policy)),
            canary=canaries[-1] if canaries else None,
            experiment=view.experiments.running(cluster, policy),
            past=_ended_experiments(view, cluster, policy) if canaries else (),
            switches=view.fleet.switches(cluster, policy),
            orders=tuple(view.orders.unfinished(cluster, policy)),
            replicas=replicas,
            targets=view.fleet.targets(cluster, policy),
            live_since=since,
            alarms=tuple(alarm for alarm in view.alarms.holding_releases() if _holds(alarm, policy, policies)),
            undone=frozenset(v for v, state in states.items() if state in ("rolled_back", "rejected")),
            untried=frozenset(v for v, state in states.items() if state == "candidate"),
        )


def oldest_heartbeat(now: datetime, heartbeat_timeout_s: float) -> datetime:
    """Return before when a heart must not have beaten last, for its replica to count as there."""
    return now - timedelta(seconds=heartbeat_timeout_s)


def _previous(view: View, cluster: str, policy: PolicyName) -> PolicyRef | None:
    """Return the version that served last before the live one; none that lost its weights to an erasure."""
    found = view.releases.last_in_state(cluster, "retired", policy)
    withdrawn = view.erasures.withdrawn()
    if found is None or not withdrawn:
        return found
    retired = {each.version: each.digest for each in view.policies.in_state("retired", policy)}
    served = reversed(view.releases.live_history(cluster, policy))
    return next((version for version in served if retired.get(version, "") not in {"", *withdrawn}), None)


def _ended_experiments(view: View, cluster: str, policy: PolicyName) -> tuple[Experiment, ...]:
    return tuple(each for each in view.experiments.newest(cluster, PAST, policy) if each.ended_at is not None)


def _holds(alarm: StoredAlarm, policy: PolicyName, policies: Mapping[str, PolicySettings]) -> bool:
    """Return whether an alarm is of the policy that answers its workload."""
    return policy_of(policies, alarm.opening.namespace, alarm.opening.workload) == policy
