"""A word of consent travels between clusters through their bucket: it holds in each, once, and by its time."""

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import made_events
import msgspec
import pytest
from mortal_blobs import Died, MortalBlobs
from stepping import step

from core.clock import ManualClock
from core.errors import Unavailable
from core.ids import Namespace, UserHash
from core.operations.consents import Consent
from core.operations.erasures import Erasure
from core.operations.exclusions import Exclusion
from core.records.clusters import ConsentNotice
from core.records.consent_words import give, moment_after
from core.records.erasure_orders import give as give_order
from core.store import open_sqlite
from ingest.clusters.bucket import STATUS_EVERY, Bucket
from ingest.clusters.consents import TravellingConsents
from ingest.clusters.follower import Follower
from ingest.clusters.gatherer import Gatherer
from ingest.erasure.in_clusters import InBucket
from ingest.sqlite.log import SqliteEventLog

NAMESPACE, ADA, WHY = Namespace("default"), UserHash("ada"), "by mail on 3 May"


class Cluster:
    """One cluster, with what it says through the bucket; the test is its only thread."""

    def __init__(self, directory: Path, name: str, clock: ManualClock) -> None:
        (directory / name).mkdir()
        self.name, self.clock = name, clock
        self.blobs = MortalBlobs(directory / "bucket")
        self.bucket = Bucket(self.blobs)
        self.log = SqliteEventLog(directory / name / "log.db", 1, 0.01)
        self.store = open_sqlite(directory / name / "store.db")
        self.start()

    def start(self) -> None:
        """Start its stage, as after a kill."""
        kind = Gatherer if self.name == "home" else Follower
        self.travels = kind(self.log, self.store, self.bucket, self.name, self.clock, 0.01)

    def say(self, *, learn: bool, subject: str = ADA, store: bool = True) -> Consent:
        """Bring a word as the API does."""
        with self.store.work() as work:
            before = next(iter(work.consents.newest(NAMESPACE, "user", subject, 1)), None)
            now = self.clock.now()
            word = Consent(
                namespace=NAMESPACE, kind="user", subject=subject, learn=learn, store=store, purposes=("support",),
                why=WHY, by="plugin", at=moment_after(before, now),
            )  # fmt: skip
            return give(work, word, now)

    def history(self, subject: str = ADA) -> list[Consent]:
        with self.store.look() as view:
            return view.consents.newest(NAMESPACE, "user", subject, 100)

    def words(self) -> list[str]:
        """Return whose words came, in their order, and what they allow."""
        with self.store.look() as view:
            return [f"{each.subject} {each.learn}" for each in view.consents.after(0, 1000)]

    def in_force(self) -> list[Exclusion]:
        with self.store.look() as view:
            return [each for each in view.exclusions.in_order() if each.lifted_at is None]

    def order(self) -> Erasure:
        now = self.clock.now()
        asked = Erasure(
            erasure_id=0, namespace=NAMESPACE, kind="user", subject=ADA, why="she asked", by="ops",
            ordered_at=now, deadline_at=now,
        )  # fmt: skip
        with self.store.work() as work:
            return give_order(work, asked)[0]

    def close(self) -> None:
        self.travels.close()
        self.log.close()
        self.store.close()


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[tuple[Cluster, Cluster]]:
    clock = ManualClock(made_events.NOW)
    home, edge = (Cluster(tmp_path, name, clock) for name in ("home", "edge"))
    with closing(home), closing(edge):
        yield home, edge


def travel(*clusters: Cluster) -> None:
    """Let a time pass in which each cluster looks for others that have words, and hears of these."""
    for _ in range(2):
        clusters[0].clock.advance(STATUS_EVERY.total_seconds())
        for cluster in clusters:
            step(cluster.travels)


