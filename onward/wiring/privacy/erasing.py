"""The eraser: which places keep what users say, in which order they are emptied."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from core.errors import ConfigError
from core.events import Topic
from core.operations.erasures import Erasure, Step
from core.records.erasing import NotYet, Place
from onward.wiring.foundation import Foundation, seals_records
from onward.wiring.log.archive import archive_blobs
from onward.wiring.log.clusters import bucket_of

if TYPE_CHECKING:
    from ingest.erasure.eraser import Eraser
    from ingest.erasure.retention import Retention

_SEEN_S = 3.0
"""By then every API process has looked for orders (`api.operator.erasures.forgetting`)."""


class AwaitLearner:
    """Waits for the learner, which empties its own directory and tells of it (`learner.relearning.forgetting`)."""

    name = "learner"

    def erase(self, order: Erasure) -> Step:
        if not order.exclusions and order.kind != "organisation":
            return Step(note="nothing of it could be learned")
        if order.kind == "organisation":
            raise NotYet("the learner has yet to delete the policy's files")
        raise NotYet("the learner learns again without it")


class InLiveState:
    """Waits until every API process has forgotten what it held of the sessions, in memory and in Redis."""

    name = "live_state"

    def __init__(self, foundation: Foundation) -> None:
        self._clock = foundation.clock

    def erase(self, order: Erasure) -> Step:
        if (self._clock.now() - order.ordered_at).total_seconds() < _SEEN_S:
            raise NotYet("API processes look for orders to forget")
        return Step(note="each API process forgets sessions within a second, and with them their entries in Redis")


def build_eraser(foundation: Foundation, readers: Mapping[str, Topic]) -> "Eraser":
    """Build the stage that obeys orders to erase; `readers` are the stages that read the log."""
    from ingest.erasure.eraser import Eraser
    from ingest.erasure.statement import Signer

    key = foundation.settings.privacy.statement_key or foundation.layout.root / "erasure-key.pem"
    places, of_policy = _places(foundation, readers), _places_of_policy(foundation)
    return Eraser(foundation.store, foundation.clock, places, Signer(key), of_policy)


def _places(foundation: Foundation, readers: Mapping[str, Topic]) -> Sequence[Place]:
    from ingest.erasure.in_archive import InArchive
    from ingest.erasure.in_log import LOG, Readers
    from ingest.erasure.in_store import InExports, InStore
    from serving.evals.mining.erasing import InDrafts

    settings, layout, store = foundation.settings, foundation.layout, foundation.store
    told, ended = _places_of_clusters(foundation)
    groups = [name for name, topic in readers.items() if topic is Topic.TURNS]
    waiting = Readers(store, groups, [layout.spool, layout.spools], archives=settings.archive.enabled)
    return [
        *told,
        _in_log(foundation, LOG),
        InLiveState(foundation),  # before the log's last pass: then no process brings words there any more
        waiting,
        _in_log(foundation, "log_after"),
        InArchive(archive_blobs(settings, layout), store),
        InStore(store, store.scrub),
        InExports(store),
        InDrafts(settings.release.evals.drafts),
        *_places_of_weights(foundation),
        _in_caches(foundation),
        *ended,
    ]


def _places_of_weights(foundation: Foundation) -> list[Place]:
    """Return the places of what was learned: at an edge that is home's, which says what it withdrew."""
    from ingest.erasure.in_clusters import OfHome
    from serving.weights.erasing import InWeights

    bucket, forget = bucket_of(foundation), _forget(foundation)
    if bucket is not None and foundation.settings.clusters.role == "edge":
        return [OfHome(bucket, foundation.settings.serving.cluster, forget)]
    return [AwaitLearner(), InWeights(foundation.store, foundation.blobs, foundation.weights, forget)]


def _places_of_clusters(foundation: Foundation) -> tuple[list[Place], list[Place]]:
    """Return the places in the bucket between clusters, those to begin with and those to end with."""
    from ingest.erasure.in_clusters import InBucket, InClusters, Told

    bucket, cluster = bucket_of(foundation), foundation.settings.serving.cluster
    if bucket is None:
        return [], []
    whose = cluster if foundation.settings.clusters.role == "edge" else None
    first, last = (
        InBucket(bucket, foundation.store, foundation.clock, whose, name) for name in ("bucket", "bucket_after")
    )
    begin: list[Place] = [Told(bucket, foundation.store, cluster), first]
    return begin, [InClusters(bucket, cluster), last, _in_log(foundation, "log_of_clusters")]


