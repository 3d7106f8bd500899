"""Processes that start before the services they need."""

import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fault_world import own_stack, settings_of, wrong_with
from ports import free_port
from service_tree import wait_for
from sglang_service import SETTINGS as SGLANG
from stage_processes import StageProcess

from core.events import PolicyVersion, Release, Topic
from deploy.services.stack import Stack
from onward.wiring.foundation import open_foundation, read_directory
from onward.wiring.migrate import migrate

pytestmark = pytest.mark.timeout(1800)
_START_S = 120
NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with own_stack() as made:
        yield made


def settings(stack: Stack, **more: Any) -> dict[str, Any]:
    """Return the settings of a tree without engines, which would take long to start."""
    return SGLANG | settings_of(stack) | {"serving.sglang.replicas": 0} | more


def says(url: str, component: str, what: str) -> bool:
    try:
        return what in wrong_with(url).get(component, "")
    except OSError:
        return False


def is_missing(url: str, component: str) -> bool:
    """Return whether the replica answers without reporting this component."""
    try:
        return component not in wrong_with(url)
    except OSError:
        return False


@contextmanager
def tree(directory: Path, chosen: Mapping[str, Any]) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", "onward", "run", str(directory)]
    command += [part for name, value in chosen.items() for part in ("--set", f"{name}={value}")]
    process = subprocess.Popen(command)
    try:
        yield process
    finally:
        process.terminate()
        assert process.wait(120) == 0


def test_a_tree_waits_for_all_of_them(stack: Stack, tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    for server in stack.servers:
        server.down()
    with tree(tmp_path / "service", settings(stack, **{"api.port": port})) as process:
        wait_for(lambda: says(url, "start", stack.kafka.address), _START_S, "word of Kafka")
        with pytest.raises(urllib.error.HTTPError, match="503") as refused:
            urllib.request.urlopen(f"{url}/v1/chat/completions", b"{}", timeout=60)
        refused.value.close()
        with urllib.request.urlopen(f"{url}/healthz", timeout=60) as answer:
            assert answer.status == 200
        stack.kafka.up()
        wait_for(lambda: says(url, "start", "postgres.url"), _START_S, "word of Postgres")
        stack.postgres.up()
        wait_for(lambda: says(url, "live_state", "degraded"), _START_S, "the API, without Redis")
        stack.redis.up()
        wait_for(lambda: is_missing(url, "live_state"), _START_S, "Redis")
        wait_for((tmp_path / "service" / "service.json").exists, _START_S, "the whole tree")
        assert process.poll() is None


def test_an_api_and_a_host_wait_for_postgres(stack: Stack, tmp_path: Path) -> None:
    stack.up()
    api, metrics = free_port(), free_port()
    own = settings(stack, **{"api.port": api, "metrics.port": metrics})
    migrate(read_directory(tmp_path / "service", environment(own))[1])
    stack.postgres.down()
    with (
        StageProcess("api", tmp_path / "service", "api-1", own) as replica,
        StageProcess("serve", tmp_path / "service", "engine-1", own) as host,
    ):
        wait_for(lambda: says(f"http://127.0.0.1:{api}", "start", "postgres.url"), _START_S, "word of the API")
        wait_for(lambda: says(f"http://127.0.0.1:{metrics}", "engine-1", "postgres.url"), _START_S, "word of the host")
        stack.postgres.up()
        replica.wait_ready()
        wait_for(lambda: wrong_with(f"http://127.0.0.1:{api}").keys() == {"engine"}, _START_S, "all but the engine")
        wait_for(
            lambda: not says(f"http://127.0.0.1:{metrics}", "engine-1", "postgres.url"), _START_S, "the host's store"
        )
        assert (replica.process.poll(), host.process.poll()) == (None, None)


def test_a_controller_tells_at_once_what_the_one_before_did_not(stack: Stack, tmp_path: Path) -> None:
    """The controller has something to append before its log is connected."""
    stack.up()
    own = settings(stack, **{"kafka.prefix": "told-"})
    migrate(read_directory(tmp_path / "service", environment(own))[1])
    foundation = open_foundation(tmp_path / "service", environment(own))
    with closing(foundation):
        with foundation.store.work() as work:
            version = work.policies.allocate_anchor(NOW)
            weights = PolicyVersion(
                version=version, policy="p", digest="d", parent=None, manifest=None, weights="w", created_at=NOW
            )
            work.policies.put(weights)
            release = Release(version=version, cluster="local", state="live", why="", by="start", at=NOW)
            work.releases.put(release)
        with StageProcess("release", tmp_path / "service", "release-1", own) as controller:
            controller.wait_ready()
            with closing(foundation.log.reader([Topic.RELEASES])) as reader:
                (record,) = wait_for(lambda: reader.poll(10, 1.0), _START_S, "word of the release")
    assert record.event == release


def environment(own: Mapping[str, Any]) -> dict[str, str]:
    return {**os.environ, **{f"ONWARD_{name.upper().replace('.', '__')}": str(value) for name, value in own.items()}}
