"""Hosts of a fleet find each other in the store, and give each other the weights."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from socket import create_server

import httpx
import numpy as np
import pytest
from safetensors.numpy import save_file

from core.errors import ConfigError
from core.ids import base_ref
from core.model.weights_digest import checksum_of
from core.operations.fleet import ReplicaStatus
from core.ports import WeightsRef
from onward.wiring.foundation import Foundation, open_foundation
from onward.wiring.sharing import shared_weights
from serving.weights.published import BlobWeights
from serving.weights.sharing.server import path_of

ADDRESS = "127.0.0.1"
SHARING = {"ONWARD_SERVING__SHARING__PORT": "0", "ONWARD_SERVING__SHARING__NAME": ADDRESS}


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[Foundation]]:
    """Two machines with the same store and the same remote blobs."""
    remote = SHARING | {"ONWARD_BLOBS": f"memory://{tmp_path.name}"}
    opened = [open_foundation(tmp_path / name, remote) for name in ("one", "two")]
    yield [opened[0], replace(opened[1], store=opened[0].store)]
    for each in opened:
        each.close()


def published(host: Foundation, tmp_path: Path) -> WeightsRef:
    file = tmp_path / "model.safetensors"
    save_file({"a": np.arange(4096, dtype=np.float32)}, file)
    return BlobWeights(host.blobs).publish(base_ref(1), [file], None)


def say(host: Foundation, name: str, shares: str) -> None:
    status = ReplicaStatus(
        name=name, cluster="local", url="", state="ready", shares=shares, serving=None, heartbeat_at=host.clock.now()
    )
    with host.store.work() as work:
        work.fleet.put_status(status)


def test_what_one_host_has_the_other_gets_without_the_blobs(hosts: list[Foundation], tmp_path: Path) -> None:
    one, two = hosts
    ref = published(one, tmp_path)
    with ExitStack() as stack:
        weights, shares = stack.enter_context(shared_weights(one, "one"))
        weights.open(ref)
        say(one, "one", shares)
        checksum = checksum_of(tmp_path / "model.safetensors")
        assert httpx.get(shares + path_of(checksum), timeout=120).status_code == 200
        one.blobs.delete("weights/00000001/model.safetensors")
        others, _ = stack.enter_context(shared_weights(two, "two"))
        assert checksum_of(others.open(ref).shards[0]) == checksum


def test_a_host_without_a_port_gives_nothing(tmp_path: Path) -> None:
    host = open_foundation(tmp_path / "one", {"ONWARD_BLOBS": f"memory://{tmp_path.name}"})
    with shared_weights(host, "one") as (weights, shares):
        assert (weights, shares) == (host.weights, "")
    host.close()


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with create_server((ADDRESS, 0)) as taken:
        port = str(taken.getsockname()[1])
        remote = SHARING | {"ONWARD_BLOBS": "memory://x", "ONWARD_SERVING__SHARING__PORT": port}
        host = open_foundation(tmp_path / "one", remote | {"ONWARD_SERVING__SHARING__HOST": ADDRESS})
        with pytest.raises(ConfigError, match=rf"serving\.sharing\.port: 127\.0\.0\.1:{port}: "), ExitStack() as stack:
            stack.enter_context(shared_weights(host, "one"))
        host.close()
