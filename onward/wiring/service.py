"""The service's parts, and the stages that may also run alone."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from core.errors import ConfigError
from core.ports import Announcer, EventLog, LiveState, Renderer
from core.settings import LearnerSettings
from ingest.spool.spool import SpoolingLog
from onward.directory.layout import BUILT_SITE
from onward.wiring.engines import Child, Serving, ask_fleet, build_serving, publish_anchor
from onward.wiring.foundation import Foundation, Stage, holder

if TYPE_CHECKING:
    from fastapi import FastAPI

    from learner.model.ranks import Ranks
    from learner.stage import Learner
    from serving.releases import LoopTimer, ReleaseController, StoreTraffic
    from serving.releases.cases import CaseGate


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
    """Of those stages that may be made anew when they fail; others know the rest as they are."""
    children: tuple[Child, ...]


def build_service(foundation: Foundation) -> Service:
    """Everything in one process tree, but the HTTP application. Nothing runs yet."""
    from serving.releases import LoopTimer, StoreTraffic

    _check(foundation)
    settings, layout = foundation.settings, foundation.layout
    log = _spooling(foundation, layout.spool)
    timer = LoopTimer()
    serving = build_serving(foundation, log, timer, is_whole=True)
    traffic = StoreTraffic(foundation.store, settings.release)
    live_state = build_live_state(foundation)
    makers: dict[str, Callable[[], Stage]] = {
        "writer": partial(build_writer, foundation, log),
        "scorer": partial(build_scorer, foundation, log, live_state),
    }
    if settings.monitors.enabled:
        makers["monitors"] = partial(build_monitors, foundation, log)
    if settings.judge.enabled:
        makers["judge"] = partial(build_judge, foundation, log)
    if settings.release.controller:
        makers["releases"] = partial(_build_heard_releases, foundation, log, serving)
    stages: dict[str, Stage] = {name: make() for name, make in makers.items()}
    stages |= {"observer": _build_observer(log, timer), "traffic": traffic, **serving.stages}
    children = [*serving.children]
    if settings.learner.enabled:
        learner = ("learn", str(layout.root), "--child", "learner")
        children.append(Child("learner", learner, layout.ready("learner")))
    if settings.archive.has_work:
        archive = ("archive", str(layout.root), "--child", "archive")
        children.append(Child("archive", archive, layout.ready("archive")))
    return Service(foundation, log, serving, traffic, live_state, stages, makers, tuple(children))


def build_api(foundation: Foundation) -> Service:
    """One replica of the API: it answers, logs and routes. Others write, score, learn, host and decide."""
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
    traffic = StoreTraffic(foundation.store, foundation.settings.release)
    stages = {
        "orphans": Orphans(spools, partial(_spooling, foundation)),
        "observer": _build_observer(log, timer),
        "traffic": traffic,
        **serving.stages,
    }
    return Service(foundation, log, serving, traffic, build_live_state(foundation), stages, {}, ())


def _spooling(foundation: Foundation, directory: Path) -> SpoolingLog:
    return SpoolingLog(foundation.log, directory, foundation.settings.ingest.spool_bytes)


def build_writer(foundation: Foundation, log: EventLog) -> Stage:
    from ingest.writer import Writer

    settings = foundation.settings
    return Writer(log, foundation.store, settings.ingest, foundation.clock, settings.stages.record_attempts)


def build_scorer(foundation: Foundation, log: EventLog, announcer: Announcer | None) -> Stage:
    from scoring.stage import Scorer

    settings = foundation.settings
    return Scorer(
        log,
        foundation.store,
        foundation.spec,
        settings.scoring,
        foundation.clock,
        announcer,
        settings.stages.record_attempts,
    )


def build_monitors(foundation: Foundation, log: EventLog) -> Stage:
    """Where other machines may run them, too, only the holder of the lease watches; another stands by. Raises
    ConfigError."""
    from onward.wiring.leased import Leased
    from scoring.watching import Watcher

    settings, store, clock = foundation.settings, foundation.store, foundation.clock

    def make() -> Watcher:
        return Watcher(log, store, foundation.spec, settings.monitors, clock, settings.stages.record_attempts)

    if not foundation.is_shared:
        return make()
    return Leased("monitors", holder(), store, clock, settings.release.lease_s, make)


def build_judge(foundation: Foundation, log: EventLog) -> Stage:
    """Leased as the monitors are. Raises ConfigError naming the setting at fault."""
    from onward.wiring.leased import Leased
    from scoring.judge import Judge

    settings, store, clock = foundation.settings, foundation.store, foundation.clock
    if not settings.judge.enabled:
        raise ConfigError("judge.enabled is false: there is nothing to do")

    def make() -> Judge:
        return Judge(log, store, foundation.spec, settings.judge, clock, settings.stages.record_attempts)

    if not foundation.is_shared:
        return make()
    return Leased("judge", holder(), store, clock, settings.release.lease_s, make)


def build_live_state(foundation: Foundation) -> LiveState:
    if foundation.is_shared:
        from api.live_state.redis_live_state import RedisLiveState

        return RedisLiveState(foundation.settings.redis)
    from api.live_state.memory import MemoryLiveState

    return MemoryLiveState()


@contextmanager
def announcing(foundation: Foundation) -> Iterator[Announcer | None]:
    """For a process without the API: how it wakes those that have it. None: they look for themselves."""
    if not foundation.is_shared:
        yield None
        return
    from api.live_state.redis_announcer import RedisAnnouncer

    with RedisAnnouncer(foundation.settings.redis) as announcer:
        yield announcer


def _build_observer(log: EventLog, timer: "LoopTimer") -> Stage:
    from onward.wiring.observer import PolicyObserver

    return PolicyObserver(log, timer)


def build_releases(foundation: Foundation, log: EventLog, serving: Serving | None) -> "ReleaseController":
    """`serving`: of the same process. Raises ConfigError naming the setting, or the file and the case, at fault."""
    from serving.engines.model_facts import read_model_facts
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
        holder=holder(),
        on_change=None if serving is None else serving.targets_changed,
        cases=_build_cases(foundation, serving),
    )


def _build_heard_releases(foundation: Foundation, log: EventLog, serving: Serving) -> Stage:
    """Of the process that has the host, which wakes it."""
    releases = build_releases(foundation, log, serving)
    serving.when_status_changes(releases.wake)
    return releases


def _build_cases(foundation: Foundation, serving: Serving | None) -> "CaseGate | None":
    from serving.evals.cases import load_suite
    from serving.releases.cases import CaseGate
    from serving.rendering import load_renderer

    settings = foundation.settings
    if settings.release.evals.suite is None:
        return None
    if serving is None and settings.serving.engine == "local":
        raise ConfigError("release.evals.suite: an engine within the service is asked by the controller within it")
    ask = partial(ask_fleet, foundation) if serving is None else serving.asking
    suite, renderer = load_suite(settings.release.evals.suite), load_renderer(foundation.model)
    return CaseGate(suite, ask, renderer, settings.release.evals, foundation.clock)


def _check(foundation: Foundation) -> None:
    """What can be refused before anything heavy is loaded."""
    from api.access.identity import KeyRing

    KeyRing(foundation.settings.api)
    if not foundation.model.is_dir():
        raise ConfigError(f"serving.model: {foundation.model} is no directory")


def build_app(service: Service, readiness: Callable[[], Mapping[str, str]]) -> "FastAPI":
    from api.access.services import ApiServices
    from api.app import create_app
    from serving.rendering import load_renderer

    foundation = service.foundation
    most_tokens = service.serving.policy.context_length
    renderer: Renderer = load_renderer(foundation.model, most_tokens)
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
            readiness=readiness,
            traffic=service.traffic,
            reader=(sys.executable, "-m", "onward.http.body_reader", str(foundation.model), str(most_tokens)),
            site=BUILT_SITE,
        )
    )


def build_learner(foundation: Foundation, ranks: "Ranks | None" = None) -> Stage:
    """`ranks`: processes that follow this one. Where other machines may run one, too, only the holder of the lease
    learns; another stands by."""
    from onward.wiring.leased import Leased

    if not foundation.is_shared:
        return _make_learner(foundation, ranks)

    def make() -> Stage:
        publish_anchor(foundation, foundation.log)
        return _make_learner(foundation, ranks)

    return Leased("learner", holder(), foundation.store, foundation.clock, foundation.settings.release.lease_s, make)


def _make_learner(foundation: Foundation, ranks: "Ranks | None") -> "Learner":
    from learner.model.ranks import ALONE
    from learner.stage import Learner
    from serving.rendering import load_renderer

    return Learner(
        foundation.log,
        foundation.store,
        foundation.weights,
        foundation.blobs,
        foundation.settings.learner,
        foundation.model,
        foundation.layout.learner,
        foundation.clock,
        solutions_kept_out(foundation.settings.learner),
        load_renderer(foundation.model).tokenizer_digest,
        ranks or ALONE,
        foundation.settings.stages.record_attempts,
    )


def solutions_kept_out(settings: LearnerSettings) -> dict[str, str]:
    """Of the suite's cases, by name. Raises ConfigError."""
    from serving.evals.cases import load_suite

    return {} if settings.admission.keep_out is None else load_suite(settings.admission.keep_out).solutions()
