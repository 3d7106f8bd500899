"""Versions that lost their weights to an erasure leave every host's caches, and no host gives them to another."""

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path

import httpx
import made_events
import pytest
from blake3 import blake3

from core.clock import ManualClock
from core.events import Release
from core.ids import Namespace, PolicyRef, base_ref
from core.operations.erasures import Erasure, Step
from core.operations.fleet import ReplicaStatus
from core.records.erasing import NotYet
from core.records.withdrawals import Withdrawals
from core.store import SqlStore, open_sqlite
from serving.releases.view import look
from serving.weights import host_caches
from serving.weights.deltas.manifest import File
from serving.weights.erasing import InCaches
from serving.weights.sharing.kept_files import KeptFiles
from serving.weights.sharing.server import WeightsServer, path_of

NOW = made_events.NOW
GONE, STAYS = "a" * 64, "b" * 64


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    with closing(open_sqlite(tmp_path / "store.db")) as store:
        yield store


def ordered(store: SqlStore, *withdrawn: str) -> Erasure:
    asked = Erasure(
        erasure_id=0, namespace=Namespace("default"), kind="namespace", subject="default", why="x", by="ops",
        ordered_at=NOW, deadline_at=NOW,
    )  # fmt: skip
    with store.work() as work:
        number = work.erasures.give(asked)
        work.erasures.took(number, "weights", Step(withdrawn=withdrawn))
        found = work.erasures.get(number)
    assert found is not None
    return found


def filled(cache: Path) -> dict[str, str]:
    """Put a file of two versions into both caches of a host; return the checksum of each."""
    kept, checksums = KeptFiles(cache / host_caches.FILES, 4), {}
    for digest in (GONE, STAYS):
        home = cache / host_caches.VERSIONS / digest
        home.mkdir(parents=True)
        content = digest.encode()
        (home / "model.safetensors").write_bytes(content)
        checksums[digest] = blake3(content).hexdigest()
        kept.keep(digest, File("model.safetensors", len(content), checksums[digest]), home / "model.safetensors")
    return checksums


def test_a_host_keeps_nothing_of_what_was_withdrawn_and_gives_it_to_nobody(store: SqlStore, tmp_path: Path) -> None:
    checksums = filled(tmp_path / "cache")
    with closing(WeightsServer(KeptFiles(tmp_path / "cache" / host_caches.FILES, 4), "127.0.0.1", 0)) as server:

        def status(digest: str) -> int:
            return httpx.get(f"http://127.0.0.1:{server.port}{path_of(checksums[digest])}").status_code

        assert (status(GONE), status(STAYS)) == (200, 200)
        host = Withdrawals(store, partial(host_caches.forget, tmp_path / "cache"))
        assert host.look() == 0
        assert status(GONE) == 200
        ordered(store, GONE)
        assert host.look() == 1
        assert (status(GONE), status(STAYS)) == (404, 200)
    left = {path.parent.name for path in (tmp_path / "cache").rglob("*") if path.is_file()}
    assert left == {STAYS}


def test_nobody_goes_back_to_a_version_that_was_withdrawn(store: SqlStore) -> None:
    for digest in (STAYS, GONE, "c" * 64):
        with store.work() as work:
            version = work.policies.allocate(NOW)
            work.policies.put(made_events.policy(version, digest=digest))
            if version.version > 1:
                before = base_ref(version.version - 1)
                work.releases.put(Release(version=before, cluster="local", state="retired", why="", by="gate", at=NOW))
            work.releases.put(Release(version=version, cluster="local", state="live", why="", by="gate", at=NOW))

    def previous() -> PolicyRef | None:
        view = look(store, "local", NOW, 10.0)
        assert view is not None
        return view.previous

    assert previous() == base_ref(2)
    ordered(store, GONE)
    assert previous() == base_ref(1)


def test_the_order_waits_for_hosts_that_are_there_and_names_those_that_are_away(store: SqlStore) -> None:
    clock = ManualClock(NOW)
    place, order = InCaches(store, "local", clock, 10.0), ordered(store, GONE, STAYS)

    def said(name: str, forgot: int, age_s: float = 0.0) -> None:
        at = NOW - timedelta(seconds=age_s)
        status = ReplicaStatus(
            name=name, cluster="local", url="", state="ready", serving=None, forgot=forgot, heartbeat_at=at
        )
        with store.work() as work:
            work.fleet.put_status(status)

    said("one", 2)
    said("two", 1)
    said("three", 0, age_s=60.0)
    with pytest.raises(NotYet, match="two to drop"):
        place.erase(order)
    said("two", 2)
    step = place.erase(order)
    assert step.removed == {"hosts": 2}
    assert step.note == "three: away, drops them before it serves again"
