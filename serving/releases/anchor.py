"""The first version: the model as it was given."""

import logging
from collections.abc import Callable
from pathlib import Path

from core.clock import SystemClock
from core.errors import BlobsUnavailable, ConfigError, WeightsError
from core.events import PolicyVersion, Release, Topic
from core.ids import PolicyRef
from core.model.beside import probe_path
from core.model.files import check_weights, weight_files
from core.model.probes import ProbeRecord, put_probe
from core.ports import Blobs, Clock, EventLog, Store, Weights, WeightsRef

logger = logging.getLogger(__name__)


def ensure_anchor(
    store: Store,
    log: EventLog,
    weights: Weights,
    blobs: Blobs,
    model: Path,
    policy_name: str,
    cluster: str,
    record_probe: Callable[[Path], ProbeRecord] | None,
    clock: Clock | None = None,
) -> WeightsRef:
    """Return the anchor's weights; make and release them as version 1 when there is none yet.

    Versions are the store's; what is released is so to `cluster`.

    Every step may be repeated: an interrupted start is completed by the next. The log is told before the store, which
    says what is still to be done. `record_probe` draws the probe from the model's directory and records what the model
    answers; None leaves that to another process. Raises ConfigError naming what is wrong with the model's
    weights; WeightsError when the probe is still to be made and they are others than the anchor's; BlobsUnavailable
    where nobody can tell whether there is a probe."""
    now = (clock or SystemClock()).now()
    with store.work() as work:
        version = work.policies.allocate_anchor(now)
    with store.look() as view:
        known = view.policies.get(version)
    if known is None:
        known = _publish(store, log, weights, model, policy_name, version, clock)
    if record_probe is not None:
        _ensure_probe(blobs, known, model, record_probe)
    with store.look() as view:
        live = view.releases.live(cluster)
    if live is None:
        release = Release(version=version, cluster=cluster, state="live", why="the given model", by="start", at=now)
        log.append_blocking(Topic.RELEASES, [release])
        with store.work() as work:
            work.releases.lock()
            if work.releases.live(cluster) is None:  # nobody was first
                work.releases.put(release)
    ref = WeightsRef(version=known.version, digest=known.digest, path=known.weights)
    try:
        weights.keep(ref, weight_files(model))
    except (OSError, ConfigError, WeightsError) as error:
        logger.warning("the given model is not kept on this host, and is fetched where it is needed: %s", error)
    return ref


def _publish(
    store: Store, log: EventLog, weights: Weights, model: Path, name: str, version: PolicyRef, clock: Clock | None
) -> PolicyVersion:
    check_weights(model)
    ref = weights.publish(version, weight_files(model), None)
    policy = PolicyVersion(
        version=version,
        policy=name,
        digest=ref.digest,
        parent=None,
        manifest=None,
        weights=ref.path,
        created_at=(clock or SystemClock()).now(),
    )
    log.append_blocking(Topic.POLICIES, [policy])
    with store.work() as work:
        work.policies.put(policy)
    return policy


def _ensure_probe(
    blobs: Blobs, anchor: PolicyVersion, model: Path, record_probe: Callable[[Path], ProbeRecord]
) -> None:
    """Make the probe if there is none; an existing one stays, since all later versions' probes are of its texts."""
    try:
        if blobs.exists(probe_path(anchor.version)):
            return
    except OSError as error:
        raise BlobsUnavailable(f"the blobs cannot be reached: {error}") from error
    record = record_probe(model)
    if record.weights_digest != anchor.digest:
        raise WeightsError(
            f"{model}: its weights are {record.weights_digest}, those of version {anchor.version} {anchor.digest}"
        )
    put_probe(blobs, anchor.version, record)
