"""The building of the service: its parts, and the HTTP application over them."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from core.errors import ConfigError
from core.ports import Announcer, EventLog, LiveState
from core.records.audit_head import HeadFile
from core.settings import Settings
from core.settings.processes import bounds_of_each
from core.stages.stage import Stage
from core.stages.start_steps import say_step
from ingest.spool.spool import SpoolingLog
from onward.directory.layout import BUILT_SITE
from onward.wiring.disk import disk_of
from onward.wiring.engines import Child, Serving, api_child, build_serving, child_of, host_children
from onward.wiring.foundation import Foundation
from onward.wiring.stages import STAGES, Neighbours, readers

if TYPE_CHECKING:
    from fastapi import FastAPI

    from core.beside.line import Line
    from core.beside.listener import Listener
    from onward.wiring.observer import PolicyObserver
    from serving.releases import LoopTimer, StoreTraffic


@dataclass(frozen=True)
class HttpService:
    """The process that serves HTTP: what the runtime starts, watches and stops."""

    foundation: Foundation
    log: SpoolingLog
    serving: Serving
    traffic: "StoreTraffic"
    live_state: LiveState
    stages: Mapping[str, Stage]
    makers: Mapping[str, Callable[[], Stage]]
    """The makers of those stages that may be made anew when they fail; other parts hold references to the rest."""
    listener: "Listener | None" = None
    """Answers the other processes of this machine that serve HTTP; None: there are none."""
    line: "Line | None" = None
    """Of such a process, to the first one."""


def build_service(foundation: Foundation) -> HttpService:
    """Build everything in one process tree, but the HTTP application. Nothing runs yet."""
    from serving.releases import LoopTimer, StoreTraffic

    settings = foundation.settings
    log = _spooling(foundation, foundation.layout.spool)
    timer = LoopTimer(since=datetime.now(UTC))
    serving = build_serving(foundation, log, timer, is_whole=True)
    traffic = StoreTraffic(foundation.store, settings.serving.cluster, settings.release)
    live_state = build_live_state(foundation)
    listener = build_listener(foundation, serving, live_state) if _has_apis_beside(settings) else None
    beside = Neighbours(log, lambda: live_state, serving)
    rows = [row for row in STAGES if row.is_wanted(settings)]
    makers: dict[str, Callable[[], Stage]] = {
        row.name: partial(row.make, foundation, beside) for row in rows if not row.is_child
    }
    observer = _build_observer(foundation, log, timer)
    if "releases" in makers:
        makers["releases"] = partial(_told, makers["releases"], observer)
    stages: dict[str, Stage] = {name: make() for name, make in makers.items()}
    stages |= {"observer": observer, "traffic": traffic, **serving.stages}
    spools = foundation.layout.spools
    if listener is not None or spools.exists():  # of processes that there no longer are
        stages["orphans"] = _orphans(foundation)
    return HttpService(foundation, log, serving, traffic, live_state, stages, makers, listener)


def _has_apis_beside(settings: Settings) -> bool:
    return settings.processes.api > 1


def _orphans(foundation: Foundation) -> Stage:
    from ingest.spool.directories import Orphans

    foundation.layout.spools.mkdir(exist_ok=True)
    return Orphans(foundation.layout.spools, partial(_spooling, foundation))


def build_listener(foundation: Foundation, serving: Serving, live_state: LiveState) -> "Listener":
    """Let the processes that connect use this one's engine and live state."""
    from api.live_state.beside.answers import answer_for as answer_live_state
    from api.live_state.memory import MemoryLiveState
    from core.beside.listener import Listener
    from core.grammars.library import grammars_of
    from serving.engines.beside.answers import answer_for as answer_engine

    assert isinstance(live_state, MemoryLiveState), "where live state is shared otherwise, so is all the rest"
    listener = Listener()
    answer_live_state(listener, live_state)
    grammars = grammars_of(foundation.model)
    answer_engine(listener, serving.policy, lambda: serving.states()["engine"], grammars)
    return listener


