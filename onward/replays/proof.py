"""Evidence for what the documents promise, read from a directory's files."""

from core.ids import PolicyRef
from learner.versions import manifest
from learner.versions.manifest import Manifest, prove_exactly_once
from onward.wiring.foundation import Foundation

__all__ = ["lineage_of", "prove_exactly_once"]


def lineage_of(foundation: Foundation, version: PolicyRef) -> list[Manifest]:
    """Return the manifests on the path from the anchor to `version`."""
    lineage: list[Manifest] = []
    with foundation.store.look() as view:
        policy = view.policies.get(version)
        while policy is not None and policy.manifest is not None and policy.parent is not None:
            lineage.insert(0, manifest.decode(foundation.blobs.get(policy.manifest)))
            policy = view.policies.get(policy.parent)
    return lineage