def _forget(foundation: Foundation) -> Callable[[str], None]:
    from serving.weights.host_caches import forget

    return partial(forget, foundation.layout.cache)


def _in_caches(foundation: Foundation) -> Place:
    from serving.weights.erasing import InCaches

    serving = foundation.settings.serving
    return InCaches(foundation.store, serving.cluster, foundation.clock, serving.fleet.heartbeat_timeout_s)


def _places_of_policy(foundation: Foundation) -> Sequence[Place]:
    from ingest.erasure.in_clusters import InClusters, Told
    from ingest.erasure.in_policy import AwaitNamespaces, AwaitSettings, InPolicy, NamespacesAgain
    from serving.weights.erasing import InPolicyWeights

    store, bucket, cluster = foundation.store, bucket_of(foundation), foundation.settings.serving.cluster
    is_edge = foundation.settings.clusters.role == "edge"  # which learns nothing, and whose weights are home's
    return [
        *([] if bucket is None else [Told(bucket, store, cluster)]),
        AwaitNamespaces(store),
        AwaitSettings(foundation.settings.policies),
        NamespacesAgain(store, foundation.clock),
        *([] if is_edge else [AwaitLearner()]),
        InPolicyWeights(store, foundation.blobs, None if is_edge else foundation.weights, _forget(foundation)),
        _in_caches(foundation),
        InPolicy(store, store.scrub),
        *([] if bucket is None else [InClusters(bucket, cluster)]),
    ]


def refuse_erased(foundation: Foundation) -> None:
    """Raise ConfigError for a policy, or a namespace of one, that was erased with its organisation.

    One that is being erased still stands in the settings until the order says that it may go."""
    policies = foundation.settings.policies
    with foundation.store.look() as view:
        orders = view.erasures.of_organisations()
    for order in orders:
        if order.done_at is not None and order.subject in policies:
            raise ConfigError(
                f"policies.{order.subject}: this organisation was erased (erasure {order.erasure_id}), and its name is"
                " not given again"
            )
        for name, policy in policies.items():
            taken = [each for each in policy.namespaces if each in order.namespaces and name != order.subject]
            if taken:
                raise ConfigError(
                    f"policies.{name}.namespaces: {taken[0]} was erased with the organisation {order.subject} (erasure"
                    f" {order.erasure_id}), and is not given again"
                )


def _in_log(foundation: Foundation, name: str) -> Place:
    """Return the log as a place: a file is rewritten, and of any other log the keys are deleted."""
    from ingest.erasure.eraser import Widening
    from ingest.erasure.in_keys import InKeys
    from ingest.erasure.in_log import InLog
    from ingest.sqlite.log import SqliteEventLog

    log, store, clock = foundation.log, foundation.store, foundation.clock
    widen = Widening(store, clock)
    if isinstance(log, SqliteEventLog):
        return InLog(log, store, log, widen, name)
    return InKeys(log, store, clock, widen, name, sealed=seals_records(foundation.settings))


def build_retention(foundation: Foundation) -> "Retention":
    """Build the stage that removes what is older than it may be. Raises ConfigError where nothing ever is."""
    from ingest.erasure.in_archive import InArchive
    from ingest.erasure.retention import Retention
    from ingest.sqlite.log import SqliteEventLog

    settings, log, store = foundation.settings, foundation.log, foundation.store
    privacy = settings.privacy
    if not privacy.has_ages:
        raise ConfigError("privacy.namespaces: none keeps anything for less than ever: there is nothing to do")
    return Retention(
        store,
        store.scrub,
        log,
        log if isinstance(log, SqliteEventLog) else None,
        InArchive(archive_blobs(settings, foundation.layout), store),
        foundation.clock,
        privacy.namespaces,
        privacy.interval_s,
    )
