"""The journal: what each update made and where the learner stood then, durable before any of it is published.

    journal-00000012.msgpack.zst    the entry of one version, behind its own digest

From an entry its version's weights can be made again, upon the last checkpoint, and published. It is some kilobytes,
where a checkpoint is several times the size of what trains."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import zstandard

from core import codec
from core.errors import CheckpointError, ConfigError
from core.events import PolicyVersion, Reward
from core.ids import PolicyRef
from core.settings import JOURNAL_VERSIONS
from learner.versions.durable import PARTIAL, read_sealed, write_sealed
from learner.versions.manifest import Manifest

FORMAT: Final = 2
_READ: Final = (1, FORMAT)  # format 1 has no rewards that wait to be learned again
_PREFIX, _SUFFIX = "journal-", ".msgpack.zst"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """The entry of one update.

    `policy` still lacks digest and the weights' path. `lineage` runs from the first version to this one; `live`,
    `canary` and `refused` are what was known of releases up to `offsets`; `pending` are the rewards that waited then,
    `again` those that were to be learned again behind them, and `later` what came meanwhile; up to exclusion `heeded`
    the lineage was looked through."""

    format: int = FORMAT
    policy: PolicyVersion
    manifest: Manifest
    lineage: tuple[PolicyRef, ...]
    live: PolicyRef | None
    canary: PolicyRef | None = None
    refused: tuple[PolicyRef, ...]
    offsets: dict[str, int]
    pending: tuple[Reward, ...]
    again: tuple[Reward, ...] = ()
    later: tuple[Reward, ...] = ()
    heeded: int = 0

    @property
    def version(self) -> PolicyRef:
        return self.policy.version


class Journal:
    """The entries of a learner's newest versions, in its directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        for leftover in directory.glob(f"{_PREFIX}*{PARTIAL}"):
            leftover.unlink()

    def write(self, entry: Entry) -> None:
        """Write an entry; it is durable when this returns. Raises OSError naming the file."""
        data = msgspec.msgpack.encode(entry, enc_hook=codec.plain)
        write_sealed(self._path(entry.version), zstandard.ZstdCompressor(level=3).compress(data))

    def newest_first(self) -> Iterator[Entry | CheckpointError]:
        """Yield each entry, or the error that says why it cannot be read.

        Raises ConfigError at an entry that a newer build wrote."""
        for path in self._paths():
            try:
                yield self._read(path)
            except CheckpointError as error:
                yield error

    def prune(self) -> None:
        for path in self._paths()[JOURNAL_VERSIONS:]:
            path.unlink()

    def discard(self, entry: Entry) -> None:
        self._path(entry.version).unlink(missing_ok=True)

    def _paths(self) -> list[Path]:
        return sorted(self._directory.glob(f"{_PREFIX}*{_SUFFIX}"), reverse=True)

    def _path(self, version: PolicyRef) -> Path:
        return self._directory / f"{_PREFIX}{version.padded}{_SUFFIX}"

    def _read(self, path: Path) -> Entry:
        try:
            data = zstandard.ZstdDecompressor().decompress(read_sealed(path))
            entry = msgspec.msgpack.decode(data, type=Entry, dec_hook=codec.typed)
        except (zstandard.ZstdError, msgspec.DecodeError) as error:
            raise CheckpointError(f"{path}: {error}") from error
        if entry.format > FORMAT:
            raise ConfigError(
                f"{path}: format {entry.format}, this build reads up to {FORMAT}: a newer build wrote it, and the "
                "rewards that wait in it would be lost; run that build, or restore a backup that this one made"
            )
        if entry.format not in _READ:
            raise CheckpointError(f"{path}: format {entry.format}, this build reads {_READ[0]} to {FORMAT}")
        return entry
