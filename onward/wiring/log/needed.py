"""What keeps old weights: the versions that other clusters and the learner need."""

from collections.abc import Callable, Collection

from core.errors import Unavailable
from core.events import PolicyVersion
from core.ids import PolicyName, PolicyRef
from learner.versions import manifest
from onward.wiring.foundation import Foundation
from onward.wiring.log.clusters import needs_elsewhere


def needed_by_others(foundation: Foundation) -> Callable[[PolicyName], Collection[PolicyRef]] | None:
    """Return what says which versions of a policy others need, and raises Unavailable while that cannot be known.

    None at an edge, whose weights are home's to discard."""
    elsewhere = needs_elsewhere(foundation)
    if elsewhere is None:
        return None
    return lambda policy: {*elsewhere(), *_held_to(foundation, policy)}


def _held_to(foundation: Foundation, policy: PolicyName) -> set[PolicyRef]:
    """Return what the learner's KL term holds to, whether it goes on from the newest version or from the live one."""
    with foundation.store.look() as view:
        live = view.releases.live(foundation.settings.serving.cluster, policy)
        versions = [each for each, _ in view.policies.newest(1, policy)]
        if live is not None and (served := view.policies.get(live)) is not None:
            versions.append(served)
    found = (_anchor_of(foundation, version) for version in versions)
    return {anchor for anchor in found if anchor is not None}


def _anchor_of(foundation: Foundation, version: PolicyVersion) -> PolicyRef | None:
    if version.manifest is None:
        return None
    try:
        return manifest.decode(foundation.blobs.get(version.manifest)).held_to
    except FileNotFoundError:  # it could not be made again, whatever is kept
        return None
    except OSError as error:
        raise Unavailable(f"blobs: {error}") from error
