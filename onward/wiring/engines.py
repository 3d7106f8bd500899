"""The engines: one within the service's process, or a fleet of servers, each beside its host."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from core.errors import ConfigError
from core.model.files import weight_files
from core.model.probe_prompts import probe_prompts
from core.ports import EventLog, Policy, Store, Weights, WeightsRef
from core.settings import Settings
from core.stages.rounds import Rounds
from core.stages.stage import Stage
from core.stages.start_steps import StepProgress, say_step
from onward.directory.addresses import free_port
from onward.directory.layout import SHIPPED_MODEL, Layout
from onward.wiring.foundation import Foundation

if TYPE_CHECKING:
    from core.beside.line import Line
    from core.model.probes import ProbeRecord
    from serving.engines.host import EngineHost
    from serving.engines.sglang.admin import AdapterRoom
    from serving.engines.sglang.engine import SglangEngine
    from serving.fleet import FleetPolicy, FleetView
    from serving.releases import LoopTimer

_LOOK_S = 0.2
_RECENT_TEXTS = 5
API: Final = "api-"
"""How the names of the processes begin that serve HTTP."""


@dataclass(frozen=True)
class Child:
    """A process that the service starts and keeps going; it writes its pid to `ready` once it does its work."""

    name: str
    arguments: tuple[str, ...]
    ready: Path
    serves_users: bool
    """Whether users cannot be served before it is ready."""


def child_of(layout: Layout, name: str, command: str, *arguments: str, serves_users: bool = False) -> Child:
    """Return the child process `onward COMMAND` on the same directory."""
    return Child(name, (command, str(layout.root), "--child", name, *arguments), layout.ready(name), serves_users)


def api_child(layout: Layout, settings: Settings, number: int, *arguments: str) -> Child:
    """Return one process that serves HTTP, on a port that it keeps when it is started again."""
    port = settings.api.port + number if settings.api.port else free_port(settings.api.host)
    return child_of(layout, f"{API}{number + 1}", "api", "--port", str(port), *arguments)


class Serving(Protocol):
    """One way to serve. `stages` run as threads."""

    @property
    def policy(self) -> Policy: ...

    @property
    def stages(self) -> Mapping[str, Stage]: ...

    def states(self) -> Mapping[str, str]:
        """Return further states that must be `ok`; threads and processes may run on while something is wrong."""
        ...

    def targets_changed(self) -> None:
        """Take note that the release controller of this process has changed its targets."""
        ...

    def when_status_changes(self, call: Callable[[], None]) -> None:
        """Call `call` whenever a host of this process has something new to report."""
        ...

    def asking(self) -> AbstractAsyncContextManager[Policy]:
        """Open a policy that answers by version, for requests that are no user's, in an event loop of their own."""
        ...

    def bring_up(self) -> None:
        """Start serving, before the first request is accepted."""
        ...

    async def aclose(self) -> None:
        """Close what requests used, once the last one is over."""
        ...

    def close(self) -> None:
        """Close what the stages used, once they are over."""
        ...


def build_serving(
    foundation: Foundation, log: EventLog, timer: "LoopTimer", *, is_whole: bool, line: "Line | None" = None
) -> Serving:
    """Build the way to serve that the settings choose. Raises ConfigError.

    `is_whole` says that this process sees to the hosts and to the first version, too; `line` leads to the process that
    does where there is one on this machine: an engine within it is asked over that. Raises EngineUnavailable then."""
    match foundation.settings.serving.engine:
        case "local" if foundation.is_shared:
            raise ConfigError('serving.engine: "local" generates within one service; mode distributed takes "sglang"')
        case "local" if line is not None:
            return BesideServing(foundation, line)
        case "local":
            return LocalServing(foundation, log, timer)
        case "sglang":
            if is_whole:
                _let_publish_anchor(foundation)
            return FleetServing(foundation, timer)


