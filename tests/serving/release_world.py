"""A release controller with a real log, store and weights, an honest engine in memory, and an end at any moment."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from sqlalchemy import Connection

from core.blobs import FsspecBlobs
from core.clock import ManualClock
from core.errors import Conflict
from core.events import Event, PolicyVersion, Release, Topic
from core.ids import Version
from core.ports import Consumer, EventLog, Position, RebalanceListener, Weights, WeightsRef
from core.probes import ProbeRecord
from core.settings import ServingSettings
from core.store import SqlStore, open_sqlite, policies
from core.weights_digest import digest_of_shards
from ingest.sqlite_log import SqliteEventLog
from serving.releases import CLUSTER, ReleaseController, ensure_anchor
from serving.weights import BlobWeights

START = datetime(2026, 3, 1, tzinfo=UTC)
VOCABULARY = 512
FINE = {"finite": 1.0, "kl_to_live": 0.01, "entropy": 1.5}


class Crash(Exception):
    """The process ended here."""


class Fuse:
    """Ends the process at its call number `at`, counted from 0; None: never."""

    def __init__(self, at: int | None = None) -> None:
        self.at = at
        self.calls = 0

    def __call__(self) -> None:
        if self.calls == self.at:
            self.calls += 1
            raise Crash
        self.calls += 1


class MemoryEngine:
    """Implements core.ports.Engine: holds digests of what it really read. The anchor serves until the first switch."""

    def __init__(self, weights: Weights, anchor: WeightsRef, fuse: Fuse) -> None:
        self._weights, self._fuse = weights, fuse
        self._digests = {anchor.version: digest_of_shards(weights.open(anchor))}
        self.live = anchor.version
        self.loads: list[Version] = []
        self.switches: list[Version] = []
        self.figures: dict[Version, Mapping[str, float]] = {}
        self.pinned: set[Version] = set()
        self.misread: set[Version] = set()

    def loaded(self) -> Mapping[Version, str]:
        return dict(self._digests)

    def load(self, ref: WeightsRef) -> None:
        self._fuse()
        digest = digest_of_shards(self._weights.open(ref))
        self._digests[ref.version] = "other" if ref.version in self.misread else digest
        self.loads.append(ref.version)

    def probe(self, version: Version) -> Mapping[str, float]:
        self._fuse()
        assert version in self._digests
        return self.figures.get(version, FINE)

    def switch(self, version: Version) -> None:
        self._fuse()
        assert version in self._digests
        self.live = version
        self.switches.append(version)

    def unload(self, version: Version) -> None:
        self._fuse()
        if version == self.live or version in self.pinned:
            raise Conflict(f"version {version} is in use")
        del self._digests[version]


class MortalStore:
    """A store whose process may end before a write."""

    def __init__(self, store: SqlStore, fuse: Fuse) -> None:
        self._store, self._fuse = store, fuse
        self.read, self.close = store.read, store.close

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        self._fuse()
        with self._store.begin() as connection:
            yield connection


class MortalLog:
    """A log whose process may end before an append. Knows its consumers, which end with the process."""

    def __init__(self, log: EventLog, fuse: Fuse) -> None:
        self._log, self._fuse = log, fuse
        self.append, self.partitions, self.close = log.append, log.partitions, log.close
        self.earliest, self.end = log.earliest, log.end
        self.members: list[Consumer] = []

    def append_blocking(self, topic: Topic, events: Sequence[Event]) -> list[Position]:
        self._fuse()
        return self._log.append_blocking(topic, events)

    def consumer(self, group: str, topics: Sequence[Topic], listener: RebalanceListener | None = None) -> Consumer:
        member = MortalConsumer(self._log.consumer(group, topics, listener), self._fuse)
        self.members.append(member)
        return member


class MortalConsumer:
    def __init__(self, consumer: Consumer, fuse: Fuse) -> None:
        self._consumer, self._fuse = consumer, fuse

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def commit(self, offsets: Mapping[Any, int]) -> None:
        self._fuse()
        self._consumer.commit(offsets)


class MortalWeights(BlobWeights):
    fuse = Fuse()

    def publish(self, version: Version, shards: Sequence[Path], parent: Version | None) -> WeightsRef:
        self.fuse()
        return super().publish(version, shards, parent)

    def discard(self, version: Version) -> None:
        self.fuse()
        super().discard(version)


class MortalBlobs(FsspecBlobs):
    fuse = Fuse()

    def put(self, path: str, data: bytes) -> None:
        self.fuse()
        super().put(path, data)


def probe_of_model(model: Path) -> ProbeRecord:
    """The model of these worlds is one matrix; it says what its bytes make it say."""
    digest = digest_of_shards([model / "model.safetensors"])
    logprob = -1 - int(digest[:4], 16) / 65536
    return ProbeRecord(
        token_ids=((0, 1),),
        choices=(((1,),),),
        logprobs=((logprob,),),
        choice_logprobs=(((logprob,),),),
        entropy=1.5,
        finite=True,
        dtype="float32",
        weights_digest=digest,
    )


class ReleaseWorld:
    """One service directory. `start` is a new process on it: nothing but files survives from the one before."""

    fuse: Fuse
    engine: MemoryEngine
    controller: ReleaseController

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.settings = ServingSettings(**{"min_swap_interval_s": 0.0, **settings})
        self.clock = ManualClock(START)
        self.log = SqliteEventLog(directory / "log.db", partitions=4, poll_s=0.01)
        self.store = open_sqlite(directory / "store.db")
        self.weights = BlobWeights(FsspecBlobs(directory / "blobs"))
        self.model = directory / "model"
        self.model.mkdir()
        self.shards(0)
        self._running: MortalLog | None = None

    def shards(self, seed: int) -> list[Path]:
        path = self.model / "model.safetensors" if seed == 0 else self.directory / f"{seed}.safetensors"
        save_file({"w": np.random.default_rng(seed).normal(size=(4, 4)).astype(np.float32)}, path)
        return [path]

    def anchor(self, fuse: Fuse | None = None) -> WeightsRef:
        fuse = fuse or Fuse()
        weights = MortalWeights(FsspecBlobs(self.directory / "blobs"))
        weights.fuse = fuse
        store, log = MortalStore(self.store, fuse), MortalLog(self.log, fuse)
        blobs = MortalBlobs(self.directory / "blobs")
        blobs.fuse = fuse
        return ensure_anchor(store, log, weights, blobs, self.model, "tiny", probe_of_model, self.clock)

    def start(self, fuse: Fuse | None = None) -> ReleaseController:
        """A new process; the fuse begins to count once the anchor is there."""
        self.stop()
        self.fuse = fuse = fuse or Fuse()
        anchor = self.anchor()
        weights = MortalWeights(FsspecBlobs(self.directory / "blobs"))
        weights.fuse = fuse
        self._running = MortalLog(self.log, fuse)
        self.engine = MemoryEngine(weights, anchor, fuse)
        self.controller = ReleaseController(
            self._running,
            MortalStore(self.store, fuse),
            self.engine,
            weights,
            self.settings,
            VOCABULARY,
            self.clock,
        )
        return self.controller

    def stop(self) -> None:
        """The process ends."""
        if self._running is not None:
            for member in self._running.members:
                member.close()
        self._running = None

    def close(self) -> None:
        self.stop()
        self.log.close()
        self.store.close()

    def publish(self, parent: int = 1, arrivals: Sequence[datetime] = ()) -> Version:
        """As a learner does: a number, weights, the store, the log."""
        with self.store.begin() as connection:
            version = policies.allocate_version(connection, self.clock.now())
        ref = self.weights.publish(version, self.shards(version), Version(parent))
        policy = PolicyVersion(
            version=version,
            policy="tiny",
            digest=ref.digest,
            parent=Version(parent),
            manifest=None,
            outcome_arrivals=tuple(arrivals),
            weights=ref.path,
            created_at=self.clock.now(),
        )
        with self.store.begin() as connection:
            policies.put_policy(connection, policy)
        self.log.append_blocking(Topic.POLICIES, [policy])
        return version

    def run(self) -> None:
        """Until nothing is left to read."""
        while self.controller.step(0):
            pass

    def release(self, parent: int = 1) -> Version:
        version = self.publish(parent)
        self.run()
        assert self.states()[version] == "live"
        return version

    def states(self) -> dict[int, str]:
        with self.store.read() as connection:
            return {policy.version: state for policy, state in reversed(policies.list_policies(connection, 1000))}

    def history(self) -> list[Release]:
        """As the store has it."""
        with self.store.read() as connection:
            return [release for _, release in policies.list_releases(connection, 0, 1000)]

    def said(self) -> list[Release]:
        """As the log has it, in order per version."""
        return [event for event in self.logged(Topic.RELEASES) if isinstance(event, Release)]

    def logged(self, topic: Topic) -> list[Event]:
        consumer = self.log.consumer("reader", [topic])
        try:
            events = []
            for source in consumer.assignment():
                consumer.seek(source, self.log.earliest(source))
            while records := consumer.poll(1000, 0):
                events += [record.event for record in records if record.event is not None]
        finally:
            consumer.close()
        return events

    def why(self, version: int) -> str:
        """Of its last step."""
        return next(release.why for release in reversed(self.history()) if release.version == version)

    def has_weights(self, version: int) -> bool:
        return (self.directory / "blobs" / "weights" / f"{version:08d}" / "manifest.json").exists()

    def check_one_lives(self) -> Version:
        """Store, engine, controller and log agree on the one version that serves."""
        with self.store.read() as connection:
            live = policies.live_version(connection, CLUSTER)
        assert live is not None
        assert [version for version, state in self.states().items() if state == "live"] == [live]
        assert (self.engine.live, self.controller.live) == (live, live)
        assert [release.version for release in self.said() if release.state == "live"][-1] == live
        return live