@pytest.mark.parametrize("giver", ["home", "edge"])
def test_a_word_holds_in_every_cluster_until_it_is_taken_back(clusters: tuple[Cluster, Cluster], giver: str) -> None:
    home, edge = clusters
    here, there = (home, edge) if giver == "home" else (edge, home)
    said = here.say(learn=False)
    travel(home, edge)
    (word,) = there.history()
    assert word == msgspec.structs.replace(
        said, consent_id=word.consent_id, by=f"cluster {giver}", exclusion_id=word.exclusion_id
    )
    (order,) = there.in_force()
    assert (order.exclusion_id, order.selection) == (word.exclusion_id, said.selection)
    assert (order.why, order.by) == (f"consent of a user: {WHY}", f"cluster {giver}")
    there.say(learn=True)
    assert there.in_force() == []
    travel(home, edge)
    travel(home, edge)
    for cluster in clusters:
        assert [each.learn for each in cluster.history()] == [True, False], cluster.name
        assert cluster.in_force() == [], cluster.name


def test_an_older_word_that_comes_late_changes_nothing(clusters: tuple[Cluster, Cluster]) -> None:
    home, edge = clusters
    edge.say(learn=False)
    home.clock.advance(60.0)
    home.say(learn=True)
    travel(home, edge)
    for cluster in clusters:
        assert [each.learn for each in cluster.history()] == [True, False], cluster.name
        assert cluster.in_force() == [], cluster.name
    assert home.history()[1].exclusion_id is None


def test_clusters_agree_on_words_of_one_moment(clusters: tuple[Cluster, Cluster]) -> None:
    home, edge = clusters
    home.say(learn=True)
    edge.say(learn=False)
    travel(home, edge)
    assert [cluster.history()[0].learn for cluster in clusters] == [False, False]
    assert [len(cluster.in_force()) for cluster in clusters] == [1, 1]


def test_many_words_come_once_and_in_order_and_only_own_ones_are_told(
    clusters: tuple[Cluster, Cluster], tmp_path: Path
) -> None:
    home, edge = clusters
    for number in range(250):
        edge.say(learn=False, subject=f"user{number:03d}")
        if number % 50 == 0:
            home.say(learn=True, subject=f"other{number:03d}")
    for _ in range(5):
        travel(home, edge)
    assert [each for each in home.words() if each.startswith("user")] == [
        f"user{each:03d} False" for each in range(250)
    ]
    assert sorted(home.words()) == sorted(edge.words())
    assert home.bucket.last_words() == {"home": 5, "edge": 250}
    new = Cluster(tmp_path, "new", home.clock)
    with closing(new):
        for _ in range(5):
            travel(new)
        assert sorted(new.words()) == sorted(edge.words())
        assert "new" not in new.bucket.last_words()


@pytest.mark.parametrize("step_of", ["before it is put", "after it is put", "before it is given"])
def test_killed_between_two_steps_it_gives_nothing_twice(clusters: tuple[Cluster, Cluster], step_of: str) -> None:
    home, edge = clusters
    edge.say(learn=False)
    travel(home, edge)
    edge.say(learn=True)
    edge.say(learn=False)
    with pytest.MonkeyPatch.context() as patch:
        if step_of == "before it is put":
            edge.blobs.lives = 0
            patch.setattr(home.blobs, "_live", lambda: None)
        elif step_of == "after it is put":
            patch.setattr(edge.bucket, "put_word", and_dies(edge.bucket.put_word))
        else:
            travel(edge)
            patch.setattr("ingest.clusters.consents.give", and_dies(give))
        with pytest.raises(Died):
            (home if step_of == "before it is given" else edge).travels.tick()
        edge.blobs.lives = 1_000_000
    for cluster in clusters:
        cluster.travels.close()
        cluster.start()
    travel(home, edge)
    travel(home, edge)
    assert edge.bucket.last_words() == {"edge": 3}
    assert home.words() == edge.words() == ["ada False", "ada True", "ada False"]


def and_dies(does: Callable[..., object]) -> Callable[..., None]:
    """Return what does this, and ends the process after it."""

    def do(*given: object) -> None:
        does(*given)
        raise Died

    return do


