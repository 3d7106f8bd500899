"""The composition root: the only place that knows which adapter stands behind which port.

Heavy imports (torch) happen inside the functions that need them, so that `onward --help` and the light stages stay
light.
"""

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from core.blobs import FsspecBlobs
from core.clock import SystemClock
from core.errors import ConfigError
from core.ports import EventLog, Renderer
from core.reward_spec import RewardSpec, load_reward_spec
from core.settings import Settings, load_settings
from core.store import SqlStore, open_sqlite
from ingest.spool import SpoolingLog
from ingest.sqlite_log import SqliteEventLog
from onward.layout import SHIPPED_MODEL, SHIPPED_REWARDS, Layout
from serving.weights import BlobWeights

if TYPE_CHECKING:
    from fastapi import FastAPI

    from learner.stage import Learner
    from serving.host import EngineHost
    from serving.local import LocalEngine
    from serving.releases import LoopTimer, ReleaseController, StoreTraffic


class Stage(Protocol):
    """A background part of the product; the runtime calls `step` until told to stop."""

    def step(self, timeout_s: float) -> int:
        """Do what is there to do; wait at most about `timeout_s` for it. Returns how much was done."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Foundation:
    """What every process of one directory shares."""

    layout: Layout
    settings: Settings
    spec: RewardSpec
    clock: SystemClock
    log: SqliteEventLog
    store: SqlStore
    blobs: FsspecBlobs
    weights: BlobWeights

    @property
    def model(self) -> Path:
        return self.settings.serving.model or SHIPPED_MODEL

    def close(self) -> None:
        self.log.close()
        self.store.close()


def open_foundation(root: Path, overrides: Mapping[str, str] | None = None) -> Foundation:
    """Open, or make, a service's directory. Raises ConfigError naming the setting or file at fault.

    `overrides` are settings as environment variables would say them, and win over everything else.
    """
    layout = Layout(root.resolve())
    layout.ensure()
    settings = load_settings(layout.settings, {**os.environ, **(overrides or {})})
    match settings.mode:
        case "embedded":
            log = SqliteEventLog(layout.log, settings.ingest.partitions, settings.ingest.poll_s)
            store = open_sqlite(layout.store)
            blobs = FsspecBlobs(layout.blobs, layout.cache)
    return Foundation(
        layout=layout,
        settings=settings,
        spec=load_reward_spec(_spec_path(layout, settings)),
        clock=SystemClock(),
        log=log,
        store=store,
        blobs=blobs,
        weights=BlobWeights(
            blobs, layout.cache / "weights", settings.serving.anchor_every, settings.serving.cached_versions
        ),
    )


def _spec_path(layout: Layout, settings: Settings) -> Path:
    if settings.scoring.spec is not None:
        return settings.scoring.spec
    return layout.rewards if layout.rewards.exists() else SHIPPED_REWARDS


@dataclass(frozen=True)
class Service:
    """The service process: what the runtime starts, watches and stops."""

    foundation: Foundation
    log: SpoolingLog
    engine: "LocalEngine"
    host: "EngineHost"
    traffic: "StoreTraffic"
    stages: Mapping[str, Stage]


def build_service(foundation: Foundation) -> Service:
    """Everything but the HTTP application. Loads the model; nothing runs yet."""
    _check(foundation)
    from ingest.writer import Writer
    from onward.observer import PolicyObserver
    from scoring.stage import Scorer
    from serving.releases import LoopTimer, StoreTraffic

    settings = foundation.settings
    log = SpoolingLog(foundation.log, foundation.layout.spool, settings.ingest.spool_bytes)
    timer = LoopTimer()
    stages: dict[str, Stage] = {
        "writer": Writer(log, foundation.store, settings.ingest, foundation.clock),
        "scorer": Scorer(log, foundation.store, foundation.spec, settings.scoring, foundation.clock),
        "observer": PolicyObserver(log, timer),
    }
    engine, host = build_local_engine(foundation, log, timer)
    stages["host"] = host
    stages["traffic"] = traffic = StoreTraffic(foundation.store, settings.release)
    if settings.release.controller:
        stages["releases"] = releases = build_releases(foundation, log, host.wake)
        host.on_change = releases.wake
    return Service(foundation=foundation, log=log, engine=engine, host=host, traffic=traffic, stages=stages)


def build_local_engine(foundation: Foundation, log: EventLog, timer: "LoopTimer") -> tuple["LocalEngine", "EngineHost"]:
    """The engine within this process and its host."""
    from learner.probe import probe_of_model
    from serving.host import EngineHost
    from serving.local import LocalEngine
    from serving.releases import CLUSTER, ensure_anchor

    settings, store, clock, weights = foundation.settings, foundation.store, foundation.clock, foundation.weights
    model, record_probe = foundation.model, partial(probe_of_model, device=settings.learner.device)
    anchor = ensure_anchor(
        store, log, weights, foundation.blobs, model, settings.serving.model_name, record_probe, clock
    )
    engine = LocalEngine(settings.serving, foundation.model, weights, anchor)
    engine.on_first_token = timer.first_token
    return engine, EngineHost(engine, store, CLUSTER, clock)


def build_releases(foundation: Foundation, log: EventLog, on_change: Callable[[], None] | None) -> "ReleaseController":
    from serving.model_facts import read_model_facts
    from serving.releases import ReleaseController

    settings = foundation.settings
    return ReleaseController(
        log,
        foundation.store,
        foundation.weights,
        settings.serving,
        settings.release,
        read_model_facts(foundation.model).vocabulary,
        foundation.clock,
        holder=f"{socket.gethostname()}:{os.getpid()}",
        on_change=on_change,
    )


def _check(foundation: Foundation) -> None:
    """What can be refused before anything heavy is loaded."""
    from api.identity import KeyRing

    KeyRing(foundation.settings.api)
    if not foundation.model.is_dir():
        raise ConfigError(f"serving.model: {foundation.model} is no directory")


def build_app(service: Service, readiness: Callable[[], Mapping[str, str]]) -> "FastAPI":
    from api.app import create_app
    from api.live_state import MemoryLiveState
    from api.services import ApiServices
    from serving.rendering import load_renderer

    foundation = service.foundation
    renderer: Renderer = load_renderer(foundation.model)
    return create_app(
        ApiServices(
            settings=foundation.settings.api,
            log=service.log,
            store=foundation.store,
            live_state=MemoryLiveState(),
            policy=service.engine,
            renderer=renderer,
            spec=foundation.spec,
            clock=foundation.clock,
            model_name=foundation.settings.serving.model_name,
            readiness=readiness,
            traffic=service.traffic,
        )
    )


def build_learner(foundation: Foundation) -> "Learner":
    from learner.stage import Learner

    return Learner(
        foundation.log,
        foundation.store,
        foundation.weights,
        foundation.blobs,
        foundation.settings.learner,
        foundation.model,
        foundation.layout.learner,
        foundation.clock,
    )
