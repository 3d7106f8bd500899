"""The first version: the model as it was given."""

from pathlib import Path

from core.clock import SystemClock
from core.errors import WeightsError
from core.events import PolicyVersion, Release, Topic
from core.ids import Version
from core.ports import Clock, EventLog, Store, Weights, WeightsRef
from core.store import policies

CLUSTER = "local"


def ensure_anchor(
    store: Store, log: EventLog, weights: Weights, model: Path, policy_name: str, clock: Clock | None = None
) -> WeightsRef:
    """The anchor's weights; made and released as version 1 when the store knows no version yet.

    Every step may be repeated: a start that was cut short is completed by the next. The log is told before the store,
    which says what is still to be done. Raises WeightsError naming the model's directory when it holds no safetensors.
    """
    now = (clock or SystemClock()).now()
    with store.begin() as connection:
        versions = policies.list_versions(connection)
        version = versions[0] if versions else policies.allocate_version(connection, now)
    with store.read() as connection:
        known = policies.get_policy(connection, version)
    if known is None:
        known = _publish(store, log, weights, model, policy_name, version, clock)
    with store.read() as connection:
        live = policies.live_version(connection, CLUSTER)
    if live is None:
        release = Release(version=version, cluster=CLUSTER, state="live", why="the given model", by="start", at=now)
        log.append_blocking(Topic.RELEASES, [release])
        with store.begin() as connection:
            policies.put_release(connection, release)
    return WeightsRef(version=known.version, digest=known.digest, path=known.weights)


def _publish(
    store: Store, log: EventLog, weights: Weights, model: Path, name: str, version: Version, clock: Clock | None
) -> PolicyVersion:
    shards = sorted(model.glob("*.safetensors"))
    if not shards:
        raise WeightsError(f"{model}: no *.safetensors file")
    ref = weights.publish(version, shards, None)
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
    with store.begin() as connection:
        policies.put_policy(connection, policy)
    return policy