class LocalServing:
    """Serving by an engine whose host, like itself, is part of the service."""

    def __init__(self, foundation: Foundation, log: EventLog, timer: "LoopTimer") -> None:
        comparison = _compare_first(foundation)
        from serving.engines.host import EngineHost
        from serving.engines.local import LocalEngine
        from serving.rendering import load_renderer

        say_step("service", "imported the engine")
        anchor = publish_anchor(foundation, log, makes_probe=False)
        say_step("service", "found the given model published")
        if comparison is not None:
            comparison.wait()  # where it found nothing, the engine compares by itself, and says what is wrong
            say_step("service", "compared the engine with transformers")
        self.policy = LocalEngine(
            foundation.settings.serving,
            foundation.model,
            foundation.weights,
            anchor,
            prompts=probe_prompts(load_renderer(foundation.model)),
            recent=partial(_recent_texts, foundation.store),
            blobs=foundation.blobs,
            record=foundation.layout.model_check,
            progress=StepProgress("service", "loads the model", _size_of(foundation.model)),
        )
        say_step("service", "loaded the model")
        self.policy.on_first_token = timer.first_token
        self._host = EngineHost(self.policy, foundation.store, foundation.settings.serving.cluster, foundation.clock)
        self.stages: Mapping[str, Stage] = {"host": self._host}

    def states(self) -> Mapping[str, str]:
        return {"engine": self.policy.state, "host": self._host.state}

    def targets_changed(self) -> None:
        self._host.wake()

    def when_status_changes(self, call: Callable[[], None]) -> None:
        self._host.on_change = call

    def asking(self) -> AbstractAsyncContextManager[Policy]:
        return nullcontext[Policy](self.policy)

    def bring_up(self) -> None:
        """Start the engine, and wait until it serves the live version."""
        from serving.engines.host import bring_up

        self.policy.start()
        bring_up(self._host)

    async def aclose(self) -> None:
        pass

    def close(self) -> None:
        self.policy.close()


def _size_of(model: Path) -> int:
    return sum(file.stat().st_size for file in weight_files(model))


def _compare_first(foundation: Foundation) -> "subprocess.Popen[bytes] | None":
    """Begin to compare the engine with transformers, the first time: importing these takes as long as all the rest."""
    record, settings = foundation.layout.model_check, foundation.settings.serving
    if record.exists():
        return None
    needed = settings.model_dump_json(include={"local", "context_length"})
    module = "serving.engines.local.modules.comparison"
    return subprocess.Popen([sys.executable, "-m", module, str(foundation.model), needed, str(record)])


def _recent_texts(store: Store) -> list[tuple[int, ...]]:
    with store.look() as view:
        return view.turns.newest_texts(_RECENT_TEXTS)


class BesideServing:
    """Serving by the engine of the service's first process, which also steers it."""

    def __init__(self, foundation: Foundation, line: "Line") -> None:
        from core.grammars.library import grammars_of
        from serving.engines.beside.policy import BesidePolicy

        self.policy = BesidePolicy(line, foundation.layout.line)
        grammars_of(foundation.model).prepare = self.policy.prepare
        self.stages: Mapping[str, Stage] = {}

    def states(self) -> Mapping[str, str]:
        return {"engine": self.policy.state}

    def targets_changed(self) -> None:
        """Do nothing: the controller is in the first process."""

    def when_status_changes(self, call: Callable[[], None]) -> None:
        """Do nothing: the host is in the first process."""

    def asking(self) -> AbstractAsyncContextManager[Policy]:
        return nullcontext[Policy](self.policy)

    def bring_up(self) -> None:
        """Do nothing: the first process did."""

    async def aclose(self) -> None:
        await self.policy.aclose()

    def close(self) -> None:
        pass


class FleetServing:
    """Serving by servers elsewhere, found in the store; this process only routes."""

    def __init__(self, foundation: Foundation, timer: "LoopTimer") -> None:
        self._foundation = foundation
        self._view, self.policy = _route(foundation)
        self.policy.on_first_token = timer.first_token
        self.policy.notice()
        self.stages: Mapping[str, Stage] = {"fleet": self._view}

    def states(self) -> Mapping[str, str]:
        return {"engine": self.policy.state, "store": self._view.store_state}

    def targets_changed(self) -> None:
        self._view.wake()

    def when_status_changes(self, call: Callable[[], None]) -> None:
        """Do nothing: hosts are processes of their own, so the controller looks for itself."""

    def asking(self) -> AbstractAsyncContextManager[Policy]:
        return ask_fleet(self._foundation)

    def bring_up(self) -> None:
        """Do nothing: the hosts bring up their engines, and `readiness` waits for them."""

    async def aclose(self) -> None:
        await self.policy.aclose()

    def close(self) -> None:
        pass


def _route(foundation: Foundation) -> tuple["FleetView", "FleetPolicy"]:
    from core.grammars.library import grammars_of
    from serving.engines.model_facts import read_model_facts
    from serving.engines.sglang.generation.policy import SglangConnections
    from serving.fleet import FleetPolicy, FleetView

    settings = foundation.settings.serving
    view = FleetView(foundation.store, settings.cluster, foundation.clock, settings.fleet.heartbeat_timeout_s)
    engines = SglangConnections(settings.sglang)
    facts, grammars = read_model_facts(foundation.model), grammars_of(foundation.model)
    policy = FleetPolicy(view, engines, settings, facts, foundation.clock, grammars)
    view.on_look = policy.notice
    return view, policy


