"""The host's side of one SGLang server: implements core.ports.Engine.

It serves a version only after the engine was seen to hold it: by what its ranks say of their weights (proof.py), and by
a probe whose log-probabilities are those recorded at publication. The engine's label is only ever compared with what
was confirmed, to notice an engine that was started again behind our back.
"""

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from core.errors import ConfigError, Conflict, EngineUnavailable, WeightsError
from core.grammars.library import LIBRARY
from core.ids import ANCHOR, PolicyRef
from core.model.probes import agrees, figures, get_probe, has_probe, nearer
from core.ports import Blobs, Weights, WeightsRef
from core.settings import SglangSettings
from serving.engines.sglang.admin import Admin
from serving.engines.sglang.process import EngineProcess
from serving.engines.sglang.proof import LoadedWeights
from serving.engines.sglang.swap import Observer, Swap, SwapStep, nothing
from serving.engines.sglang.verified_versions import VerifiedVersion, VerifiedVersions

_ASK_AGAIN_S = 0.05
logger = logging.getLogger(__name__)


class SglangEngine:
    """One thread switches and asks what serves; another may load."""

    holds_many = False

    def __init__(
        self,
        name: str,
        settings: SglangSettings,
        weights: Weights,
        blobs: Blobs,
        model: Path,
        directory: Path,
        *,
        url: str | None,
        observe: Observer = nothing,
    ) -> None:
        """Use the server at `url`, or, for None, start one, and start it again when it dies.

        Raises ConfigError naming the setting."""
        directory.mkdir(parents=True, exist_ok=True)
        self._name, self._settings, self._observe = name, settings, observe
        self._weights, self._blobs = weights, blobs
        self._process: EngineProcess | None = None
        if url is None:
            self._process = EngineProcess(settings, directory / "sglang.log")
            url = self._process.url
        self._url = url
        self._admin = Admin(self._url, settings.admin_key, settings.timeouts.admin_s)
        self._shelf = VerifiedVersions(directory / "versions", model, settings.dtype, settings.device)
        self._loaded = LoadedWeights(self._admin)
        self._swap = Swap(self._admin, self._loaded, self._what_is_wrong, observe)
        self._confirmed: PolicyRef | None = None  # and seen to serve
        self._good: PolicyRef | None = None  # the last that was confirmed, though the engine may have gone since
        self._asked_s = self._generated_s = float("-inf")

    @property
    def name(self) -> str:
        return self._name

    @property
    def url(self) -> str:
        return self._url

    # ------------------------------------------------------------------------------------------ what serves

    def serving(self) -> PolicyRef | None:
        """Asked of the engine, at most twenty times a second."""
        now_s = time.monotonic()
        if self._confirmed is not None and now_s - self._asked_s > _ASK_AGAIN_S:
            self._asked_s = now_s
            if not self._still_serves(self._confirmed, now_s):
                logger.warning("%s: the engine is unavailable or serves another version than was confirmed", self._name)
                self._confirmed = None
        return self._confirmed

    def _still_serves(self, version: PolicyRef, now_s: float) -> bool:
        try:
            if self._admin.label() != str(version):
                return False
        except (EngineUnavailable, WeightsError):
            return False
        if now_s - self._generated_s > self._settings.timeouts.health_every_s:
            self._generated_s = now_s
            return self._admin.generates(self._settings.timeouts.health_s)
        return True

    def pinnable(self) -> frozenset[PolicyRef]:
        serving = self._confirmed
        return frozenset() if serving is None else frozenset({serving})

    # ------------------------------------------------------------------------------------------ what is held

    def loaded(self) -> Mapping[PolicyRef, str]:
        return {version: held.ref.digest for version, held in self._shelf.held().items()}

    def load(self, ref: WeightsRef) -> None:
        self._shelf.put(ref, self._weights.open(ref))

    def probe(self, version: PolicyRef) -> Mapping[str, float]:
        """Return a version's figures from the published records: this engine holds one version at a time."""
        own = get_probe(self._blobs, version, self._shelf.held()[version].ref.digest)
        live = version if self._good is None else self._good
        return figures(own, get_probe(self._blobs, live))

    def what_is_wrong(self, version: PolicyRef) -> str | None:
        return self._what_is_wrong(version) if version == self._confirmed else None

    def unload(self, version: PolicyRef) -> None:
        process = self._process
        started = process.started_on if process is not None and process.is_starting else None
        if version in (self._confirmed, self._good, started):
            raise Conflict(f"version {version} is what a restart goes back to", param="version")
        self._shelf.drop(version)

    # ------------------------------------------------------------------------------------------ switching

    def switch(self, version: PolicyRef) -> None:
        held = self._shelf.held()[version]
        self._confirmed = None
        if self._is_started_on(held):
            self._accept(held, self._swap.accept_started)
            return
        try:
            self._accept(held, self._swap.to)
        except EngineUnavailable:
            self._end()  # dead, or it hangs: nothing that is asked of it would help
            raise
        except WeightsError as first:
            logger.warning("%s: %s; loading version %s anew", self._name, first, version)
            try:
                self._reload(held.ref)
            except (WeightsError, EngineUnavailable) as second:
                self._restore(version)
                raise WeightsError(f"{first}; loaded anew: {second}") from second

    def _accept(self, held: VerifiedVersion, work: Callable[[VerifiedVersion], None]) -> None:
        work(held)
        self._confirmed = self._good = held.ref.version
        self._asked_s = self._generated_s = time.monotonic()

    def _reload(self, ref: WeightsRef) -> None:
        """Full load: the directory is made again from what is published."""
        self._observe(SwapStep.RELOAD, ref.version)
        self._accept(self._shelf.put(ref, self._weights.open(ref)), self._swap.to)

    def _restore(self, failed: PolicyRef) -> None:
        """Return to the last good version: in place, else by restarting the server on it in the host's next round."""
        good = self._shelf.held().get(self._good) if self._good not in (None, failed) else None
        if good is None:
            self._end()
            return
        self._observe(SwapStep.RESTORE, good.ref.version)
        try:
            self._accept(good, self._swap.to)
        except (WeightsError, EngineUnavailable) as error:
            logger.error("%s: version %s could not be restored: %s", self._name, good.ref.version, error)
            self._end()

    def _end(self) -> None:
        """End the server; the next switch starts it again. One started elsewhere must be restarted there."""
        self._observe(SwapStep.AWAY, self._good or ANCHOR)
        if self._process is not None:
            self._process.kill()

    # ------------------------------------------------------------------------------------------ the server

    def _is_started_on(self, held: VerifiedVersion) -> bool:
        """Return whether the server was started on this very version and has served nobody yet.

        Raises EngineUnavailable while it starts or is unreachable, WeightsError when it cannot start on the version."""
        process = self._process
        if process is None:
            self._check_server()
            return False
        if not process.is_alive and not process.is_starting:
            self._observe(SwapStep.RESTART, held.ref.version)
            process.start(held.directory, held.ref.version)
        if not process.is_starting:
            return False
        if not process.is_ready(self._admin.answers):
            raise EngineUnavailable("the SGLang server starts")
        self._check_server()
        return process.started_on == held.ref.version

    def _check_server(self) -> None:
        """Check the server. Raises ConfigError for one that does not fit."""
        info = self._admin.info()
        self._loaded.meet(info)
        if info.dtype not in ("auto", self._settings.dtype):
            raise ConfigError(
                f"serving.sglang.dtype is {self._settings.dtype}, and the server at {self._url} has {info.dtype}"
            )
        if (info.device == "cuda") != (self._settings.device == "cuda"):  # which give other checksums of weights
            raise ConfigError(
                f"serving.sglang.device is {self._settings.device}, and the server at {self._url} has {info.device}"
            )
        if info.grammars != LIBRARY:
            logger.warning(
                "the server at %s refuses answers by grammar: it has %s; start it with --grammar-backend %s",
                *(self._url, info.grammars, LIBRARY),
            )

    def _what_is_wrong(self, version: PolicyRef) -> str | None:
        """Probe: compare with the version's own record, and with its parent's."""
        ref = self._shelf.held()[version].ref
        record = get_probe(self._blobs, version, ref.digest)
        measured = self._admin.score(record.token_ids)
        verdict = agrees(measured, record, self._settings.dtype)
        if not verdict:
            return verdict.why
        if ref.parent is not None and has_probe(self._blobs, ref.parent):
            parent = get_probe(self._blobs, ref.parent)
            if nearer(measured, record, parent, self._settings.dtype) == "parent":
                return f"its answers are those of version {ref.parent}"
        return None

    def is_idle(self) -> bool:
        """Return whether no client waits for an answer; also when the server is unreachable."""
        try:
            return self._admin.requests() == 0
        except (EngineUnavailable, WeightsError):
            return True

    def close(self) -> None:
        """Close; a server started here ends, too."""
        self._admin.close()
        if self._process is not None:
            self._process.stop()
