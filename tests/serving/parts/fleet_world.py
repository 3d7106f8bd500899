"""A real fleet: engines, a host beside each, the store between them and the routers, and a policy in front."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar, cast

import made_events
from engine_world import MODEL, Published
from ready_stores import open_ready
from sglang_server import PYTHON, sglang_server

from core.clock import SystemClock
from core.events import Release
from core.grammars.library import VERSION, grammars_of
from core.ids import ANCHOR
from core.ports import Engine, GenerateRequest, Policy, TokenChunk, WeightsRef
from core.settings import FleetSettings, ServingSettings, SglangSettings
from core.stages.rounds import Rounds
from core.store import SqlStore
from serving.engines.host import EngineHost
from serving.engines.model_facts import read_model_facts
from serving.engines.sglang.engine import SglangEngine
from serving.engines.sglang.generation.policy import SglangConnections
from serving.fleet import FleetPolicy, FleetView, RemoteEngines

START_TIMEOUT_S = 600
T = TypeVar("T")


class Stepper:
    """A thread that steps a stage until it is stopped."""

    def __init__(self, step: Callable[[float], int]) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(step,))
        self._thread.start()

    def _run(self, step: Callable[[float], int]) -> None:
        while not self._stopping.is_set():
            step(0.05)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


def publish(store: SqlStore, ref: WeightsRef, state: str) -> None:
    """Write the version and its release, as the learner and the controller do."""
    now = SystemClock().now()
    policy = made_events.policy(ref.version, digest=ref.digest, parent=ref.parent, weights=ref.path, created_at=now)
    release = Release(version=ref.version, cluster="local", state=state, why="", by="start", at=now)  # type: ignore[arg-type]
    with store.work() as work:
        work.policies.put(policy)
        work.releases.put(release)


class Fleet:
    """A fleet whose `policy` is used on `run`'s event loop alone."""

    def __init__(
        self, directory: Path, world: Published, settings: ServingSettings, engines: RemoteEngines | None = None
    ) -> None:
        """Make a fleet without hosts; `engines` speaks to its servers, which are SGLang's where it is None."""
        self.world, self.settings, self.clock = world, settings, SystemClock()
        self.store = open_ready(directory / "store.db")
        with self.store.work() as work:
            while work.policies.allocate(self.clock.now()) < max(world.refs):
                pass
        publish(self.store, world.refs[ANCHOR], "live")
        self.view = FleetView(self.store, "local", self.clock, settings.fleet.heartbeat_timeout_s, period_s=0.02)
        engines = engines or SglangConnections(settings.sglang)
        self.policy = FleetPolicy(
            self.view, engines, settings, read_model_facts(world.model), self.clock, grammars_of(world.model)
        )
        self.view.on_look = self.policy.notice
        self._runner = asyncio.Runner()
        self._watching = Stepper(Rounds("fleet", self.view).step)
        self.hosts: dict[str, tuple[EngineHost, Stepper]] = {}
        self._engines: list[Engine] = []

    def host(self, engine: Engine) -> None:
        paces = {"heartbeat_s": 0.2, "poll_s": 0.02}
        host = EngineHost(engine, self.store, "local", self.clock, llguidance=VERSION, **paces)
        self.hosts[engine.name] = host, Stepper(Rounds(engine.name, host).step)
        self._engines.append(engine)

    def wait_until(self, holds: Callable[[], bool], timeout_s: float = START_TIMEOUT_S) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < deadline_s, [host.state for host, _ in self.hosts.values()]
            time.sleep(0.01)

    def run(self, work: Callable[[Policy], "asyncio.Future[T]"]) -> T:
        return self._runner.run(work(self.policy))  # type: ignore[arg-type]

    def close(self) -> None:
        self._runner.run(self.policy.aclose())
        self._runner.close()
        self._watching.stop()
        for host, stepper in self.hosts.values():
            stepper.stop()
            host.close()
        for engine in self._engines:
            engine.close()  # type: ignore[attr-defined]  # every engine can be closed, though nobody asks it by the port
        self.store.close()


PATIENT = FleetSettings(engine_wait_s=300.0)
"""For real servers, which answer late, and are taken for gone meanwhile, where other work has the processors."""


@contextmanager
def sglang_fleet(
    directory: Path,
    *,
    names: Sequence[str] = ("one",),
    model: Path = MODEL,
    versions: int = 1,
    sglang: SglangSettings | None = None,
    extra: Sequence[str] = (),
    **serving: object,
) -> Iterator[Fleet]:
    """Run real servers with hosts of their own, which serve the anchor.

    Versions from 2 on are published and not released. `extra`: arguments of the servers."""
    serving = {"fleet": PATIENT, **serving}
    settings = ServingSettings(sglang=sglang or SglangSettings(python=PYTHON), **serving)  # type: ignore[arg-type]
    world = Published(directory / "published", model)
    for version in range(2, versions + 1):
        world.publish(version)
    dtype = settings.sglang.dtype
    with ExitStack() as stack:
        servers = [
            stack.enter_context(sglang_server(model, directory / name, dtype=dtype, extra=extra)) for name in names
        ]
        fleet = Fleet(directory, world, settings)
        stack.callback(fleet.close)
        for name, server in zip(names, servers, strict=True):
            own = directory / f"{name}-host"
            fleet.host(SglangEngine(name, settings.sglang, world.weights, world.blobs, model, own, url=server.url))
        fleet.wait_until(lambda: sum(r.answers(None) for r in fleet.view.snapshot.replicas) == len(names))
        yield fleet


async def collect(policy: Policy, request: GenerateRequest) -> list[TokenChunk]:
    stream = cast("AsyncGenerator[TokenChunk, None]", policy.generate(request))
    return [chunk async for chunk in stream]
