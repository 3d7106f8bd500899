"""A release controller and hosts over a real log, store and weights: rounds, orders, and an end at any moment.

Its versions are the base policy's, given by their numbers."""

import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import made_events
import numpy as np
from changed_settings import changed
from memory_engine import MemoryEngine
from mortal import Fuse, MortalBlobs, MortalLog, MortalStore, MortalWeights
from numbered import numbered
from ready_stores import open_ready
from safetensors.numpy import save_file
from stepping import step

from core.blobs import FsspecBlobs
from core.clock import ManualClock
from core.events import Event, GateVerdict, Release, ReleaseState, Topic
from core.ids import base_ref
from core.model.probes import ProbeRecord
from core.model.weights_digest import digest_of_shards
from core.operations.fleet import Experiment, Order, OrderKind, ReplicaStatus, ReplicaTarget
from core.ports import Consumer, WeightsRef
from core.settings import Settings
from ingest.sqlite.log import SqliteEventLog
from serving.engines.host import EngineHost
from serving.releases import ReleaseController, ensure_anchor
from serving.releases.cases import CaseGate
from serving.releases.chain import STEPS
from serving.weights.published import BlobWeights

START = datetime(2026, 3, 1, tzinfo=UTC)
VOCABULARY = 512
LEASE_S = 4.0
_PATIENCE_S = 120.0  # of a machine that does much else


def probe_of_model(model: Path) -> ProbeRecord:
    """Return a probe record made from the weights' digest, since these engines do not compute."""
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


class Process:
    """A controller, and the log and stores that end with it."""

    def __init__(self, world: "ReleaseWorld", holder: str, fuse: Fuse) -> None:
        self.fuse = fuse
        weights = MortalWeights(FsspecBlobs(world.directory / "blobs"))
        weights.fuse = fuse
        self._log = MortalLog(world.log, fuse)
        self.controller = ReleaseController(
            self._log,
            MortalStore(world.store, fuse),
            weights,
            world.serving,
            world.release_settings,
            VOCABULARY,
            world.clock,
            holder,
            cases=None if world.make_cases is None else world.make_cases(),
        )

    def kill(self) -> None:
        """End the process: nothing is written or resigned."""
        self._log.end_process()


