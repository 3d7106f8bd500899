"""The host's side of one SGLang server that serves many policies: implements core.ports.Engine.

The server has the given model, and beside it an adapter for each version, loaded by name (`acme@7`). A request names
the version that answers it, so a switch changes what routers are told and nothing in the server: what runs ends under
the version that it began with. A version is held once the server has its adapter and its probe has answered as was
recorded at publication. A server that ended, or was started again behind our back, holds nothing: the host loads all
that is wanted once more.
"""

import logging
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from core.errors import Conflict, EngineUnavailable, WeightsError
from core.ids import ANCHOR, BASE, PolicyName, PolicyRef
from core.model.probes import figures, get_probe
from core.model.weights_digest import digest_of_shards
from core.ports import Blobs, Opened, Weights, WeightsRef
from core.settings import LoraSettings, SglangSettings
from serving.engines.sglang.adapters.arguments import (
    GIVEN,
    adapter_arguments,
    adapter_of,
    check_takes_adapters,
    targets_of,
)
from serving.engines.sglang.adapters.draining import Draining, leftovers
from serving.engines.sglang.adapters.files import AdapterFiles, HeldAdapter
from serving.engines.sglang.checksums import covers, disagreement
from serving.engines.sglang.server import Server
from serving.engines.sglang.verified_versions import VerifiedVersions

_ASK_AGAIN_S = 0.05
LABEL = str(ANCHOR)  # of the server's weights, which never change
logger = logging.getLogger(__name__)


