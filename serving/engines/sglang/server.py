"""One SGLang server as a host uses it: started here, or found running at a URL; checked, probed, watched, ended."""

import logging
from collections.abc import Sequence
from pathlib import Path

from core.errors import ConfigError, EngineUnavailable, WeightsError
from core.grammars.library import LIBRARY
from core.model.probes import agrees, get_probe, has_probe, nearer
from core.ports import Blobs, WeightsRef
from core.settings import SglangSettings
from serving.engines.sglang.admin import Admin, EngineInfo
from serving.engines.sglang.process import EngineProcess

logger = logging.getLogger(__name__)


class Server:
    """`process` is None for a server that was started elsewhere, and is started again there."""

    def __init__(
        self, settings: SglangSettings, blobs: Blobs, directory: Path, url: str | None, arguments: Sequence[str] = ()
    ) -> None:
        """Use the server at `url`, or, for None, one that is started here, with these further arguments.

        Raises ConfigError naming the setting."""
        directory.mkdir(parents=True, exist_ok=True)
        self._settings, self._blobs = settings, blobs
        self.process: EngineProcess | None = None
        if url is None:
            self.process = EngineProcess(settings, directory / "sglang.log", arguments)
            url = self.process.url
        self.url, self.admin = url, Admin(url, settings.admin_key, settings.timeouts.admin_s)

    def check(self) -> EngineInfo:
        """Return the server's facts. Raises ConfigError for one that does not fit."""
        info = self.admin.info()
        if info.dtype not in ("auto", self._settings.dtype):
            raise ConfigError(
                f"serving.sglang.dtype is {self._settings.dtype}, and the server at {self.url} has {info.dtype}"
            )
        if info.grammars != LIBRARY:
            logger.warning(
                "the server at %s refuses answers by grammar: it has %s; start it with --grammar-backend %s",
                *(self.url, info.grammars, LIBRARY),
            )
        return info

    def what_is_wrong(self, ref: WeightsRef, adapter: str | None = None) -> str | None:
        """Probe what serves, or an adapter: compare with the version's own record, and with its parent's, if kept."""
        record = get_probe(self._blobs, ref.version, ref.digest)
        measured = self.admin.score(record.token_ids, adapter)
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
            return self.admin.requests() == 0
        except (EngineUnavailable, WeightsError):
            return True

    def end(self) -> None:
        """End a server that hangs. One started elsewhere must be ended there."""
        if self.process is not None:
            self.process.kill()

    def close(self) -> None:
        """Close; a server started here ends, too."""
        self.admin.close()
        if self.process is not None:
            self.process.stop()
