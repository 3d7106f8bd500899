"""The in-process engine: the Policy that the API asks and the Engine that the release controller steers."""

import asyncio
import ctypes
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from core import telemetry
from core.errors import Conflict, EngineUnavailable, WeightsError
from core.events import Sampling
from core.grammars.compiling import masks_of
from core.grammars.library import grammars_of
from core.ids import PolicyRef
from core.model.probes import ProbeRecord, get_probe, has_probe
from core.ports import Blobs, GenerateRequest, TokenChunk, Weights, WeightsRef
from core.settings import ServingSettings
from serving.engines.local.llama_forward import Progress
from serving.engines.local.model import Decoder, context_length, load_decoder
from serving.engines.local.probe import Probe, Texts
from serving.engines.local.scheduler import EngineScheduler, FirstToken
from serving.engines.local.sequence import Sequence
from serving.engines.local.stream import Stream
from serving.engines.local.versions import Versions, build_version
from serving.engines.requests import check_request, untrainable

logger = logging.getLogger(__name__)


class LocalEngine:
    """Implements core.ports.Policy and core.ports.Engine. Thread-safe. The anchor serves until the first switch."""

    def __init__(
        self,
        settings: ServingSettings,
        model_dir: Path,
        weights: Weights,
        anchor: WeightsRef,
        *,
        prompts: Texts = (),
        recent: Callable[[], Texts] = tuple,
        blobs: Blobs | None = None,
        record: Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Load the anchor.

        `prompts`: the beginnings of the probe's texts (core.model.probe_prompts); `recent`: recent texts of users that
        may be learned from; `blobs`: where publishers record what versions answer to the probe, None where nobody does;
        `record`: the file that says which model was compared with transformers; `progress`: told of the loading. Raises
        ConfigError naming the setting that does not fit, WeightsError when the anchor cannot be loaded."""
        self._weights, self._blobs = weights, blobs
        self._grammars = grammars_of(model_dir)
        self._grammars.prepare = self._grammars.matcher
        template = load_decoder(model_dir, settings, record)
        base = weights.open(anchor)
        model, _ = build_version(template.model, base.shards, anchor, as_stored=template.is_packed)
        anchor_decoder = template.alike(model, progress)
        self._versions = Versions(anchor_decoder, anchor, base)
        self._vocabulary: int = template.vocabulary
        self._context_length = context_length(template.model.config, settings)
        dtype = settings.local.dtype
        self._probe = Probe(anchor_decoder, self._context_length, prompts, recent, self._recorded, dtype)
        self._scheduler = EngineScheduler(self._versions.decoders, anchor.version, settings.local, self._context_length)
        _give_back()
        telemetry.POLICY_VERSION.set(anchor.version.version)

    @property
    def on_first_token(self) -> FirstToken | None:
        """Called from the engine's thread with a version and the time, at its first token since it went live."""
        return self._scheduler.on_first_token

    @on_first_token.setter
    def on_first_token(self, hook: FirstToken | None) -> None:
        self._scheduler.on_first_token = hook

    def start(self) -> None:
        self._scheduler.start()

    def close(self) -> None:
        """Stop; running requests end with finish_reason `abort`."""
        self._scheduler.close()

    @property
    def state(self) -> str:
        """`ok`, or what is wrong."""
        return "ok" if self._scheduler.is_alive else "its thread ended, see the log"

    # ------------------------------------------------------------------------------------------ Policy

    @property
    def live_version(self) -> PolicyRef:
        return self._scheduler.live

    @property
    def context_length(self) -> int:
        return self._context_length

    def untrainable(self, sampling: Sampling) -> tuple[str, ...]:
        return untrainable(sampling, tells_sets=True)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        """`stop_token_ids` end with `stop` and are part of the answer."""
        check_request(request, self._vocabulary, self._context_length)
        grammar = request.sampling.grammar
        masks = None
        if grammar is not None:
            masks = await masks_of(self._grammars, grammar, request.stop_token_ids, request.cache_scope)
        if request.version is not None:
            await self._pin(request.version)
        stream = Stream()
        sequence = Sequence(request, stream, masks)
        try:
            self._scheduler.submit(sequence)
            chunk = await stream.next()
            yield msgspec.structs.replace(chunk, cached_tokens=sequence.cached_tokens)
            while chunk.finish_reason is None:
                chunk = await stream.next()
                yield chunk
        finally:
            sequence.aborted = True  # no harm once it has ended
            if request.version is not None:
                self._versions.let_go(request.version)

    async def _pin(self, version: PolicyRef) -> None:
        """Take a version until it is let go. An adapter may have to be merged, which is not for the event loop."""
        if version in self._versions.decoders:
            self._take(version)
            return
        taking = asyncio.create_task(asyncio.to_thread(self._take, version))
        try:
            await asyncio.shield(taking)
        except asyncio.CancelledError:  # it goes on
            taking.add_done_callback(lambda done: self._regret(version, done))
            raise

    def _regret(self, version: PolicyRef, done: asyncio.Task[Decoder]) -> None:
        """Let a version go that was taken for somebody who did not wait for it."""
        if done.exception() is None:
            self._versions.let_go(version)

    # ------------------------------------------------------------------------------------------ Engine

    @property
    def name(self) -> str:
        return "local"

    @property
    def url(self) -> str:
        return ""

    @property
    def holds_many(self) -> bool:
        return True

    def serving(self) -> PolicyRef | None:
        return self.live_version if self._scheduler.is_alive else None

    def pinnable(self) -> frozenset[PolicyRef]:
        return frozenset(self._versions.digests)

    def names(self) -> Mapping[PolicyRef, str]:
        return {}  # requests ask for versions by number

    def loaded(self) -> Mapping[PolicyRef, str]:
        return self._versions.digests

    def load(self, ref: WeightsRef) -> None:
        """Load a version on the caller's thread, while decoding goes on."""
        self._versions.load(ref, self._weights.open(ref), self._versions.decoders[self.live_version])
        _give_back()

    def probe(self, version: PolicyRef) -> Mapping[str, float]:
        live = self.live_version
        with self._using(version) as candidate, self._using(live) as serving:
            return self._probe.measure((version, candidate), (live, serving))

    def what_is_wrong(self, version: PolicyRef) -> str | None:
        try:
            return None if self.probe(version)["finite"] == 1 else "its probe is not finite"
        except WeightsError as error:
            return str(error)

    def _recorded(self, version: PolicyRef) -> ProbeRecord | None:
        if self._blobs is None or not has_probe(self._blobs, version):
            return None
        return get_probe(self._blobs, version, self._versions.digests.get(version))

    def switch(self, version: PolicyRef) -> None:
        with self._using(version):
            self._scheduler.between_steps(lambda: self._scheduler.switch(version))
        self._make_room()

    def unload(self, version: PolicyRef) -> None:
        """Unload a version. Raises Conflict while it is live or a request is pinned to it."""
        self._require_held(version)
        self._scheduler.between_steps(lambda: self._unload(version))

    def _unload(self, version: PolicyRef) -> None:
        if version == self.live_version:
            raise Conflict(f"version {version} is live", param="version")
        if users := max(self._scheduler.users(version), self._versions.users(version)):
            raise Conflict(f"version {version} still serves {users} requests", param="version")
        self._versions.drop(version)

    @contextmanager
    def _using(self, version: PolicyRef) -> Iterator[Decoder]:
        decoder = self._take(version)
        try:
            yield decoder
        finally:
            self._versions.let_go(version)

    def _take(self, version: PolicyRef) -> Decoder:
        self._require_held(version)
        return self._versions.take(version, self._versions.decoders[self.live_version], self._make_room)

    def _make_room(self) -> None:
        self._scheduler.between_steps(lambda: self._versions.rest(self._is_needed))

    def _is_needed(self, version: PolicyRef) -> bool:
        return version == self.live_version or self._scheduler.users(version) > 0

    def _require_held(self, version: PolicyRef) -> None:
        if version not in self._versions.digests:
            raise EngineUnavailable(f"version {version} is not loaded")


def _give_back() -> None:
    """Give back to the system what loading needed for a while: glibc would keep holes of it, half a model's size."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
