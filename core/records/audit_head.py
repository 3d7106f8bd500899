"""The head of the audit trail in a file beside the store: what is cut off the trail's end is missed there."""

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from core.errors import ConfigError, StoreUnavailable
from core.operations.audit import AuditHead, sealed
from core.ports import Store
from core.telemetry import AUDIT_BROKEN

logger = logging.getLogger(__name__)
_encode: Final = msgspec.json.encode
_decode: Final = msgspec.json.Decoder(AuditHead).decode


class HeadFile:
    """The head that was kept last. Several processes may share the file."""

    def __init__(self, path: Path, key: str | None = None) -> None:
        """`key`: with which heads are sealed; None: they are not."""
        self._path, self._key = path, key

    def read(self) -> AuditHead | None:
        """Return the kept head, or None before the first. Raises ConfigError for a file that holds none."""
        try:
            return _decode(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{self._path}: is no head of an audit trail: {error}") from error

    def keep(self, store: Store) -> bool:
        """Keep the store's head from now on; return whether that was done.

        A head that the trail no longer has stays as it is, since it shows what was done to the trail. Blocks. Raises
        StoreUnavailable where the store does not answer, or the file cannot be written."""
        try:
            with self._alone():
                return self._keep(store)
        except OSError as error:
            raise StoreUnavailable(f"{self._path}: {error}") from error

    def sealed(self, head: AuditHead) -> AuditHead:
        return sealed(head, self._key)

    def _keep(self, store: Store) -> bool:
        kept = self.read()
        with store.look() as view:
            head = view.audit.head()
            is_there = kept is None or kept.sequence == 0 or view.audit.digest_of(kept.sequence) == kept.digest
        AUDIT_BROKEN.set(not is_there)
        if kept is not None and not is_there:
            logger.error("the audit trail lacks entry %d, which it once had: `onward audit verify`", kept.sequence)
            return False
        if kept is None or head.sequence > kept.sequence:
            self._write(self.sealed(head))
        return True

    def _write(self, head: AuditHead) -> None:
        part = self._path.with_suffix(".part")
        with part.open("wb") as file:
            file.write(_encode(head))
            file.flush()
            os.fsync(file.fileno())
        part.replace(self._path)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.with_suffix(".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