class ReleaseWorld:
    """One service directory, whose hosts and controllers are stepped by hand on the test's clock."""

    def __init__(
        self, directory: Path, engines: Sequence[str] = ("local",), clock: Any = None, settings: Mapping[str, Any] = {}
    ) -> None:
        """Make the world; `engines` other than `local` have one version each, `settings` are given by path."""
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        usual = {
            "release.lease_s": LEASE_S,
            "release.canary.enabled": "off",
            "release.first_turns": 0,
            "serving.versions.min_swap_interval_s": 0.0,
        }
        chosen = changed(Settings(), {**usual, **settings})
        self.release_settings, self.serving = chosen.release, chosen.serving
        self.clock = clock or ManualClock(START)
        self.log = SqliteEventLog(directory / "log.db", partitions=4, poll_s=0.01)
        self.store = open_ready(directory / "store.db")
        self._watch = sqlite3.connect(directory / "store.db")
        self.weights = BlobWeights(FsspecBlobs(directory / "blobs"))
        self.model = self.make_model()
        self.names = tuple(engines)
        self.engines: dict[str, Any] = {}
        self.hosts: dict[str, EngineHost] = {}
        self.processes: list[Process] = []
        self.make_cases: Callable[[], CaseGate] | None = None
        self._readers: dict[Topic, Consumer] = {}

    # ------------------------------------------------------------------------------------------ the model

    def make_model(self) -> Path:
        model = self.directory / "model"
        if not model.exists():
            model.mkdir()
            self.shards_at(model / "model.safetensors", 0)
        return model

    def shards_at(self, path: Path, seed: int) -> list[Path]:
        save_file({"w": np.random.default_rng(seed).normal(size=(4, 4)).astype(np.float32)}, path)
        return [path]

    def anchor(self, fuse: Fuse | None = None) -> WeightsRef:
        fuse = fuse or Fuse()
        weights, blobs = MortalWeights(FsspecBlobs(self.directory / "blobs")), MortalBlobs(self.directory / "blobs")
        weights.fuse = blobs.fuse = fuse
        store, log = MortalStore(self.store, fuse), MortalLog(self.log, fuse)
        return ensure_anchor(store, log, weights, blobs, self.model, "tiny", "local", probe_of_model, self.clock)

    def publish(self, parent: int = 1, arrivals: Sequence[datetime] = (), verdict: GateVerdict | None = None) -> int:
        """Publish as a learner does, or with a verdict as `onward propose` does: number, weights, store, log."""
        with self.store.work() as work:
            version = work.policies.allocate(self.clock.now())
        shards = self.shards_at(self.directory / f"{version}.safetensors", version.version)
        ref = self.weights.publish(version, shards, base_ref(parent))
        policy = made_events.policy(
            version,
            digest=ref.digest,
            parent=base_ref(parent),
            outcome_arrivals=tuple(arrivals),
            weights=ref.path,
            created_at=self.clock.now(),
            verdict=verdict,
        )
        with self.store.work() as work:
            work.policies.put(policy)
        self.log.append_blocking(Topic.POLICIES, [policy])
        return version.version

    # ------------------------------------------------------------------------------------------ processes

    def start(self) -> None:
        """Start new processes, with only the files of the earlier ones; run until the live version serves."""
        self.stop()
        for name in self.names:
            self.start_engine(name)
            self.start_host(name)
        self.start_controller()
        self.run()

    def start_engine(self, name: str) -> None:
        self.engines[name] = MemoryEngine(name, self.weights, self.anchor(), many=name == "local")

    def start_host(self, name: str, fuse: Fuse | None = None) -> EngineHost:
        """Start a host; its predecessor counts as killed."""
        store = MortalStore(self.store, fuse or Fuse())
        self.hosts[name] = EngineHost(self.engines[name], store, "local", self.clock)
        return self.hosts[name]

    def start_controller(self, holder: str = "one", fuse: Fuse | None = None) -> Process:
        self.processes.append(Process(self, holder, fuse or Fuse()))
        return self.processes[-1]

    def replace_controller(self) -> Process:
        """Kill the controller, and start another once the lease has expired."""
        for process in self.processes:
            process.kill()
        self.processes = []
        self.clock.advance(LEASE_S + 0.1)
        return self.start_controller(f"next-{self.clock.monotonic()}")

    @property
    def process(self) -> Process:
        return self.processes[-1]

    @property
    def controller(self) -> ReleaseController:
        return self.process.controller

    @property
    def engine(self) -> MemoryEngine:
        engine: MemoryEngine = self.engines[self.names[0]]
        return engine

    def stop(self) -> None:
        """End all processes."""
        for process in self.processes:
            process.kill()
        self.processes, self.hosts = [], {}
        if isinstance(self.clock, ManualClock):
            self.clock.advance(LEASE_S + 0.1)

    def close(self) -> None:
        self.stop()
        self._watch.close()
        for reader in self._readers.values():
            reader.close()
        self.log.close()
        self.store.close()

    # ------------------------------------------------------------------------------------------ rounds

    def round(self) -> bool:
        """Step everything once; return whether anything changed."""
        before = self._written()
        done = sum(step(host, 0) for host in self.hosts.values())
        done += sum(step(process.controller, 0) for process in self.processes)
        return bool(done) or before != self._written()

    def _written(self) -> int:
        """Return a number that changes with every transaction that changes the store."""
        return int(self._watch.execute("PRAGMA data_version").fetchone()[0])

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Run until the condition is met, or until there is nothing left to do."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while True:
            moved = self.round()
            if until() if until is not None else not moved and not self.unsettled():
                return
            assert time.monotonic() < deadline_s, (self.states(), self.statuses(), self.targets())
            for name in [] if moved else self.unsettled():
                step(self.hosts[name], 0.02)  # its loader is at work

    def pass_time(self, seconds: float, step_s: float = 1.0) -> None:
        """Run rounds while this much time passes."""
        end_s = self.clock.monotonic() + seconds
        while (left_s := end_s - self.clock.monotonic()) > 0:
            self.clock.advance(min(step_s, left_s))
            self.run()

    def unsettled(self) -> list[str]:
        """Return the hosts that have neither reached their target nor refused it.

        Hosts whose engine is or was just unreachable wait for the clock, and are left out."""
        targets, statuses = self.targets(), self.statuses()
        return [
            name
            for name, host in self.hosts.items()
            if not getattr(self.engines[name], "away", False)
            and host._retry_at_s <= self.clock.monotonic()
            and (name not in targets or name not in statuses or not _has(statuses[name], targets[name]))
        ]

    def release(self, parent: int = 1) -> int:
        version = self.publish(parent)
        self.run()
        assert self.states()[version] == "live", self.states()
        return version

    # ------------------------------------------------------------------------------------------ orders

    def order(self, kind: OrderKind, version: int, why: str = "worse") -> int:
        with self.store.work() as work:
            return work.orders.give("local", kind, base_ref(version), why, "ada", self.clock.now())

    def answer(self, order_id: int) -> Order:
        with self.store.look() as view:
            order = view.orders.get(order_id)
        assert order is not None
        return numbered(order)  # type: ignore[no-any-return]

    def obey(self, kind: OrderKind, version: int, why: str = "worse") -> Order:
        order_id = self.order(kind, version, why)
        self.run()
        return self.answer(order_id)

    def carry_out(self, kind: OrderKind, version: int, why: str = "worse") -> None:
        answer = self.obey(kind, version, why)
        assert (answer.error_code, answer.error) == (None, None)
        assert answer.done_at is not None

    # ------------------------------------------------------------------------------------------ what is so

    def states(self) -> dict[int, str]:
        with self.store.look() as view:
            listed = reversed(view.policies.newest(1000))
        return {policy.version.version: state for policy, state in listed}

    def history(self) -> list[Release]:
        """Return the store's releases in order."""
        with self.store.look() as view:
            return [numbered(release) for _, release in view.releases.after(0, 1000)]

    def steps(self, version: int) -> list[ReleaseState]:
        """Return a version's states in the store, in order."""
        return [release.state for release in self.history() if release.version == version]

    def why(self, version: int) -> str:
        """Return the reason of a version's last step."""
        return next(release.why for release in reversed(self.history()) if release.version == version)

    @property
    def live(self) -> int | None:
        with self.store.look() as view:
            live = view.releases.live("local")
        return None if live is None else live.version

    def statuses(self) -> dict[str, ReplicaStatus]:
        with self.store.look() as view:
            return {status.name: numbered(status) for status in view.fleet.statuses("local")}

    def targets(self) -> dict[str, ReplicaTarget]:
        with self.store.look() as view:
            return numbered(view.fleet.targets("local"))  # type: ignore[no-any-return]

    def experiments(self) -> list[Experiment]:
        """Return the experiments, newest first."""
        with self.store.look() as view:
            return numbered(view.experiments.newest("local", 100))  # type: ignore[no-any-return]

    def said(self) -> list[Release]:
        """Return the log's releases in order."""
        return [event for event in self.logged(Topic.RELEASES) if isinstance(event, Release)]

    def logged(self, topic: Topic) -> list[Event]:
        if topic not in self._readers:
            self._readers[topic] = self.log.consumer(f"reader-{len(self._readers)}", [topic])
        reader, events = self._readers[topic], []
        for source in reader.assignment():
            reader.seek(source, self.log.earliest(source))
        while records := reader.poll(1000, 0):
            events += [numbered(record.event) for record in records if record.event is not None]
        return events

    def has_weights(self, version: int) -> bool:
        return (self.directory / "blobs" / "weights" / f"{version:08d}" / "manifest.json").exists()

    # ------------------------------------------------------------------------------------------ what must be so

    def check_chain(self, *, in_order: bool = True) -> None:
        """Assert that every step is allowed, at most one version is live, and the log has exactly the store's steps.

        With `in_order`, the log's last step of each version is the store's, too."""
        states: dict[int, ReleaseState] = {}
        for release in self.history():
            before = states.get(release.version, "candidate")
            assert release.state == before == "rolled_back" or release.state in STEPS[before], (release, before)
            states[release.version] = release.state
            assert list(states.values()).count("live") <= 1, release
        said, history = self.said(), self.history()
        assert {_key(release) for release in said} == {_key(release) for release in history}
        last = {release.version: release.state for release in said}
        assert not in_order or last == {release.version: release.state for release in history}

    def check_one_lives(self, *, in_order: bool = True) -> int:
        """Assert that store, engines and log agree on the one version that serves; return it."""
        self.check_chain(in_order=in_order)
        live = self.live
        assert live is not None
        assert [version for version, state in self.states().items() if state == "live"] == [live]
        assert {numbered(engine.serving()) for engine in self.engines.values()} == {live}
        assert not in_order or [release.version for release in self.said() if release.state == "live"][-1] == live
        return live


def _has(status: ReplicaStatus, target: ReplicaTarget) -> bool:
    answered = status.figures.keys() | status.refused.keys()
    return set(target.hold) <= answered and target.serve in (status.serving, *status.refused)


def _key(release: Release) -> tuple[Any, ...]:
    return release.version, release.state, release.why, release.by
