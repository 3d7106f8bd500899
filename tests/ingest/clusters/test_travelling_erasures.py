"""An erasure travels between clusters through their bucket: each erases, reports, and none of them keeps a word."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import made_events
import msgspec
import pytest
import zstandard
from stepping import step

from core.blobs import FsspecBlobs
from core.clock import ManualClock
from core.events import Completion, Topic
from core.ids import Namespace, PolicyName, PolicyRef, SessionId, UserHash, Version
from core.operations.erasures import Erasure, Step, is_erased
from core.records.erasure_orders import give
from core.records.whole_log import read_whole
from core.settings import IngestSettings
from core.store import open_sqlite
from ingest.clusters.bucket import Bucket
from ingest.clusters.erasures import TravellingErasures
from ingest.clusters.follower import Follower
from ingest.clusters.gatherer import Gatherer
from ingest.erasure.eraser import Eraser, Widening
from ingest.erasure.in_clusters import InBucket, InClusters, OfHome, Told
from ingest.erasure.in_log import InLog
from ingest.erasure.in_policy import AwaitNamespaces, InPolicy, NamespacesAgain
from ingest.erasure.in_store import InStore
from ingest.erasure.statement import Signer, verified
from ingest.sqlite.log import SqliteEventLog
from ingest.writer import Writer
from serving.weights.erasing import InPolicyWeights, InWeights
from serving.weights.published import BlobWeights

ACME = PolicyName("acme")
CANARY, NAMESPACE, MALLORY = "Zugspitzfeuersalamander", Namespace("default"), UserHash("mallory")
WITHDRAWN = "d" * 64


class KnownWeights(InWeights):
    """Weights of which one version had learned from it, as if a learner had made that."""

    def erase(self, order: Erasure) -> Step:
        return msgspec.structs.replace(super().erase(order), withdrawn=(WITHDRAWN,))


class Cluster:
    """Log, store and eraser of one cluster, with what it says through the bucket; the test is its only thread."""

    def __init__(self, directory: Path, name: str, bucket: Bucket, clock: ManualClock) -> None:
        directory.mkdir()
        self.name, self.clock, self.directory, self.bucket = name, clock, directory, bucket
        self.log = SqliteEventLog(directory / "log.db", 1, 0.01)
        self.store = open_sqlite(directory / "store.db")
        self.writer = Writer(self.log, self.store, IngestSettings(), clock)
        self.dropped: list[str] = []
        is_home = name == "home"
        if is_home:
            self.travels: Gatherer | Follower = Gatherer(self.log, self.store, bucket, name, clock, 0.01)
        else:
            self.travels = Follower(self.log, self.store, bucket, name, clock, 0.01)
        log, store, widen = self.log, self.store, Widening(self.store, clock)
        blobs = FsspecBlobs(directory / "blobs")
        weights = KnownWeights(store, blobs, BlobWeights(blobs), self.dropped.append)
        whose = None if is_home else name
        places = [
            Told(bucket, self.store, name),
            InBucket(bucket, store, clock, whose),
            InLog(log, store, log, widen),
            InStore(store, store.scrub),
            weights if is_home else OfHome(bucket, name, self.dropped.append),
            InClusters(bucket, name),
            InBucket(bucket, store, clock, whose, "bucket_after"),
            InLog(log, store, log, widen, "log_of_clusters"),
        ]
        of_policy = [
            Told(bucket, store, name),
            AwaitNamespaces(store),
            NamespacesAgain(store, clock),
            InPolicyWeights(store, blobs, BlobWeights(blobs) if is_home else None, self.dropped.append),
            InPolicy(store, store.scrub),
            InClusters(bucket, name),
        ]
        self.eraser = Eraser(store, clock, places, Signer(directory / "key.pem"), of_policy)

    def say(self, word: str, user: str, session: str) -> Completion:
        turn = made_events.completion(
            SessionId(session), namespace=NAMESPACE, user_id=UserHash(user), text=word, received_at=self.clock.now()
        )
        self.log.append_blocking(Topic.TURNS, [turn])
        return turn

    def write(self) -> None:
        while step(self.writer):
            pass

    def work(self) -> None:
        self.travels.tick()
        self.write()
        self.eraser.go_on()

    def order(self) -> int:
        now = self.clock.now()
        asked = Erasure(
            erasure_id=0, namespace=NAMESPACE, kind="user", subject=MALLORY, why="he asked", by="ops",
            ordered_at=now, deadline_at=now,
        )  # fmt: skip
        with self.store.work() as work:
            given, _ = give(work, asked)
        return given.erasure_id

    def order_organisation(self) -> int:
        """Order that of `[policies.acme]` with its one namespace, as the API does."""
        now = self.clock.now()
        asked = Erasure(
            erasure_id=0, namespace=NAMESPACE, kind="namespace", subject=NAMESPACE, why="it left", by="ops",
            ordered_at=now, deadline_at=now,
        )  # fmt: skip
        with self.store.work() as work:
            part, _ = give(work, asked)
            whole = msgspec.structs.replace(
                asked, kind="organisation", subject=ACME, namespaces=(NAMESPACE,), parts=(part.erasure_id,)
            )
            return work.erasures.give(whole)

    def orders(self) -> list[Erasure]:
        with self.store.look() as view:
            return view.erasures.newest(None, 10)

    def turns(self) -> list[Completion]:
        found = [record.event for batch in read_whole(self.log, Topic.TURNS) for record in batch]
        return [event for event in found if isinstance(event, Completion)]

    def close(self) -> None:
        self.travels.close()
        self.writer.close()
        self.log.close()
        self.store.close()


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[tuple[Cluster, Cluster]]:
    clock, bucket = ManualClock(made_events.NOW), Bucket(FsspecBlobs(tmp_path / "bucket"))
    home, edge = (Cluster(tmp_path / name, name, bucket, clock) for name in ("home", "edge"))
    with closing(home), closing(edge):
        yield home, edge


def spoken(home: Cluster, edge: Cluster) -> None:
    """Let both users speak in both clusters; what the edge logged first is at home, and the rest in the bucket."""
    for cluster, number in ((home, 0), (edge, 1)):
        cluster.say(CANARY, "mallory", f"m{number}")
        cluster.say("ordinary", "alice", f"a{number}")
    for cluster in (edge, home):
        cluster.travels.tick()
    edge.say(CANARY, "mallory", "m2")
    edge.travels.tick()
    for cluster in (home, edge):
        cluster.write()
    home.clock.advance(1.0)


def files_with_it(directory: Path) -> list[str]:
    found = []
    for path in directory.rglob("*"):
        if path.is_file():
            raw = path.read_bytes()
            raw = zstandard.decompress(raw) if path.suffix == ".pieces" else raw
            if CANARY.encode() in raw:
                found.append(str(path.relative_to(directory)))
    return found


def erased(cluster: Cluster, session: str) -> bool:
    (turn,) = [turn for turn in cluster.turns() if turn.session_id == session]
    return is_erased(turn)


@pytest.mark.parametrize("giver", ["home", "edge"])
def test_whoever_gives_it_all_erase_and_no_object_keeps_a_word(
    clusters: tuple[Cluster, Cluster], giver: str, tmp_path: Path
) -> None:
    home, edge = clusters
    spoken(home, edge)
    assert [name for name in files_with_it(tmp_path / "bucket") if name.endswith(".pieces")], "words wait there"
    given = home if giver == "home" else edge
    number = given.order()
    for _ in range(40):
        for cluster in clusters:
            cluster.work()
    (mine,) = given.orders()
    (theirs,) = (edge if given is home else home).orders()
    assert (mine.state, theirs.state) == ("done", "done"), (mine.waits_for, theirs.waits_for)
    assert theirs.origins == (f"{giver}/{number}",)
    assert mine.steps["clusters"].removed == {"clusters": 1}
    assert verified(theirs.statement or "")[0]["subject"] == MALLORY
    assert edge.orders()[0].steps["weights"].withdrawn == (WITHDRAWN,)
    assert edge.dropped == [WITHDRAWN]
    turns = {turn.session_id: turn for turn in home.turns()}
    assert {session: is_erased(turn) for session, turn in turns.items()} == {
        "m0": True, "m1": True, "m2": True, "a0": False, "a1": False,
    }  # fmt: skip
    for cluster in clusters:
        cluster.close()
    assert files_with_it(tmp_path) == []


def test_it_waits_for_a_cluster_that_is_cut_off_whose_words_never_come_home(
    clusters: tuple[Cluster, Cluster], tmp_path: Path
) -> None:
    home, edge = clusters
    spoken(home, edge)
    edge.say(CANARY, "mallory", "m3")  # which the edge has not sent when it is cut off
    home.clock.advance(1.0)
    home.order()
    home.travels.tick()
    assert erased(home, "m2"), "it was in the bucket when it was ordered, and came as a tombstone"
    for _ in range(20):
        home.work()
    (order,) = home.orders()
    assert (order.state, order.waits_for) == ("ordered", "edge to erase it as well")
    assert files_with_it(tmp_path / "bucket") == []
    assert files_with_it(tmp_path / "edge") != []
    edge.travels.tick()
    assert files_with_it(tmp_path / "bucket") == [], "the edge heard of it before it sent anything"
    home.travels.tick()
    assert erased(home, "m3")
    for _ in range(40):
        edge.work()
        home.work()
    assert [each.state for cluster in clusters for each in cluster.orders()] == ["done", "done"]
    for cluster in clusters:
        cluster.close()
    assert files_with_it(tmp_path) == []


def test_an_edge_rewrites_what_it_sent_while_home_is_away(clusters: tuple[Cluster, Cluster], tmp_path: Path) -> None:
    home, edge = clusters
    spoken(home, edge)
    edge.order()
    for _ in range(5):
        edge.work()
    assert edge.orders()[0].steps["bucket"].removed == {"records": 1}
    assert [str(path) for path in (tmp_path / "bucket").rglob("*.pieces")], "home has not taken it"
    assert files_with_it(tmp_path / "bucket") == []
    home.travels.tick()
    assert erased(home, "m2")


@pytest.mark.parametrize("giver", ["home", "edge"])
def test_an_organisation_leaves_all_clusters_with_its_policy(
    clusters: tuple[Cluster, Cluster], giver: str, tmp_path: Path
) -> None:
    """Each has a statement of its own, drops what its hosts keep of the policy, and never gives the name again."""
    home, edge = clusters
    spoken(home, edge)
    for cluster in clusters:
        with cluster.store.work() as work:
            work.policies.adopt(made_events.policy(PolicyRef(ACME, Version(7)), digest="7" * 64))
    given = home if giver == "home" else edge
    number = given.order_organisation()
    home.clock.advance(0.5)
    for cluster in clusters:  # processes that have not heard of the order still answer
        cluster.say(CANARY, "mallory", f"late at {cluster.name}")
    home.clock.advance(1.0)
    for _ in range(90):
        for cluster in clusters:
            cluster.work()
    for cluster in clusters:
        with cluster.store.look() as view:
            (order,) = view.erasures.of_organisations()
            assert view.policies.versions(ACME) == []
        assert (order.state, order.subject, order.namespaces) == ("done", ACME, (NAMESPACE,)), order.waits_for
        assert order.origins == (() if cluster is given else (f"{giver}/{number}",))
        assert verified(order.statement or "")[0]["policy"] == ACME
        assert all(each.state == "done" for each in cluster.orders())
        assert "7" * 64 in cluster.dropped
        assert [turn for turn in cluster.turns() if not is_erased(turn)] == []
        cluster.close()
    assert files_with_it(tmp_path) == []


def test_an_organisation_waits_for_what_was_said_in_it(clusters: tuple[Cluster, Cluster]) -> None:
    """The order for its namespace was not read yet, as when the bucket went away in between."""
    home, edge = clusters
    number = home.order_organisation()
    for _ in range(3):
        home.work()
    part = f"home/{number - 1}"
    notices, travels = edge.bucket.notices(), TravellingErasures(edge.store, edge.bucket, "edge", is_home=False)
    assert notices == [part, f"home/{number}"]
    edge.bucket.notices = lambda: notices[1:]  # type: ignore[method-assign]
    travels.look()
    assert edge.orders() == []
    edge.bucket.notices = lambda: notices  # type: ignore[method-assign]
    travels.look()
    assert [each.kind for each in edge.orders()] == ["organisation", "namespace"]


def test_an_order_that_a_thousand_came_after_is_not_given_again_by_a_process_that_starts_anew(
    clusters: tuple[Cluster, Cluster],
) -> None:
    home, edge = clusters
    part = home.order_organisation() - 1
    for _ in range(3):
        home.work()
    TravellingErasures(edge.store, edge.bucket, "edge", is_home=False).look()
    for cluster in clusters:
        with cluster.store.work() as work:
            for number in range(1001):
                one = Erasure(
                    erasure_id=0, namespace=NAMESPACE, kind="user", subject=f"u{number}", why="", by="ops",
                    ordered_at=cluster.clock.now(), deadline_at=cluster.clock.now(),
                )  # fmt: skip
                work.erasures.end(work.erasures.give(one), cluster.clock.now(), "{}")
    for cluster in clusters:
        with cluster.store.look() as view:
            before = view.erasures.stamp()
        TravellingErasures(cluster.store, cluster.bucket, cluster.name, is_home=cluster is home).look()
        with cluster.store.look() as view:
            assert view.erasures.stamp() == before, "nothing was given"
    with edge.store.look() as view:
        known = view.erasures.called(f"home/{part}")
    assert known is not None
    assert known.kind == "namespace"
