"""Publishing a version: every step may be repeated, so a crash in between is completed later."""

import msgspec

from core.events import PolicyVersion, Topic
from core.model.beside import memory_path
from core.model.probes import ProbeRecord, put_probe
from core.operations.costs import used_to_make
from core.ports import Blobs, EventLog, Store, Weights
from learner.versions import manifest
from learner.versions.version_files import VersionFiles


def publish(
    draft: PolicyVersion,
    files: VersionFiles,
    made: bytes,
    memory: bytes | None,
    probe: ProbeRecord,
    store: Store,
    log: EventLog,
    weights: Weights,
    blobs: Blobs,
    *,
    offered: bool = True,
) -> PolicyVersion:
    """Publish weights, manifest, memory and probe, then the row, then the event; return the version as it is published.

    So a reader of the version finds all of it. `draft` and `probe` still lack the digest of the files; `made` is the
    manifest, encoded. A version that is not `offered` is a step on the way to another, and no candidate."""
    ref = weights.publish(draft.version, files.shards, draft.parent, files.adapter)
    path = manifest.path_of(draft.version)
    blobs.put(path, made)
    if memory is not None:
        blobs.put(memory_path(draft.version), memory)
    put_probe(blobs, draft.version, msgspec.structs.replace(probe, weights_digest=ref.digest))
    policy = msgspec.structs.replace(draft, digest=ref.digest, weights=ref.path, manifest=path)
    with store.work() as work:
        if work.policies.put(policy, offered=offered):
            work.costs.add(used_to_make(policy))
    log.append_blocking(Topic.POLICIES, [policy])
    return policy
