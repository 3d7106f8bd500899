"""The host's side of one SGLang server: implements core.ports.Engine.

A version is either *whole*, and then it is the only one that the server holds, or an adapter that the server loads
beside the given model and other adapters, under a name of its own (adapters.py). Where the server cannot load an
adapter, the host merges it with the model (verified_versions.py), and the version is whole.

It serves a version only after the engine was seen to hold it: by what its ranks say of their weights (proof.py), and by
a probe whose log-probabilities are those recorded at publication. The engine's label is only ever compared with what
was confirmed, to notice an engine that was started again behind our back.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from core.errors import ConfigError, Conflict, EngineUnavailable, WeightsError
from core.grammars.library import LIBRARY
from core.ids import ANCHOR, PolicyRef
from core.model.probes import agrees, figures, get_probe, has_probe, nearer
from core.ports import Blobs, Opened, Weights, WeightsRef
from core.settings import SglangSettings
from serving.engines.sglang.adapters import NamedAdapter, NamedAdapters, kinds_of, why_merged
from serving.engines.sglang.admin import AdapterRoom, Admin
from serving.engines.sglang.process import EngineProcess
from serving.engines.sglang.proof import LoadedWeights
from serving.engines.sglang.swap import Observer, Swap, SwapStep, nothing
from serving.engines.sglang.verified_versions import VerifiedVersion, VerifiedVersions

_ASK_AGAIN_S = 0.05
_LIST_AGAIN_S = 1.0  # of its adapters, which others may push out
logger = logging.getLogger(__name__)


class SglangEngine:
    """One thread switches and asks what serves; another may load."""

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
        room: AdapterRoom | None = None,
        observe: Observer = nothing,
    ) -> None:
        """Use the server at `url`, or, for None, start one, and start it again when it dies.

        `room`: the adapters for which a server is started. Raises ConfigError naming the setting."""
        directory.mkdir(parents=True, exist_ok=True)
        self._name, self._settings, self._observe = name, settings, observe
        self._weights, self._blobs = weights, blobs
        self._process: EngineProcess | None = None
        if url is None:
            self._process = EngineProcess(settings, directory / "sglang.log", room)
            url = self._process.url
        self._url = url
        self._admin = Admin(self._url, settings.admin_key, settings.timeouts.admin_s)
        self._shelf = VerifiedVersions(directory / "versions", model, settings.dtype, settings.device)
        self._loaded = LoadedWeights(self._admin)
        self._swap = Swap(self._admin, self._loaded, self._what_is_wrong, observe)
        self._adapters = NamedAdapters(self._admin, directory / "adapters")
        self._room = room if self._process is not None else None  # the adapters that the server can load, if known
        self._started = ""  # the server's start that we know; "": none
        self._changing = threading.Lock()  # held while the versions on the server change
        self._whole: PolicyRef | None = None  # the version whose weights the server was last seen to hold
        self._failing_s: float | None = None  # when the server first failed to answer a switch by name
        self._confirmed: PolicyRef | None = None  # and seen to serve
        self._good: PolicyRef | None = None  # the last that was confirmed, though the engine may have gone since
        self._asked_s = self._generated_s = self._listed_s = float("-inf")

    @property
    def name(self) -> str:
        return self._name

    @property
    def url(self) -> str:
        return self._url

    # ------------------------------------------------------------------------------------------ what serves

    @property
    def holds_many(self) -> bool:
        """True while this host holds nothing but adapters by name and the given model below them."""
        return self._room is not None and self._shelf.held().keys() <= {ANCHOR}

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
            if self._admin.label() != str(self._whole):
                return False
            if not self._still_has(version, now_s):
                return False
        except (EngineUnavailable, WeightsError):
            return False
        if now_s - self._generated_s > self._settings.timeouts.health_every_s:
            self._generated_s = now_s
            return self._admin.generates(self._settings.timeouts.health_s)
        return True

    def _still_has(self, version: PolicyRef, now_s: float) -> bool:
        """Ask the server which adapters it has, and unload dropped ones while it runs no request.

        While another thread changes the adapters, return True as before."""
        is_early = now_s - self._listed_s <= _LIST_AGAIN_S
        if self._room is None or is_early or not self._changing.acquire(blocking=False):
            return True
        try:
            self._listed_s = now_s
            self._adapters.refresh()
            if self._adapters.unwanted() and self._admin.requests() == 0:
                self._adapters.tidy()
        finally:
            self._changing.release()
        return version not in self._adapters.held() or version in self._adapters.names()

    def names(self) -> Mapping[PolicyRef, str]:
        return {} if self._confirmed is None or self._whole != ANCHOR else self._adapters.names()

    def pinnable(self) -> frozenset[PolicyRef]:
        serving = self._confirmed
        if serving is None:
            return frozenset()
        return frozenset({serving, *self.names(), *([ANCHOR] if self._whole == ANCHOR else [])})

    # ------------------------------------------------------------------------------------------ what is held

    def loaded(self) -> Mapping[PolicyRef, str]:
        """Return what is held here, without adapters that the server should have but lacks, so that they are loaded."""
        held = {version: held.ref.digest for version, held in self._shelf.held().items()}
        names = self._adapters.names()
        is_there = self._confirmed is not None and self._whole == ANCHOR
        named = {v: each.ref.digest for v, each in self._adapters.held().items() if v in names or not is_there}
        return held | named

    def load(self, ref: WeightsRef) -> None:
        opened = self._weights.open(ref)
        if opened.adapter is None or not self._takes(ref, opened):
            self._shelf.put(ref, opened)
            return
        with self._changing:
            if ref.version not in self._adapters.held():
                self._adapters.put(ref, opened, self._shelf.base)
            if self._whole == ANCHOR and self._confirmed is not None:
                self._bring(ref.version)

    def _takes(self, ref: WeightsRef, opened: Opened) -> bool:
        """Return whether the server can load an adapter by name. Raises EngineUnavailable while it does not answer."""
        if self._process is None and not self._started:
            self._check_server()
        assert opened.adapter is not None
        why = why_merged(self._room, opened.adapter.rank, kinds_of(opened))
        if why is not None:
            logger.warning(
                "%s: version %s is merged with the given model, and each swap to it pauses the server at %s: %s",
                *(self._name, ref.version, self._url, why),
            )
        return why is None

    def probe(self, version: PolicyRef) -> Mapping[str, float]:
        """Return a version's figures, from the published probes of this version and of the one that serves."""
        own = get_probe(self._blobs, version, self._ref(version).digest)
        live = version if self._good is None else self._good
        return figures(own, get_probe(self._blobs, live))

    def what_is_wrong(self, version: PolicyRef) -> str | None:
        return self._what_is_wrong(version) if version in self.pinnable() else None

    def unload(self, version: PolicyRef) -> None:
        process = self._process
        started = process.started_on if process is not None and process.is_starting else None
        if version in (self._confirmed, self._good, started):
            raise Conflict(f"version {version} is what a restart goes back to", param="version")
        if version == ANCHOR and self._adapters.held():
            raise Conflict(f"version {version} is the model below the adapters", param="version")
        self._adapters.drop(version)
        self._shelf.drop(version)

    def _ref(self, version: PolicyRef) -> WeightsRef:
        named = self._adapters.held().get(version)
        return self._shelf.held()[version].ref if named is None else named.ref

    # ------------------------------------------------------------------------------------------ switching

    def switch(self, version: PolicyRef) -> None:
        with self._changing:
            if version in self._adapters.held() or (version == ANCHOR and self._adapters.held()):
                self._switch_by_name(version)
            else:
                self._switch_whole(version)

    def _switch_by_name(self, version: PolicyRef) -> None:
        """Serve an adapter by name, or the model below it, without a pause; running answers keep their version.

        If that fails while the same model stays below, what served goes on serving. A server that does not answer may
        be busy, so it is ended only when it has also generated nothing for a while."""
        try:
            if not self._stands_upon_the_anchor():
                self._put_anchor_below(version)
            if version != ANCHOR:
                self._bring(version)
        except EngineUnavailable:
            now_s, patience_s = time.monotonic(), self._settings.timeouts.admin_s
            self._failing_s = self._failing_s or now_s
            is_starting = self._process is not None and self._process.is_starting
            if not is_starting and now_s - self._failing_s > patience_s:
                self._failing_s = None
                if not self._admin.generates(self._settings.timeouts.health_s):
                    self._end()
            raise
        self._take(version)

    def _put_anchor_below(self, version: PolicyRef) -> None:
        """Have the server hold the given model. Raises EngineUnavailable: no failure here is the adapter's fault."""
        try:
            if ANCHOR not in self._shelf.held():
                self._shelf.put_base()
            self._switch_whole(ANCHOR)
        except WeightsError as error:
            raise EngineUnavailable(f"the model below version {version} does not serve: {error}") from error
        finally:
            self._confirmed = None

    def _stands_upon_the_anchor(self) -> bool:
        """Return whether the server still holds the given model. Raises EngineUnavailable."""
        process = self._process
        if self._whole != ANCHOR or (process is not None and (process.is_starting or not process.is_alive)):
            return False
        before = self._started
        self._check_server()
        return self._started == before and self._admin.label() == str(ANCHOR)

    def _bring(self, version: PolicyRef) -> None:
        """Have the server load an adapter; if that fails, write its files anew and try once more."""
        held = self._adapters.held()[version]
        room = self._room
        if room is None:
            self._adapters.drop(version)  # the next load merges it
            raise EngineUnavailable(f"the server at {self._url} no longer loads adapters: was it started anew?")

        def bring(held: NamedAdapter) -> None:
            self._adapters.bring(held, room, lambda: self._what_is_wrong(version))

        try:
            bring(held)
        except WeightsError as first:
            logger.warning("%s: %s; loading version %s anew", self._name, first, version)
            try:
                bring(self._adapters.put(held.ref, self._weights.open(held.ref), self._shelf.base))
            except WeightsError as second:
                self._adapters.drop(version)
                raise WeightsError(f"{first}; loaded anew: {second}") from second

    def _switch_whole(self, version: PolicyRef) -> None:
        held = self._shelf.held()[version]
        self._confirmed = None
        if self._is_started_on(held):
            self._accept(held, self._swap.accept_started)
            return
        self._whole = None
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
        self._whole = held.ref.version
        self._take(held.ref.version)

    def _take(self, version: PolicyRef) -> None:
        self._confirmed = self._good = version
        self._failing_s = None
        self._asked_s = self._generated_s = time.monotonic()

    def _reload(self, ref: WeightsRef) -> None:
        """Full load: the directory is made again from what is published."""
        self._observe(SwapStep.RELOAD, ref.version)
        self._accept(self._shelf.put(ref, self._opened(ref)), self._swap.to)

    def _opened(self, ref: WeightsRef) -> Opened:
        return self._shelf.base if ref.digest == self._shelf.base.digest else self._weights.open(ref)

    def _restore(self, failed: PolicyRef) -> None:
        """Return to the last good version: in place, else by restarting the server on it in the host's next round."""
        named = self._adapters.held().get(self._good) if self._good is not None else None
        upon = self._good if named is None else ANCHOR
        good = self._shelf.held().get(upon) if upon not in (None, failed) else None
        if good is None:
            self._end()
            return
        self._observe(SwapStep.RESTORE, good.ref.version)
        version = good.ref.version if named is None else named.ref.version
        try:
            self._accept(good, self._swap.to)
            if named is not None:
                self._bring(version)
                self._take(version)
        except (WeightsError, EngineUnavailable) as error:
            logger.error("%s: version %s could not be restored: %s", self._name, version, error)
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
        self._adapters.meet(info.started)
        self._started, self._room = info.started, info.adapters
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
        """Probe a version: compare its log-probabilities with those in its record, and with other versions' records.

        The others are its parent and, for an adapter, the model below it, which answers if the load did nothing."""
        ref, named = self._ref(version), self._adapters.held().get(version)
        record = get_probe(self._blobs, version, ref.digest)
        measured = self._admin.score(record.token_ids, None if named is None else named.name)
        verdict = agrees(measured, record, self._settings.dtype)
        if not verdict:
            return verdict.why
        for other in dict.fromkeys((ref.parent, None if named is None else ANCHOR)):
            if other is None or not has_probe(self._blobs, other):
                continue
            if nearer(measured, record, get_probe(self._blobs, other), self._settings.dtype) == "parent":
                return f"its answers are those of version {other}"
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
