"""From a checkpoint to a published version: every step may be repeated, so a crash in between is completed later."""

import msgspec

from core.events import PolicyVersion, Topic
from core.ports import Blobs, EventLog, Store, Weights
from core.store import policies
from learner import manifest
from learner.checkpoint import Checkpoint


def publish(checkpoint: Checkpoint, store: Store, log: EventLog, weights: Weights, blobs: Blobs) -> PolicyVersion:
    """Weights and manifest first, then the row, then the event: who reads of a version finds all of it."""
    draft = checkpoint.meta.policy
    ref = weights.publish(draft.version, [checkpoint.weights], draft.parent)
    path = manifest.path_of(draft.version)
    blobs.put(path, checkpoint.manifest)
    policy = msgspec.structs.replace(draft, digest=ref.digest, weights=ref.path, manifest=path)
    with store.begin() as connection:
        policies.put_policy(connection, policy)
    log.append_blocking(Topic.POLICIES, [policy])
    return policy