def test_words_are_read_without_gaps_and_what_is_missing_is_said(
    clusters: tuple[Cluster, Cluster], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    home, edge = clusters
    for subject in ("one", "two", "three"):
        edge.say(learn=False, subject=subject)
    travel(edge)
    away = tmp_path / "bucket" / "consents" / "edge" / "000000000002.json"
    kept = away.read_bytes()
    away.unlink()
    with caplog.at_level(logging.ERROR):
        travel(home)
    assert home.words() == ["one False"]
    assert "word 2 is missing" in caplog.text
    away.write_bytes(kept)
    travel(home)
    assert home.words() == ["one False", "two False", "three False"]


def test_a_listing_that_leaves_words_out_delays_none(clusters: tuple[Cluster, Cluster]) -> None:
    home, edge = clusters
    edge.say(learn=False, subject="one")
    travel(edge, home)
    edge.say(learn=False, subject="two")
    step(edge.travels)
    home.bucket.last_words = lambda: {"edge": 1}  # type: ignore[method-assign]
    step(home.travels)
    assert home.words() == ["one False", "two False"]


def test_a_store_that_went_back_hears_its_own_words_again(clusters: tuple[Cluster, Cluster]) -> None:
    """Restored from a backup it knows nothing of what it put since, and writes over none of it."""
    home, edge = clusters
    edge.say(learn=False, subject="one")
    home.clock.advance(1.0)
    lost = edge.say(learn=False, subject="two")
    travel(edge, home)
    edge.travels.close()
    edge.store.close()
    edge.store = open_sqlite(Path(":memory:"))
    edge.start()
    edge.say(learn=False, subject="three")
    travel(edge, home)
    assert sorted(edge.words()) == ["one False", "three False", "two False"]
    assert edge.history("two")[0].at == lost.at
    assert home.words() == ["one False", "two False", "three False"]


@pytest.mark.parametrize("giver", ["home", "edge"])
def test_an_erasure_takes_reasons_everywhere_and_no_word(
    clusters: tuple[Cluster, Cluster], giver: str, tmp_path: Path
) -> None:
    home, edge = clusters
    for cluster in clusters:
        cluster.say(learn=False)
        cluster.say(learn=False, subject="eve")
    travel(home, edge)
    home.clock.advance(1.0)
    here = home if giver == "home" else edge
    order = here.order()
    whose = None if giver == "home" else "edge"
    place = InBucket(here.bucket, here.store, here.clock, whose)
    done = place.erase(order)
    assert done.removed == {"consents": 2 if giver == "home" else 1}
    assert place.erase(order) == done
    in_bucket = [here.bucket.word(name, number) for name in ("home", "edge") for number in (1, 2)]
    left = {(each.origin, each.word.subject): each.word for each in in_bucket if each is not None}
    erased = [("home", "ada"), ("edge", "ada")] if giver == "home" else [("edge", "ada")]
    assert [name for name, word in left.items() if not word.why] == erased
    assert all(word.purposes == ("support",) and not word.learn for word in left.values())


def test_a_word_that_comes_after_the_order_comes_without_its_reason(clusters: tuple[Cluster, Cluster]) -> None:
    home, edge = clusters
    edge.say(learn=False)
    edge.say(learn=False, subject="eve")
    step(edge.travels)
    home.clock.advance(1.0)
    home.order()
    travel(home)
    assert [(each.why, each.learn) for each in home.history()] == [("", False)]
    assert [each.why for each in home.history("eve")] == [WHY]
    assert [each.why for each in home.in_force()] == ["erased", f"consent of a user: {WHY}"]


def test_a_bucket_that_is_away_is_waited_for(clusters: tuple[Cluster, Cluster]) -> None:
    home, edge = clusters
    travels = TravellingConsents(edge.store, edge.bucket, "edge", edge.clock)
    edge.say(learn=False)

    def away(notice: ConsentNotice) -> None:
        raise Unavailable("clusters.url: the bucket cannot be reached")

    put = edge.bucket.put_word
    edge.bucket.put_word = away  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        travels.look()
    assert [each.learn for each in edge.history()] == [False], "it holds where it was said"
    edge.bucket.put_word = put  # type: ignore[method-assign]
    home.clock.advance(timedelta(hours=1).total_seconds())
    travels.look()
    travel(home)
    assert home.history()[0].at == edge.history()[0].at