def children_of(foundation: Foundation) -> list[Child]:
    """Return the processes beside the service, which need nothing of it and start while it loads.

    Raises ConfigError where there can be no service."""
    _check(foundation)
    settings, layout = foundation.settings, foundation.layout
    hosts = host_children(layout, settings) if settings.serving.engine == "sglang" else []
    rows = [row for row in STAGES if row.is_child and row.is_wanted(settings)]
    stages = [child_of(layout, row.name, row.command) for row in rows]
    return [
        *hosts,
        *stages,
        *(api_child(layout, settings, number, "--beside") for number in range(1, settings.processes.api)),
    ]


def build_api(foundation: Foundation, *, is_beside: bool = False) -> HttpService:
    """Build one replica of the API: it answers, logs and routes. Other processes do the rest.

    `is_beside`: it shares the engine and the live state of the service's first process, upon a line to it. Raises
    EngineUnavailable while that does not answer yet, StoreUnavailable."""
    from core.beside.line import Line
    from ingest.spool.directories import claim
    from serving.releases import LoopTimer, StoreTraffic

    if is_beside and foundation.is_shared:
        raise ConfigError("--beside: where processes share Redis, none has a first one: leave it out")
    _check(foundation)
    spools = foundation.layout.spools
    timer = LoopTimer(since=datetime.now(UTC))
    line = Line(foundation.layout.line) if is_beside else None
    with ExitStack() as undo:  # where the store is away, or the first process
        directory = claim(spools)
        undo.callback(directory.release)
        log = _spooling(foundation, directory.path)
        undo.callback(log.close_spool)
        serving = build_serving(foundation, log, timer, is_whole=False, line=line)
        undo.pop_all()
    settings = foundation.settings
    traffic = StoreTraffic(foundation.store, settings.serving.cluster, settings.release)
    stages = {
        "orphans": _orphans(foundation),
        "observer": _build_observer(foundation, log, timer),
        "traffic": traffic,
        **serving.stages,
    }
    live_state = build_live_state(foundation, line)
    return HttpService(foundation, log, serving, traffic, live_state, stages, {}, line=line)


def _spooling(foundation: Foundation, directory: Path) -> SpoolingLog:
    return SpoolingLog(foundation.log, directory, foundation.settings.ingest.spool_bytes)


def build_live_state(foundation: Foundation, line: "Line | None" = None) -> LiveState:
    if line is not None:
        from api.live_state.beside.live_state import BesideLiveState

        return BesideLiveState(line)
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


def _build_observer(foundation: Foundation, log: EventLog, timer: "LoopTimer") -> "PolicyObserver":
    from onward.wiring.observer import PolicyObserver

    return PolicyObserver(log, timer, foundation.store, foundation.settings.serving.cluster)


def _check(foundation: Foundation) -> None:
    """Refuse wrong settings that can be found before anything heavy is loaded."""
    from api.access.identity import KeyRing
    from api.access.stored_keys import known_keys

    KeyRing(foundation.settings.api, known_keys(foundation.store))
    if not foundation.model.is_dir():
        raise ConfigError(f"serving.model: {foundation.model} is no directory")


def build_app(service: HttpService, readiness: Callable[[], Mapping[str, str]]) -> "FastAPI":
    from api.access.services import ApiServices
    from api.app import create_app
    from learner.versions.exclusion_orders import OrdersOfExclusions
    from onward.wiring.suites.decided import drafts_of
    from serving.rendering import load_renderer, report_renderer

    foundation = service.foundation
    most_tokens = service.serving.policy.context_length
    family = foundation.settings.serving.family
    renderer = load_renderer(foundation.model, most_tokens, family)
    say_step("service", f"read the model's {report_renderer(renderer)}")
    return create_app(
        ApiServices(
            settings=bounds_of_each(foundation.settings.api, foundation.settings.processes.api),
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
            user_share=foundation.settings.learner.users.max_share,
            disk=disk_of(foundation.layout, foundation.clock),
            quotas=foundation.settings.quotas,
            audit=foundation.settings.audit,
            privacy=foundation.settings.privacy,
            head=HeadFile(foundation.layout.audit_head, foundation.settings.audit.key),
            drafts=drafts_of(foundation),
            exclusions=OrdersOfExclusions(
                foundation.store, foundation.blobs, foundation.settings.serving.cluster, foundation.clock
            ),
            site=BUILT_SITE,
            readers=readers(),
        )
    )
