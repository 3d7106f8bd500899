"""What an edge does with the versions that home released."""

from contextlib import closing
from pathlib import Path

import made_events
from stepping import step

from core.blobs import FsspecBlobs
from core.clock import ManualClock
from core.events import Release
from core.ids import PolicyName, PolicyRef, Version, base_ref
from core.store import SqlStore, open_sqlite
from ingest.clusters.bucket import Bucket, Step
from ingest.clusters.follower import Follower
from ingest.sqlite.log import SqliteEventLog

ACME = PolicyName("acme")


def released(bucket: Bucket, sequence: int, version: PolicyRef) -> None:
    release = Release(version=version, cluster="home", state="live", why="passed", by="gate", at=made_events.NOW)
    bucket.put_step("home", Step(sequence=sequence, release=release, policy=made_events.policy(version)))


def candidates(store: SqlStore, policy: PolicyName) -> list[int]:
    with store.look() as view:
        return [each.version.version for each in view.policies.candidates(policy)]


def went_live(store: SqlStore, *versions: PolicyRef) -> None:
    with store.work() as work:
        for version in versions:
            release = Release(version=version, cluster="edge", state="live", why="", by="gate", at=made_events.NOW)
            work.releases.put(release)


def test_it_says_what_it_serves_and_may_go_back_to(tmp_path: Path) -> None:
    """Home keeps these weights; those that served earlier are not needed, of whatever policy."""
    bucket, acme = Bucket(FsspecBlobs(tmp_path / "bucket")), [PolicyRef(ACME, Version(each)) for each in range(3)]
    log, store = SqliteEventLog(tmp_path / "log.db", 1, 0.01), open_sqlite(tmp_path / "store.db")
    with closing(log), closing(store):
        with store.work() as work:
            work.policies.adopt(made_events.policy(base_ref(1)))
            work.policies.adopt(made_events.policy(acme[1]))
        with closing(Follower(log, store, bucket, "edge", ManualClock(made_events.NOW), 0.01)) as follower:
            went_live(store, base_ref(1), base_ref(2), base_ref(3), acme[1])
            step(follower)
            (said,) = bucket.statuses()
            assert said.live == base_ref(3)
            assert set(said.needs) == {base_ref(3), base_ref(2), acme[1]}
            went_live(store, acme[2])
            step(follower)
            (said,) = bucket.statuses()
            assert set(said.needs) == {base_ref(3), base_ref(2), acme[2], acme[1]}
            released(bucket, 1, base_ref(4))
            step(follower)
            (said,) = bucket.statuses()
            assert base_ref(4) in said.needs, "it is tried here"


def test_after_a_cut_an_edge_tries_only_what_home_serves_by_then(tmp_path: Path) -> None:
    """Home has discarded the weights of the versions in between."""
    bucket = Bucket(FsspecBlobs(tmp_path / "bucket"))
    log, store = SqliteEventLog(tmp_path / "log.db", 1, 0.01), open_sqlite(tmp_path / "store.db")
    with closing(log), closing(store):
        for sequence, number in enumerate((2, 3, 4), start=1):
            released(bucket, sequence, base_ref(number))
        released(bucket, 4, PolicyRef(ACME, Version(7)))
        with closing(Follower(log, store, bucket, "edge", ManualClock(made_events.NOW), 0.01)) as follower:
            step(follower)
            assert candidates(store, base_ref(1).policy) == [4]
            assert candidates(store, ACME) == [7]
            released(bucket, 5, base_ref(5))
            step(follower)
        assert sorted(candidates(store, base_ref(1).policy)) == [4, 5]
        with store.look() as view:
            assert max(view.offsets.of_group("follower:releases").values()) == 5


def orders(store: SqlStore) -> list[tuple[str, PolicyRef]]:
    with store.look() as view:
        return [(each.kind, each.version) for each in view.orders.unfinished("edge")]


def test_what_home_took_back_is_not_tried_any_more(tmp_path: Path) -> None:
    """Nor where the edge serves already what home went back to."""
    bucket = Bucket(FsspecBlobs(tmp_path / "bucket"))
    log, store = SqliteEventLog(tmp_path / "log.db", 1, 0.01), open_sqlite(tmp_path / "store.db")
    clock = ManualClock(made_events.NOW)
    with closing(log), closing(store), closing(Follower(log, store, bucket, "edge", clock, 0.01)) as follower:
        for sequence, number in enumerate((2, 3), start=1):
            released(bucket, sequence, base_ref(number))
            step(follower)
        went_live(store, base_ref(2))
        released(bucket, 3, base_ref(2))
        for _ in range(2):
            step(follower)
        assert orders(store) == [("withdraw", base_ref(3))]


def test_an_edge_that_may_go_far_back_needs_those_versions(tmp_path: Path) -> None:
    bucket = Bucket(FsspecBlobs(tmp_path / "bucket"))
    log, store = SqliteEventLog(tmp_path / "log.db", 1, 0.01), open_sqlite(tmp_path / "store.db")
    with closing(log), closing(store):
        with store.work() as work:
            for number in range(1, 6):
                work.policies.adopt(made_events.policy(base_ref(number)))
        went_live(store, *map(base_ref, range(1, 6)))
        against = {base_ref(5): (base_ref(3),)}
        clock = ManualClock(made_events.NOW)
        of_store = lambda view, cluster, live: against[live]  # noqa: E731
        with closing(Follower(log, store, bucket, "edge", clock, 0.01, of_store)) as follower:
            step(follower)
            (said,) = bucket.statuses()
            assert said.needs == (base_ref(5), base_ref(4), base_ref(3))
