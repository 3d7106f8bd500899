"""The service's parts, and the stages that may also run alone."""

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.errors import ConfigError
from core.ports import EventLog, Renderer
from ingest.spool import SpoolingLog
from onward.wiring.engines import Child, Serving, build_serving
from onward.wiring.foundation import Foundation, Stage

if TYPE_CHECKING:
    from fastapi import FastAPI

    from learner.stage import Learner
    from serving.releases import ReleaseController, StoreTraffic


@dataclass(frozen=True)
class Service:
    """The service process: what the runtime starts, watches and stops."""

    foundation: Foundation
    log: SpoolingLog
    serving: Serving
    traffic: "StoreTraffic"
    stages: Mapping[str, Stage]
    children: tuple[Child, ...]


def build_service(foundation: Foundation) -> Service:
    """Everything but the HTTP application. Nothing runs yet."""
    _check(foundation)
    from ingest.writer import Writer
    from onward.observer import PolicyObserver
    from scoring.stage import Scorer
    from serving.releases import LoopTimer, StoreTraffic

    settings = foundation.settings
    log = SpoolingLog(foundation.log, foundation.layout.spool, settings.ingest.spool_bytes)
    timer = LoopTimer()
    serving = build_serving(foundation, log, timer)
    traffic = StoreTraffic(foundation.store, settings.release)
    stages: dict[str, Stage] = {
        "writer": Writer(log, foundation.store, settings.ingest, foundation.clock),
        "scorer": Scorer(log, foundation.store, foundation.spec, settings.scoring, foundation.clock),
        "observer": PolicyObserver(log, timer),
        "traffic": traffic,
        **serving.stages,
    }
    if settings.release.controller:
        stages["releases"] = releases = build_releases(foundation, log, serving.targets_changed)
        serving.when_status_changes(releases.wake)
    children = [*serving.children]
    if settings.learner.enabled:
        layout = foundation.layout
        children.append(Child("learner", ("learn", str(layout.root)), layout.learner_ready))
    return Service(foundation, log, serving, traffic, stages, tuple(children))


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
            policy=service.serving.policy,
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
