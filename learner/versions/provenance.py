"""The turns that a lineage was trained on, read from its manifests: for a learner that lacks the checkpoint."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta

from core.events import Completion, Reward
from core.ids import InferenceId, PolicyRef
from core.ports import Blobs, Store
from learner.sequences.scored import Applied
from learner.versions import manifest

_AT_ONCE = 500  # turns of one query


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


def learned_by(versions: Sequence[PolicyRef], blobs: Blobs) -> Iterator[Reward]:
    """Yield the rewards of the updates that made these versions, also those that trained the baseline alone."""
    for version in versions:
        path = manifest.path_of(version)
        if blobs.exists(path):
            yield from manifest.decode(blobs.get(path)).rewards


def turns_of(ids: Iterable[InferenceId], store: Store) -> Iterator[Completion]:
    """Yield those of the given turns that are in the store."""
    wanted = sorted(set(ids))
    for start in range(0, len(wanted), _AT_ONCE):
        with store.look() as view:
            found = view.turns.get_many(wanted[start : start + _AT_ONCE])
        yield from found.values()


def applied_on(lineage: list[PolicyRef], blobs: Blobs) -> dict[InferenceId, Applied]:
    """Return the last revision of each turn that trained on the lineage.

    Versions without a manifest trained on none."""
    applied: dict[InferenceId, Applied] = {}
    for version in lineage:
        path = manifest.path_of(version)
        if not blobs.exists(path):
            continue
        made = manifest.decode(blobs.get(path))
        for record, reward, age_s in zip(made.turns, made.rewards, made.ages_s, strict=True):
            if record.dropped is None:
                came_at = (reward.last_outcome_at or reward.decided_at) - timedelta(seconds=age_s)
                applied[record.inference_id] = record.applied(reward, version, came_at)
    return applied
