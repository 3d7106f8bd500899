"""The paths within a service's directory."""

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from core.errors import ConfigError
from onward.directory.private import private_folder

_MODELS = Path(__file__).resolve().parents[2] / "models"
SHIPPED_MODEL = _MODELS / "tiny"
PRETRAINED_MODEL = _MODELS / "smollm2"  # there after `make smollm2`
BUILT_SITE = Path(__file__).resolve().parents[2] / "build" / "site"
SHIPPED_REWARDS = Path(__file__).resolve().parents[1] / "rewards.toml"
_SOCKET = "line.sock"
_LONGEST_SOCKET = 100  # bytes: Linux takes 107, others fewer


def is_nobodys(name: str) -> bool:
    """Return whether a file of this name lies in a directory that is nobody's yet, such as a new volume.

    What file systems and desktops leave there is hidden, or is called `lost+found`."""
    return name.startswith(".") or name == "lost+found"


@dataclass(frozen=True)
class Layout:
    """The paths of one directory; `root` is made on first use."""

    root: Path

    @classmethod
    def of(cls, directory: Path) -> Self:
        """Return the layout of a directory as a user names it. Raises ConfigError for what can be none's name."""
        shown = str(directory).encode("utf-8", "backslashreplace").decode()
        try:
            str(directory).encode()
            return cls(directory.resolve())
        except UnicodeEncodeError:
            raise ConfigError(f"{shown}: its name is no UTF-8: neither a file nor a log line could name it") from None
        except RuntimeError:  # of pathlib
            raise ConfigError(f"{shown}: a link that leads to itself") from None

    @property
    def settings(self) -> Path:
        return self.root / "onward.toml"

    @property
    def rewards(self) -> Path:
        return self.root / "rewards.toml"

    @property
    def log(self) -> Path:
        return self.root / "log.db"

    @property
    def store(self) -> Path:
        return self.root / "store.db"

    @property
    def blobs(self) -> Path:
        return self.root / "blobs"

    @property
    def spool(self) -> Path:
        return self.root / "spool"

    @property
    def spools(self) -> Path:
        """The spools of API processes that run alone, a directory each."""
        return self.root / "spools"

    @property
    def learner(self) -> Path:
        return self.root / "learner"

    @property
    def rollouts(self) -> Path:
        """The journal of rollouts, their report, and what their sandboxes are made of."""
        return self.root / "rollouts"

    @property
    def hosts(self) -> Path:
        return self.root / "hosts"

    def host(self, name: str) -> Path:
        """Return the folder of one engine's host: verified versions, and its engine's log."""
        return self.hosts / name

    @property
    def apis(self) -> Path:
        """JSON of the pid and URL of each replica of the API that runs alone."""
        return self.root / "apis"

    def api(self, name: str) -> Path:
        return self.apis / f"{name}.json"

    def ready(self, name: str) -> Path:
        """Return the file with the pid of a stage that runs alone, there once the stage is ready."""
        return self.root / "ready" / f"{name}.pid"

    @property
    def starts(self) -> Path:
        """The steps of the last start of each process, a file each."""
        return self.root / "starts"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def rescored(self) -> Path:
        """The past as `onward rescore` scores it, while it does."""
        return self.root / "rescore.partial"

    @property
    def estimated(self) -> Path:
        """The past as `onward ope` reads it, while it does."""
        return self.root / "ope.partial"

    @property
    def mined(self) -> Path:
        """The past as `onward suite mine` reads it, while it does."""
        return self.root / "mine.partial"

    @property
    def model_check(self) -> Path:
        """Digest of the model, code and processor of which the engine was last compared with transformers."""
        return self.root / "model_check"

    @property
    def lock(self) -> Path:
        """Held by the service that runs on this directory."""
        return self.root / "service.lock"

    @property
    def address(self) -> Path:
        """JSON of the running service's pid and URL."""
        return self.root / "service.json"

    @property
    def line(self) -> Path:
        """The socket at which the first process answers the other ones that serve HTTP.

        Where the directory's own name is too long for a socket's, it is among temporary files, by a digest."""
        inside = self.root / _SOCKET
        if len(os.fsencode(inside)) <= _LONGEST_SOCKET:
            return inside
        digest = hashlib.blake2b(os.fsencode(self.root), digest_size=8).hexdigest()
        return Path(tempfile.gettempdir()) / f"onward-{digest}" / _SOCKET

    @property
    def audit_head(self) -> Path:
        """The head of the audit trail, which shows when something was cut off the trail's end."""
        return self.root / "audit" / "head.json"

    def ensure(self) -> None:
        """Make the directory, and close it to others. Raises ConfigError where it is somebody else's."""
        self.require_ours()
        private_folder(self.root)

    def require_ours(self) -> None:
        """Raise ConfigError where somebody else's files lie here, and nothing that shows that a service may run."""
        if not self.root.is_dir():
            return
        found = {path.name for path in self.root.iterdir()}
        others = sorted(name for name in found - _names(self._telling, self._common) if not is_nobodys(name))
        if others and found.isdisjoint(_names(self._telling)):
            more = f" and {len(others) - 1} more" if others[1:] else ""
            raise ConfigError(
                f"{self.root}: holds {others[0]}{more}, and nothing of a service: take a new or an empty directory; "
                f"if it is to be this one, put an empty {self.settings.name} there first"
            )

    @property
    def _telling(self) -> tuple[Path, ...]:
        """What nobody else makes by these names: one of them shows that a service runs, ran or shall run here."""
        files = (self.settings, self.rewards, self.log, self.store, self.lock, self.address, self.model_check)
        return (*files, self.spools, self.ready("any").parent, self.starts)

    @property
    def _common(self) -> tuple[Path, ...]:
        """What services make here by names that others give, too."""
        folders = (self.blobs, self.cache, self.spool, self.learner, self.hosts, self.apis, self.audit_head.parent)
        return (*folders, self.rollouts, self.rescored, self.estimated, self.mined, self.root / _SOCKET)


def _names(*paths: tuple[Path, ...]) -> frozenset[str]:
    return frozenset(path.name for some in paths for path in some)
