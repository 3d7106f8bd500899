"""Weights that the hosts of a fleet give each other."""

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

from core.errors import ConfigError
from core.network.addresses import in_url
from core.ports import Weights
from onward.wiring.foundation import Foundation
from serving.engines.other_hosts import OtherHosts
from serving.weights.published import BlobWeights
from serving.weights.sharing.kept_files import KeptFiles
from serving.weights.sharing.peers import Peers
from serving.weights.sharing.server import WeightsServer


@contextmanager
def shared_weights(foundation: Foundation, name: str) -> Iterator[tuple[Weights, str]]:
    """Yield the weights that the host of this name opens, and the URL at which it gives them to others, "" for none.

    Raises ConfigError for a port in use."""
    serving = foundation.settings.serving
    sharing, versions, cache = serving.sharing, serving.versions, foundation.layout.cache
    if sharing.port is None or foundation.blobs.is_local:
        yield foundation.weights, ""
        return
    kept = KeptFiles(cache / "files", versions.cached)
    try:
        server = WeightsServer(kept, sharing.host, sharing.port)
    except OSError as error:
        raise ConfigError(f"serving.sharing.port: {sharing.host}:{sharing.port}: {error.strerror}") from error
    timeout_s = serving.fleet.heartbeat_timeout_s
    peers = Peers(name, kept, OtherHosts(name, foundation.store, serving.cluster, foundation.clock, timeout_s))
    weights = BlobWeights(foundation.blobs, cache / "weights", versions.anchor_every, versions.cached, peers)
    with closing(server):
        yield weights, f"http://{in_url(sharing.name or socket.gethostname())}:{server.port}"
