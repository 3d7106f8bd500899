"""What a lineage was trained on, read from its manifests: its turns, and how they compared with eval suites."""

from collections.abc import Iterator
from datetime import timedelta

from core.ids import InferenceId, PolicyRef
from core.ports import Blobs, Store
from learner.sequences.kept_out import SuiteCheck
from learner.sequences.scored import Applied, applied_after
from learner.versions import manifest


def ancestry(store: Store, version: PolicyRef) -> list[PolicyRef]:
    """Return the versions from the anchor to `version`, which must be in the store."""
    lineage: list[PolicyRef] = []
    step: PolicyRef | None = version
    with store.look() as view:
        while step is not None:
            lineage.insert(0, step)
            policy = view.policies.get(step)
            assert policy is not None, f"version {step} is in a lineage and not in the store"
            step = policy.parent
    return lineage


def applied_on(lineage: list[PolicyRef], blobs: Blobs) -> dict[InferenceId, Applied]:
    """Return what is known of each turn that an update of the lineage had.

    Versions without a manifest had none."""
    applied: dict[InferenceId, Applied] = {}
    for version, made in _manifests(lineage, blobs):
        for record, reward, age_s in zip(made.turns, made.rewards, made.ages_s, strict=True):
            received_at = (reward.last_outcome_at or reward.decided_at) - timedelta(seconds=age_s)
            before = applied.get(record.inference_id)
            applied[record.inference_id] = applied_after(before, record, reward, version, received_at)
    return applied


def compared_with_suites(lineage: list[PolicyRef], blobs: Blobs) -> tuple[SuiteCheck, ...]:
    """Return how many turns of the lineage were compared with each suite of eval cases, and how many were left out."""
    return manifest.checked(made for _, made in _manifests(lineage, blobs))


def _manifests(lineage: list[PolicyRef], blobs: Blobs) -> Iterator[tuple[PolicyRef, manifest.Manifest]]:
    for version in lineage:
        path = manifest.path_of(version)
        if blobs.exists(path):
            yield version, manifest.decode(blobs.get(path))
