"""The building of the service: its parts, and the HTTP application over them."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from core.errors import ConfigError
from core.ports import Announcer, EventLog, LiveState
from core.records.audit_head import HeadFile
from core.stages.stage import Stage
from core.stages.start_steps import say_step
from ingest.spool.spool import SpoolingLog
from onward.directory.layout import BUILT_SITE
from onward.wiring.disk import disk_of
from onward.wiring.engines import Child, Serving, build_serving, child_of, host_children
from onward.wiring.foundation import Foundation
from onward.wiring.stages import STAGES, Neighbours, readers

if TYPE_CHECKING:
    from fastapi import FastAPI

    from onward.wiring.observer import PolicyObserver
    from serving.releases import LoopTimer, StoreTraffic


@dataclass(frozen=True)
class Service:
    """The process that serves HTTP: what the runtime starts, watches and stops."""

    foundation: Foundation
    log: SpoolingLog
    serving: Serving
    traffic: "StoreTraffic"
    live_state: LiveState
    stages: Mapping[str, Stage]
    makers: Mapping[str, Callable[[], Stage]]
    """The makers of those stages that may be made anew when they fail; other parts hold references to the rest."""


def build_service(foundation: Foundation) -> Service:
    """Build everything in one process tree, but the HTTP application. Nothing runs yet."""
    from serving.releases import LoopTimer, StoreTraffic

    settings = foundation.settings
    log = _spooling(foundation, foundation.layout.spool)
    timer = LoopTimer()
    serving = build_serving(foundation, log, timer, is_whole=True)
    traffic = StoreTraffic(foundation.store, settings.serving.cluster, settings.release)
    live_state = build_live_state(foundation)
    beside = Neighbours(log, lambda: live_state, serving)
    rows = [row for row in STAGES if row.is_wanted(settings)]
    makers: dict[str, Callable[[], Stage]] = {
        row.name: partial(row.make, foundation, beside) for row in rows if not row.is_child
    }
    observer = _build_observer(log, timer)
    if "releases" in makers:
        makers["releases"] = partial(_told, makers["releases"], observer)
    stages: dict[str, Stage] = {name: make() for name, make in makers.items()}
    stages |= {"observer": observer, "traffic": traffic, **serving.stages}
    return Service(foundation, log, serving, traffic, live_state, stages, makers)


def children_of(foundation: Foundation) -> list[Child]:
    """Return the processes beside the service, which need nothing of it and start while it loads.

    Raises ConfigError where there can be no service."""
    _check(foundation)
    settings, layout = foundation.settings, foundation.layout
    hosts = host_children(layout, settings) if settings.serving.engine == "sglang" else []
    rows = [row for row in STAGES if row.is_child and row.is_wanted(settings)]
    return [*hosts, *(child_of(layout, row.name, row.command) for row in rows)]


def build_api(foundation: Foundation) -> Service:
    """Build one replica of the API: it answers, logs and routes. Other processes do the rest."""
    from ingest.spool.directories import Orphans, claim
    from serving.releases import LoopTimer, StoreTraffic

    _check(foundation)
    spools = foundation.layout.spools
    timer = LoopTimer()
    with ExitStack() as undo:  # where the store is away
        directory = claim(spools)
        undo.callback(directory.release)
        log = _spooling(foundation, directory.path)
        undo.callback(log.close_spool)
        serving = build_serving(foundation, log, timer, is_whole=False)
        undo.pop_all()
    settings = foundation.settings
    traffic = StoreTraffic(foundation.store, settings.serving.cluster, settings.release)
    stages = {
        "orphans": Orphans(spools, partial(_spooling, foundation)),
        "observer": _build_observer(log, timer),
        "traffic": traffic,
        **serving.stages,
    }
    return Service(foundation, log, serving, traffic, build_live_state(foundation), stages, {})


def _spooling(foundation: Foundation, directory: Path) -> SpoolingLog:
    return SpoolingLog(foundation.log, directory, foundation.settings.ingest.spool_bytes)


def build_live_state(foundation: Foundation) -> LiveState:
    if foundation.is_shared:
        from api.live_state.redis_live_state import RedisLiveState

        return RedisLiveState(foundation.settings.redis)
    from api.live_state.memory import MemoryLiveState

    return MemoryLiveState()


@contextmanager
def announcing(foundation: Foundation) -> Iterator[Announcer | None]:
    """Open what wakes the processes that have the API, for one without it.

    It is None in mode `embedded`, where they look for themselves."""
    if not foundation.is_shared:
        yield None
        return
    from api.live_state.redis_announcer import RedisAnnouncer

    with RedisAnnouncer(foundation.settings.redis) as announcer:
        yield announcer


def _told(make: Callable[[], Stage], observer: "PolicyObserver") -> Stage:
    """Make a controller of releases that the observer wakes, in the place of the one before, if there was one."""
    from serving.releases import ReleaseController

    releases = make()
    assert isinstance(releases, ReleaseController)
    observer.on_version, releases.is_told = releases.wake, True
    return releases


def _build_observer(log: EventLog, timer: "LoopTimer") -> "PolicyObserver":
    from onward.wiring.observer import PolicyObserver

    return PolicyObserver(log, timer)


def _check(foundation: Foundation) -> None:
    """Refuse wrong settings that can be found before anything heavy is loaded."""
    from api.access.identity import KeyRing
    from api.access.stored_keys import known_keys

    KeyRing(foundation.settings.api, known_keys(foundation.store))
    if not foundation.model.is_dir():
        raise ConfigError(f"serving.model: {foundation.model} is no directory")


def build_app(service: Service, readiness: Callable[[], Mapping[str, str]]) -> "FastAPI":
    from api.access.services import ApiServices
    from api.app import create_app
    from serving.rendering import load_renderer, report_renderer

    foundation = service.foundation
    most_tokens = service.serving.policy.context_length
    family = foundation.settings.serving.family
    renderer = load_renderer(foundation.model, most_tokens, family)
    say_step("service", f"read the model's {report_renderer(renderer)}")
    return create_app(
        ApiServices(
            settings=foundation.settings.api,
            log=service.log,
            store=foundation.store,
            live_state=service.live_state,
            policy=service.serving.policy,
            renderer=renderer,
            spec=foundation.spec,
            clock=foundation.clock,
            model_name=foundation.settings.serving.model_name,
            cluster=foundation.settings.serving.cluster,
            readiness=readiness,
            traffic=service.traffic,
            reader=(sys.executable, "-m", "onward.http.body_reader", str(foundation.model), str(most_tokens), family),
            learns=foundation.settings.learner.enabled,
            disk=disk_of(foundation.layout, foundation.clock),
            quotas=foundation.settings.quotas,
            audit=foundation.settings.audit,
            privacy=foundation.settings.privacy,
            head=HeadFile(foundation.layout.audit_head, foundation.settings.audit.key),
            site=BUILT_SITE,
            readers=readers(),
        )
    )
