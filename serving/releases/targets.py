"""Translation of the controller's intent to a target for each replica, as pure functions.

An engine that holds many versions serves every arm. One that serves a single version is assigned to a lane: while a
canary runs, a share of such replicas (at least one, never all) serves it; with a holdback, one stays on the anchor."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from core.ids import PolicyRef
from core.operations.fleet import Lane, ReplicaStatus, ReplicaTarget


@dataclass(frozen=True)
class Intent:
    """The controller's intent.

    `serve`: for the live lane. `hold`: to be verified on every host besides. `one_by_one`: the live lane turns to
    `serve` replica by replica, so that a version that cannot serve fails on one of them; unreachable ones come last."""

    serve: PolicyRef
    hold: frozenset[PolicyRef] = frozenset()
    canary: PolicyRef | None = None
    canary_share: float = 0.0
    holdback: PolicyRef | None = None
    one_by_one: bool = False
    avoid: frozenset[PolicyRef] = frozenset()
    doubt: frozenset[PolicyRef] = frozenset()


def can_split(replicas: Sequence[ReplicaStatus]) -> bool:
    """Return whether a canary can run beside the live version."""
    return any(replica.holds_many for replica in replicas) or len(replicas) > 1


def plan(
    replicas: Sequence[ReplicaStatus], current: Mapping[str, ReplicaTarget], intent: Intent
) -> dict[str, ReplicaTarget]:
    """Return a target for each replica. Replicas keep their lane where possible, since prefixes are cached."""
    lanes = _lanes(replicas, current, intent)
    versions = _live_versions([r for r in replicas if lanes[r.name] == "live"], current, intent)
    serves: dict[Lane, PolicyRef | None] = {"canary": intent.canary, "holdback": intent.holdback}
    extra = intent.hold | {v for v in (intent.canary, intent.holdback) if v is not None}
    targets = {}
    for replica in replicas:
        serve = serves.get(lanes[replica.name]) or versions[replica.name]
        hold = {serve, intent.serve, *(extra if replica.holds_many else intent.hold)}
        targets[replica.name] = ReplicaTarget(
            name=replica.name,
            lane=lanes[replica.name],
            serve=serve,
            hold=tuple(sorted(hold)),
            avoid=tuple(sorted(intent.avoid)),
            doubt=tuple(sorted(intent.doubt)),
        )
    return targets


def leaves_users(replicas: Sequence[ReplicaStatus], current: Mapping[str, ReplicaTarget], intent: Intent) -> bool:
    """Return whether the intent keeps, in the live lane, an engine that serves now."""
    planned = plan(replicas, current, intent)
    return any(planned[replica.name].lane == "live" and replica.serving is not None for replica in replicas)


def _lanes(replicas: Sequence[ReplicaStatus], current: Mapping[str, ReplicaTarget], intent: Intent) -> dict[str, Lane]:
    lanes: dict[str, Lane] = {replica.name: "live" for replica in replicas}
    single = [replica for replica in replicas if not replica.holds_many]
    spare = len(single) - (0 if len(single) < len(replicas) else 1)  # one at least serves the live lane
    wanted: list[Lane] = []
    if intent.canary is not None and single:
        wanted += ["canary"] * min(spare, max(1, math.floor(intent.canary_share * len(single) + 0.5)))
    if intent.holdback is not None and spare > len(wanted):
        wanted.append("holdback")
    for lane in wanted:
        free = [r for r in single if lanes[r.name] == "live"]
        was = [r for r in free if r.name in current and current[r.name].lane == lane]
        lanes[(was or free[::-1])[0].name] = lane
    return lanes


def _live_versions(
    lane: Sequence[ReplicaStatus], current: Mapping[str, ReplicaTarget], intent: Intent
) -> dict[str, PolicyRef]:
    if not intent.one_by_one:
        return {replica.name: intent.serve for replica in lane}
    versions: dict[str, PolicyRef] = {}
    under_way = False
    for replica in lane:
        target = current.get(replica.name)
        turned = target is not None and target.serve == intent.serve
        if not turned and (under_way or target is None or replica.serving is None):
            versions[replica.name] = intent.serve if target is None else target.serve
            continue
        versions[replica.name] = intent.serve
        settled = replica.serving == intent.serve or intent.serve in replica.refused
        under_way = under_way or not settled
    return versions