class AdapterEngine:
    """One thread switches, unloads and asks what serves; another may load."""

    holds_many = True

    def __init__(
        self,
        name: str,
        settings: SglangSettings,
        lora: LoraSettings,
        weights: Weights,
        blobs: Blobs,
        model: Path,
        directory: Path,
        *,
        url: str | None,
    ) -> None:
        """Use the server at `url`, or, for None, start one, and start it again when it dies.

        Raises ConfigError naming the setting."""
        self._name, self._settings, self._lora = name, settings, lora
        self._weights, self._blobs = weights, blobs
        self._server = Server(settings, blobs, directory, url, adapter_arguments(settings, lora))
        self._admin, self._process = self._server.admin, self._server.process
        shards = sorted(model.glob("*.safetensors"))
        given = Opened(digest_of_shards(shards), shards)
        shelf = VerifiedVersions(directory / "versions", model, settings.dtype)
        self._given = shelf.put(WeightsRef(version=ANCHOR, digest=given.digest, path=str(model)), given)
        self._files = AdapterFiles(directory / "adapters", given, lora.rank)
        self._draining = Draining(settings.timeouts.drain_s)
        self._state = threading.Lock()  # guards what follows
        self._held: dict[PolicyRef, HeldAdapter] = {}
        self._serving: dict[PolicyName, PolicyRef] = {}
        self._is_up = False
        self._starts = 0  # of the server, as far as they were noticed
        self._asked_s = self._generated_s = float("-inf")

    @property
    def name(self) -> str:
        return self._name

    @property
    def url(self) -> str:
        return self._server.url

    # ------------------------------------------------------------------------------------------ what serves

    def serving(self, policy: PolicyName = BASE) -> PolicyRef | None:
        """Asked of the server, at most twenty times a second for all policies together."""
        now_s = time.monotonic()
        if now_s - self._asked_s > _ASK_AGAIN_S:
            self._asked_s = now_s
            self._look(now_s)
        with self._state:
            return self._serving.get(policy)

    def pinnable(self) -> frozenset[PolicyRef]:
        return frozenset(self.loaded())

    def loaded(self) -> Mapping[PolicyRef, str]:
        with self._state:
            return {version: held.ref.digest for version, held in self._held.items()}

    def _look(self, now_s: float) -> None:
        """Notice a server that is gone, hangs or is another, and start one that is ours and ended."""
        if self._is_up and not self._is_as_left(now_s):
            logger.warning("%s: the server is unavailable, or has been started again", self._name)
            self._lost()
        process = self._process
        if process is not None and not process.is_alive and not process.is_starting:
            process.start(self._given.directory, ANCHOR)

    def _is_as_left(self, now_s: float) -> bool:
        """Return whether the server has all that it was given; now and then also whether it still computes."""
        process = self._process
        if process is not None and not process.is_alive:
            return False
        with self._state:
            wanted = {GIVEN, *map(adapter_of, self._held)}
        try:
            if not wanted <= self._admin.adapters():
                return False
            if now_s - self._generated_s > self._settings.timeouts.health_every_s:
                self._generated_s = now_s
                if self._admin.label() != LABEL:
                    return False
                if not self._admin.generates(self._settings.timeouts.health_s):
                    self._server.end()
                    return False
        except (EngineUnavailable, WeightsError):
            return False
        return True

    def _lost(self) -> None:
        with self._state:
            held, self._held, self._serving = self._held, {}, {}
            self._is_up = False
            self._starts += 1
        for each in held.values():
            self._files.drop(each)
        self._draining.forget()

    # ------------------------------------------------------------------------------------------ versions

    def load(self, ref: WeightsRef) -> None:
        """Verify a version, have the server load its adapter, and probe it.

        Raises WeightsError for one that does not fit or answers as another, EngineUnavailable while the server starts,
        or has as many adapters as `serving.sglang.adapters.loaded` allows."""
        self._bring_up()
        starts = self._starts
        held = self._files.put(ref, self._weights.open(ref))
        with ExitStack() as undo:
            undo.callback(self._files.drop, held)
            if held.directory is not None:
                self._load_adapter(str(ref.version), held.directory)
                undo.callback(self._forget, str(ref.version))
            wrong = self._what_is_wrong(held)
            if wrong is not None:
                raise WeightsError(f"version {ref.version}: what the server computes with it is another: {wrong}")
            with self._state:
                if starts != self._starts:
                    raise EngineUnavailable(f"the server ended while it loaded version {ref.version}")
                self._held[ref.version] = held
            undo.pop_all()

    def _load_adapter(self, name: str, directory: Path) -> None:
        there = self._admin.adapters()
        if name in there:  # from a host before us, or from a load whose answer did not reach us: the probe decides
            return
        with self._state:
            ours = {GIVEN, *map(adapter_of, self._held)}
        for leftover in leftovers(there, ours, self._settings.adapters.loaded):
            self._admin.unload_adapter(leftover)
        self._admin.load_adapter(name, directory)

    def _forget(self, name: str) -> None:
        with suppress(EngineUnavailable):
            self._admin.unload_adapter(name)

    def probe(self, version: PolicyRef) -> Mapping[str, float]:
        """Return a version's figures from the published records, with which its answers agreed when it was loaded."""
        with self._state:
            held = self._held.get(version)
            live = self._serving.get(version.policy) or self._serving.get(BASE) or version
        if held is None:
            raise EngineUnavailable(f"version {version} is not loaded")
        own = get_probe(self._blobs, version, held.ref.digest)
        return figures(own, get_probe(self._blobs, live))

    def what_is_wrong(self, version: PolicyRef) -> str | None:
        with self._state:
            held = self._held.get(version)
        return None if held is None else self._what_is_wrong(held)

    def switch(self, version: PolicyRef) -> None:
        """Let routers name `version` from now on."""
        with self._state:
            if version not in self._held:
                raise EngineUnavailable(f"version {version} is not loaded")
            self._serving[version.policy] = version

    def unload(self, version: PolicyRef) -> None:
        """Unload a version whose requests are over, as far as can be known: SGLang tells of all adapters together.

        Raises Conflict while it serves, while routers may still name it, and, while the server has any requests, for
        `drain_s`: it loads no other adapter while one is drained. What runs longer still ends under its version."""
        with self._state:
            held = self._held.get(version)
            if held is None:
                return
            if version in self._serving.values():
                raise Conflict(f"version {version} serves", param="version")
        if not self._draining.is_over(version, self._server.is_idle):
            raise Conflict(f"version {version} may still answer requests", param="version")
        with self._state:
            self._held.pop(version, None)
        if held.directory is not None:
            self._forget(str(version))
        self._files.drop(held)

    def _what_is_wrong(self, held: HeldAdapter) -> str | None:
        return self._server.what_is_wrong(held.ref, adapter_of(held.ref.version))

    # ------------------------------------------------------------------------------------------ the server

    def _bring_up(self) -> None:
        """See that the server runs and has the given model. Raises EngineUnavailable until it does, ConfigError."""
        if self._is_up:
            return
        process = self._process
        try:
            if process is not None and not process.is_alive and not process.is_starting:
                raise EngineUnavailable("the SGLang server starts")  # the other thread does it
            if process is not None and process.is_starting and not process.is_ready(self._admin.answers):
                raise EngineUnavailable("the SGLang server starts")
            info = self._server.check()
            check_takes_adapters(info.told, self.url, self._lora)
            self._check_given()
            if process is None and self._admin.label() != LABEL:
                self._admin.relabel(LABEL)
        except WeightsError as error:  # the server's fault, and not that of the version that is to be loaded
            raise EngineUnavailable(str(error)) from error
        with self._state:
            self._is_up = True
        self._generated_s = time.monotonic()

    def _check_given(self) -> None:
        """Compare the server's weights with the given model's, and its answers with the recorded ones."""
        loaded = self._admin.checksums()
        if loaded is not None and covers(loaded, self._given.checksums):
            wrong = disagreement(loaded, self._given.checksums)
            if wrong is not None:
                raise WeightsError(f"the server at {self.url} has another {wrong} than the given model")
        if GIVEN not in self._admin.adapters():
            self._admin.load_adapter(GIVEN, self._files.given(targets_of(self._lora)))
        wrong = self._what_is_wrong(HeldAdapter(self._given.ref, None))
        if wrong is not None:
            raise WeightsError(f"the server at {self.url} has another model than the given one: {wrong}")

    def is_idle(self) -> bool:
        """Return whether no client waits for an answer; also when the server is unreachable."""
        return self._server.is_idle()

    def close(self) -> None:
        """Close; a server started here ends, too."""
        self._server.close()
        for held in self._held.values():
            self._files.drop(held)
