"""Erasure in the weights: versions that learned from erased turns lose theirs, once none of them has to serve."""

from collections.abc import Callable
from datetime import timedelta

from core.events import PolicyVersion
from core.ids import ANCHOR, PolicyName, PolicyRef
from core.model.learned_from import touched
from core.operations.erasures import Erasure, Step
from core.ports import Blobs, Clock, Store, Weights
from core.records.erasing import NotYet, digest_of
from core.store.erasure.orders import WEIGHTS

_SERVING = ("live", "canary")


class InWeights:
    """The published versions. Those that serve go once the one that was made again without the turns is live."""

    name = WEIGHTS

    def __init__(self, store: Store, blobs: Blobs, weights: Weights, forget: Callable[[str], None]) -> None:
        """`forget` removes the version of a digest from this host's cache."""
        self._store, self._blobs, self._weights, self._forget = store, blobs, weights, forget

    def erase(self, order: Erasure) -> Step:
        with self._store.look() as view:
            asked = [found for number in order.exclusions if (found := view.exclusions.get(number)) is not None]
            whole = {each.subject for each in view.erasures.of_organisations()}  # their policies go with them
            versions = [each for each in touched(view, self._blobs, asked) if each.version.policy not in whole]
            serving = [each.version for each in versions if view.policies.state_of(each.version) in _SERVING]
        for policy in versions:
            if policy.version not in serving:
                self._weights.discard(policy.version)
                self._forget(policy.digest)
        if serving:
            raise NotYet(_why(serving))
        names = [policy.version for policy in versions]
        withdrawn = tuple(policy.digest for policy in versions)
        return Step(removed={"versions": len(names)} if names else {}, digest=digest_of(names), withdrawn=withdrawn)


class InPolicyWeights:
    """All versions of an organisation's policy: weights, manifests, probes, and what its learner knew beside them."""

    name = WEIGHTS

    def __init__(self, store: Store, blobs: Blobs, weights: Weights | None, forget: Callable[[str], None]) -> None:
        """`forget` removes a digest's version from this host's cache. `weights` None: they are another cluster's."""
        self._store, self._blobs, self._weights, self._forget = store, blobs, weights, forget

    def erase(self, order: Erasure) -> Step:
        with self._store.look() as view:
            names = view.policies.versions(PolicyName(order.subject))
            versions = [policy for name in names if (policy := view.policies.get(name)) is not None]
            given = view.policies.get(ANCHOR)
        withdrawn = [each.digest for each in versions if given is None or each.digest != given.digest]
        if self._weights is not None:
            for policy in versions:
                self._delete(self._weights, policy)
        for digest in withdrawn:
            self._forget(digest)
        removed = {"versions": len(names)} if names else {}
        return Step(removed=removed, digest=digest_of(names), withdrawn=tuple(withdrawn))

    def _delete(self, weights: Weights, policy: PolicyVersion) -> None:
        """Delete a version, the first of which is the given model itself, that others serve from files of their own."""
        if policy.manifest is not None:
            self._blobs.delete(policy.manifest)
        weights.discard(policy.version)


class InCaches:
    """What other hosts keep of these versions, to load them again and to give them to each other: each drops it."""

    name = "caches"

    def __init__(self, store: Store, cluster: str, clock: Clock, silent_s: float) -> None:
        """`silent_s`: a host whose heart has not beaten for so long is away."""
        self._store, self._cluster, self._clock = store, cluster, clock
        self._silent = timedelta(seconds=silent_s)

    def erase(self, order: Erasure) -> Step:
        with self._store.look() as view:
            withdrawn, statuses = view.erasures.withdrawn(), view.fleet.statuses(self._cluster)
        alive = [each for each in statuses if self._clock.now() - each.heartbeat_at < self._silent]
        if keep := [each.name for each in alive if each.forgot < len(withdrawn)]:
            raise NotYet(f"{', '.join(keep)} to drop from the cache what was erased")
        away = [each.name for each in statuses if each not in alive]
        note = f"{', '.join(away)}: away, drops them before it serves again" if away else ""
        return Step(removed={"hosts": len(alive)} if alive else {}, note=note)


def _why(serving: list[PolicyRef]) -> str:
    which = ", ".join(map(str, serving))
    return f"version {which} learned from it, and serves until the one that was made again is live"
