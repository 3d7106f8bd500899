"""The building of what clusters say to each other."""

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Literal

from core.blobs import FsspecBlobs
from core.errors import ConfigError
from core.ids import PolicyRef
from core.records.clusters import ClusterStanding
from onward.wiring.foundation import Foundation

if TYPE_CHECKING:
    from ingest.clusters.bucket import Bucket
    from ingest.clusters.follower import Follower
    from ingest.clusters.gatherer import Gatherer


def build_gatherer(foundation: Foundation) -> "Gatherer":
    """Build home's stage. Raises ConfigError where the settings do not make this cluster home."""
    from ingest.clusters.gatherer import Gatherer

    settings = foundation.settings
    bucket = _bucket(foundation, "home")
    return Gatherer(
        foundation.log, foundation.store, bucket, settings.serving.cluster, foundation.clock, settings.clusters.every_s
    )


def build_follower(foundation: Foundation) -> "Follower":
    """Build an edge's stage. Raises ConfigError where the settings do not make this cluster an edge."""
    from ingest.clusters.follower import Follower
    from serving.releases.canaries.ratchet import held_against

    settings = foundation.settings
    bucket = _bucket(foundation, "edge")
    every_s = settings.clusters.every_s
    return Follower(
        foundation.log, foundation.store, bucket, settings.serving.cluster, foundation.clock, every_s, held_against
    )


def bucket_of(foundation: Foundation) -> "Bucket | None":
    """Return the bucket that this cluster shares with others; None where it is the only one."""
    from ingest.clusters.bucket import Bucket

    clusters = foundation.settings.clusters
    if clusters.role is None or clusters.url is None:
        return None
    return Bucket(FsspecBlobs(clusters.url, foundation.layout.cache))


def standings(foundation: Foundation) -> Sequence[ClusterStanding]:
    """Return what the clusters that share a bucket say; none where there is one. Raises Unavailable."""
    bucket = bucket_of(foundation)
    return () if bucket is None else bucket.standings()


def needs_elsewhere(foundation: Foundation) -> Callable[[], Collection[PolicyRef]] | None:
    """Return what says which versions other clusters need, and raises Unavailable while that cannot be known.

    None at an edge, whose weights are home's to discard."""
    bucket, cluster = bucket_of(foundation), foundation.settings.serving.cluster
    if bucket is None:
        return tuple
    if foundation.settings.clusters.role == "edge":
        return None
    return lambda: {version for status in bucket.statuses() if status.cluster != cluster for version in status.needs}


def _bucket(foundation: Foundation, role: Literal["home", "edge"]) -> "Bucket":
    bucket = bucket_of(foundation)
    if bucket is None or foundation.settings.clusters.role != role:
        raise ConfigError(f"clusters.role is not {role}: there is nothing to do")
    return bucket