@asynccontextmanager
async def ask_fleet(foundation: Foundation) -> AsyncIterator[Policy]:
    """Open a policy over the fleet, used from the running event loop, whatever else this process does.

    Raises StoreUnavailable."""
    view, policy = await asyncio.to_thread(_route, foundation)
    rounds = Rounds("fleet", view)

    async def look() -> None:
        while True:
            await asyncio.to_thread(rounds.step, _LOOK_S)

    looking = asyncio.create_task(look())
    try:
        yield policy
    finally:
        looking.cancel()
        await policy.aclose()


def host_children(layout: Layout, settings: Settings) -> list[Child]:
    servers = settings.serving.sglang
    urls = servers.urls or (None,) * servers.replicas
    children = []
    for number, url in enumerate(urls, 1):
        name = f"engine-{number}"
        there = () if url is None else ("--url", url)
        children.append(child_of(layout, name, "serve", "--name", name, *there, serves_users=True))
    return children


def build_host(
    foundation: Foundation, name: str, url: str | None, weights: Weights, shares: str
) -> tuple["SglangEngine", "EngineHost"]:
    """Build one SGLang server's engine and host, which opens `weights` and gives them to others at `shares`.

    Raises ConfigError naming the setting at fault."""
    from core.grammars.library import VERSION
    from serving.engines.host import EngineHost
    from serving.engines.model_facts import read_model_facts
    from serving.engines.sglang.engine import SglangEngine

    settings, directory = foundation.settings.serving.sglang, foundation.layout.host(name)
    read_model_facts(foundation.model)
    room = learned_adapters(foundation.settings)
    engine = SglangEngine(name, settings, weights, foundation.blobs, foundation.model, directory, url=url, room=room)
    cluster = foundation.settings.serving.cluster
    llguidance = VERSION if url is None else settings.llguidance  # one that is started has ours, or is refused
    return engine, EngineHost(engine, foundation.store, cluster, foundation.clock, shares=shares, llguidance=llguidance)


def learned_adapters(settings: Settings) -> "AdapterRoom | None":
    """Return the adapters that the settings' learner makes, which servers are to take; None where it makes none."""
    from serving.engines.sglang.adapters import room_for

    return room_for(settings.serving.model or SHIPPED_MODEL, settings.learner.lora.rank, settings.learner.lora.targets)


def engine_arguments(settings: Settings) -> list[str]:
    """Return the arguments with which an SGLang server serves as the settings say, whoever starts it.

    Raises ConfigError for a model that cannot be read."""
    from serving.engines.model_facts import read_model_facts
    from serving.engines.sglang.process import server_arguments

    model = (settings.serving.model or SHIPPED_MODEL).absolute()
    read_model_facts(model)
    return server_arguments(settings.serving.sglang, model, learned_adapters(settings))


def publish_anchor(foundation: Foundation, log: EventLog, *, makes_probe: bool = True) -> WeightsRef:
    """Publish the given model as the anchor, if that was not done yet.

    `makes_probe`: compute the model's probe the first time, which later versions' are made of, and other computations
    are compared with; that needs torch. Who publishes versions needs it first."""
    from serving.releases import ensure_anchor
    from serving.rendering import load_renderer

    settings = foundation.settings

    def probe(model: Path) -> "ProbeRecord":
        from learner.versions.probe import probe_of_model  # takes seconds to import

        return probe_of_model(model, settings.learner.device, probe_prompts(load_renderer(model)))

    return ensure_anchor(
        foundation.store,
        log,
        foundation.weights,
        foundation.blobs,
        foundation.model,
        settings.serving.model_name,
        settings.serving.cluster,
        probe if makes_probe else None,
        foundation.clock,
    )


def _let_publish_anchor(foundation: Foundation) -> None:
    """Have another process publish the anchor, so that this one stays light."""
    with foundation.store.look() as view:
        if view.releases.live(foundation.settings.serving.cluster) is not None:
            return
    command = [sys.executable, "-m", "onward", "anchor", str(foundation.layout.root)]
    done = subprocess.run(
        command, env={**os.environ, **foundation.overrides}, stderr=subprocess.PIPE, text=True, check=False
    )
    if done.returncode != 0:
        raise ConfigError(f"the given model could not be published: {done.stderr.strip()[-2000:]}")
