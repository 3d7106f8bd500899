"""Implements core.ports.Policy over the fleet.

Each request goes to one replica, and to another one when that is lost before its first token."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable
from datetime import datetime

import msgspec

from core import telemetry
from core.errors import EngineUnavailable, InvalidRequest, NotFinite
from core.events import Sampling
from core.grammars.library import Grammars
from core.ids import UNKNOWN, PolicyName, PolicyRef, Version
from core.operations.fleet import NamedVersion
from core.ports import Clock, GenerateRequest, TokenChunk
from core.settings import ServingSettings
from serving.engines.busy import BusyTime
from serving.engines.model_facts import ModelFacts
from serving.engines.requests import check_request, untrainable
from serving.fleet.constrained import Followed
from serving.fleet.remote import RemoteEngines, RemoteGeneration
from serving.fleet.router import choose
from serving.fleet.snapshot import Replica
from serving.fleet.view import FleetView

_SUSPECT_S = 2.0  # a replica that lost a request is asked last for so long
_LOOK_AGAIN_S = 0.05
_MOST_LOSSES = 8  # of one request
_SILENT_S = 10.0  # of a request whose replica is gone, by its host; a connection that breaks is noticed at once
ROUTER_NOT_CAPTURED = "router_not_captured"

FirstToken = Callable[[PolicyRef, datetime], None]


class FleetPolicy:
    """One event loop generates and closes; `notice` may be called by any thread."""

    def __init__(
        self,
        view: FleetView,
        engines: RemoteEngines,
        settings: ServingSettings,
        facts: ModelFacts,
        clock: Clock,
        grammars: Grammars | None = None,
    ) -> None:
        """Route requests to the engines in `view`; `grammars` are those of the model that they serve."""
        self._grammars = grammars
        if grammars is not None:
            grammars.prepare = grammars.matcher  # answers are followed here
        self._view, self._engines = view, engines
        self._settings, self._facts, self._clock = settings, facts, clock
        self._context_length = min(settings.context_length or facts.context_length, facts.context_length)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._under_way: defaultdict[str, set[RemoteGeneration]] = defaultdict(set)  # by replica
        self._low: Counter[str] = Counter()  # of those the ones of low priority, by replica
        self._busy = BusyTime()
        self._suspects: dict[str, float] = {}  # until when, monotonic
        self._newest_heard: dict[PolicyName, Version] = {}
        self.on_first_token: FirstToken | None = None  # of a version, newer than all that spoke before

    @property
    def live_version(self) -> PolicyRef:
        return self._view.snapshot.live or UNKNOWN

    @property
    def context_length(self) -> int:
        return self._context_length

    @property
    def state(self) -> str:
        """`ok`, or what is wrong."""
        replicas = self._view.snapshot.replicas
        if any(replica.answers(None) for replica in replicas):
            return "ok"
        return "no engine's host is there" if not replicas else "no engine serves the live version yet"

    def untrainable(self, sampling: Sampling) -> tuple[str, ...]:
        """Return why turns sampled like this cannot be trained on; a mixture of experts adds a reason.

        Which experts a token went to decides its probability; in low precision a learner that routes for itself sends
        it elsewhere (arXiv 2510.11370), and this engine does not report the routing."""
        reasons = untrainable(sampling)
        is_sensitive = self._facts.is_moe and self._engines.dtype != "float32"
        return (*reasons, ROUTER_NOT_CAPTURED) if is_sensitive else reasons

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        check_request(request, self._facts.vocabulary, self._context_length)
        if request.sampling.grammar is not None and self._grammars is None:
            raise InvalidRequest("this service has no grammars", code="unsupported")
        tried: set[str] = set()
        deadline_s, losses = time.monotonic() + self._settings.fleet.engine_wait_s, 0
        while True:
            replica = await self._choose(request, tried, deadline_s)
            attempt, heard, began_s = self._attempt(replica, request), False, time.monotonic()
            try:
                async for chunk in attempt:
                    heard = heard or bool(chunk.token_ids)
                    yield chunk
                return
            except NotFinite:  # no loss of the replica's: another one computes the same
                raise
            except EngineUnavailable:
                self._suspects[replica.name] = time.monotonic() + _SUSPECT_S
                tried.add(replica.name)
                losses += 1
                deadline_s += time.monotonic() - began_s  # it waited for one that hung, not for one to be there
                if heard or losses == _MOST_LOSSES or time.monotonic() > deadline_s:
                    raise
            finally:
                await attempt.aclose()
            telemetry.ROUTER_RETRIES.inc()

    async def aclose(self) -> None:
        await self._engines.aclose()

    # ------------------------------------------------------------------------------------------ choosing

    async def _choose(self, request: GenerateRequest, tried: set[str], deadline_s: float) -> Replica:
        """Choose a replica; wait when none can answer, or all that can have just failed.

        A request for a certain version does not wait: the caller knows another one. One of low priority waits as long
        as all that can have as many such as they may. Raises EngineUnavailable."""
        while True:
            load = Counter({name: len(generations) for name, generations in self._under_way.items()})
            able = choose(self._view.snapshot, request.version, request.cache_key, load, self._suspected())
            if request.priority == "low" and able:
                able = [replica for replica in able if self._low[replica.name] < self._settings.fleet.low_priority]
                if not able:
                    await asyncio.sleep(_LOOK_AGAIN_S)
                    deadline_s += _LOOK_AGAIN_S
                    continue
            if able and able[0].name not in tried:
                return able[0]
            if request.version is not None:
                raise EngineUnavailable(f"no engine serves version {request.version}")
            if time.monotonic() > deadline_s:
                raise EngineUnavailable(self.state if self.state != "ok" else "every engine lost the request")
            await asyncio.sleep(_LOOK_AGAIN_S)
            tried &= self._suspected()

    def _suspected(self) -> set[str]:
        now_s = time.monotonic()
        self._suspects = {name: until_s for name, until_s in self._suspects.items() if until_s > now_s}
        return set(self._suspects)

    # ------------------------------------------------------------------------------------------ one attempt

    async def _attempt(self, replica: Replica, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        self._loop = asyncio.get_running_loop()
        version = request.version or replica.serving  # if it has a name, the whole answer is of this version
        name = None if version is None else replica.names.get(version)
        named = None if version is None or name is None else NamedVersion(name, version)
        generation, outcome = self._engines.generation(replica.url, request, named), "hung_up"
        stream = generation.stream()
        self._under_way[replica.name].add(generation)  # before anything is awaited: others choose by it
        self._low[replica.name] += request.priority == "low"
        self._busy.one_more()
        try:
            followed = await self._follow(replica, request)
            async for chunk in stream:
                self._heard(chunk, request)
                outcome = chunk.finish_reason or outcome
                if followed is not None:
                    chunk = await followed.take(chunk)
                yield msgspec.structs.replace(chunk, replica=replica.name)
        except EngineUnavailable:
            outcome = "unavailable"
            raise
        except InvalidRequest:
            outcome = "refused"
            raise
        finally:
            self._under_way[replica.name].discard(generation)
            self._low[replica.name] -= request.priority == "low"
            self._busy.one_less()
            telemetry.REPLICA_REQUESTS.labels(replica.name, outcome).inc()
            await stream.aclose()

    async def _follow(self, replica: Replica, request: GenerateRequest) -> Followed | None:
        grammar = request.sampling.grammar
        if grammar is None or self._grammars is None:
            return None
        return await Followed.begin(
            self._grammars, grammar, request.stop_token_ids, replica.llguidance, request.cache_scope
        )

    def _heard(self, chunk: TokenChunk, request: GenerateRequest) -> None:
        telemetry.GENERATED_TOKENS.inc(len(chunk.token_ids))
        if chunk.cached_tokens is not None:
            telemetry.CACHED_TOKENS.inc(chunk.cached_tokens)
            telemetry.PREFILLED_TOKENS.inc(len(request.prompt_token_ids) - chunk.cached_tokens)
        policy, number = chunk.version.policy, chunk.version.version
        if number > self._newest_heard.get(policy, 0) and chunk.confirmed and chunk.token_ids:
            self._newest_heard[policy] = number
            if self.on_first_token is not None:
                self.on_first_token(chunk.version, self._clock.now())

    # ------------------------------------------------------------------------------------------ the fleet changes

    def notice(self) -> None:
        """Note a refreshed view: requests on a replica that is gone wait for its silence only briefly."""
        live = self.live_version
        if live != UNKNOWN:
            telemetry.POLICY_VERSION.set(live.version)
        there = {replica.name for replica in self._view.snapshot.replicas if replica.serving is not None}
        is_lost = any(generations and name not in there for name, generations in list(self._under_way.items()))
        if is_lost and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._give_up_lost, there)

    def _give_up_lost(self, there: set[str]) -> None:
        """Give up requests on replicas that are gone, unless their answers still arrive.

        A host may be wrong, or gone without its engine."""
        silent_since_s = time.monotonic() - _SILENT_S
        for name, generations in self._under_way.items():
            if name not in there:
                for generation in tuple(generations):
                    if generation.heard_s < silent_since_s:
                        generation.give_up()
