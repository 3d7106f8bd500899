"""The manifest of a backup, which is written last: without it there is no backup."""

from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from core.errors import ConfigError
from core.events import Topic
from onward.backups.pieces import digest_of

FORMAT: Final = 1
_NAME: Final = "backup.json"


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup holds, and how to know that it is whole.

    Everything that was logged up to `taken_at` is in it, and nothing that came while it was copied.
    `schema` is the store's revision; `files` has the digest of each. `ends` says where each partition of each topic
    ended: one whose records were all deleted has none in the backup, and must go on where it ended, since the store and
    the learner know it by offsets."""

    format: int = FORMAT
    taken_at: datetime
    schema: str
    ends: dict[Topic, list[int]]
    rows: int
    records: int
    files: dict[str, str]


def write_manifest(backup: Path, manifest: BackupManifest) -> None:
    (backup / _NAME).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))


def read_manifest(backup: Path) -> BackupManifest:
    """Raise ConfigError for what is no whole backup, or one of another format."""
    path = backup / _NAME
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=BackupManifest)
    except FileNotFoundError as error:
        raise ConfigError(f"{backup}: no backup, or one that did not end: it has no {_NAME}") from error
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if manifest.format != FORMAT:
        raise ConfigError(f"{path}: format {manifest.format}, this build reads {FORMAT}")
    return manifest


def check_files(backup: Path, manifest: BackupManifest) -> None:
    """Raise ConfigError naming the first file that is missing, or is not what was written."""
    for name, digest in manifest.files.items():
        path = backup / name
        if not path.is_file():
            raise ConfigError(f"{path}: missing, although the backup's manifest names it")
        if digest_of(path) != digest:
            raise ConfigError(f"{path}: its bytes are not those that were backed up")


def digests_of(backup: Path) -> dict[str, str]:
    """Return the digest of each file of a backup, by its path."""
    files = sorted(path for path in backup.rglob("*") if path.is_file())
    return {str(path.relative_to(backup)): digest_of(path) for path in files}
