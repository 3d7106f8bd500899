"""`onward restore`: a service as a backup has it, in a directory, log and store that are empty."""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import Progress

from core.blobs import FsspecBlobs
from core.errors import ConfigError
from core.events import Topic
from core.ports import TopicPartition
from core.store.database import copies
from onward.backups.backup import ARCHIVE, BLOBS, DIRECTORY, LOG, STORE, archive_of
from onward.backups.folders import copy_files
from onward.backups.log_records import kept_records
from onward.backups.manifest import BackupManifest, check_files, read_manifest
from onward.backups.pieces import read_pieces
from onward.directory.layout import Layout, is_nobodys
from onward.directory.private import private_folder
from onward.replays.history import await_log
from onward.wiring.foundation import Foundation, is_distributed, open_foundation, read_directory
from onward.wiring.migrate import migrate


class _Rows(msgspec.Struct, frozen=True, array_like=True):
    table: str
    columns: list[str]
    rows: list[list[Any]]


def restore(backup: Path, directory: Path, overrides: Mapping[str, str]) -> BackupManifest:
    """Restore a backup, and show the progress; return its manifest.

    The directory may hold settings, `onward.toml` and `rewards.toml`, which then stay as they are, and what a new
    volume has; Kafka's topics and Postgres's tables are made where they are missing. Raises ConfigError when the
    backup is not whole or of another schema, or the directory is not empty; Conflict when the log or the store is
    not; LogUnavailable, StoreUnavailable. What was restored until then is to be deleted before the next attempt."""
    manifest = read_manifest(backup)
    if manifest.schema != copies.SCHEMA:
        raise ConfigError(
            f"{backup}: its store is of schema {manifest.schema}, this build's is {copies.SCHEMA}: "
            "restore it with the build that made it, then upgrade"
        )
    _require_empty(directory)
    check_files(backup, manifest)
    private_folder(directory)
    Layout.of(directory).starts.mkdir(exist_ok=True)  # it is a service's from here on, whatever else was beside it
    _copy_directory(backup / DIRECTORY, directory)
    settings = read_directory(directory, overrides)[1]
    if is_distributed(settings):
        migrate(settings)
    foundation = open_foundation(directory, overrides)
    with closing(foundation):
        await_log(foundation.log)
        _check_partitions(foundation, manifest)
        archive = archive_of(foundation)
        for name, place in (("blobs", foundation.blobs), ("archive.url", archive)):
            _require_none(name, place)
        with Progress(console=Console(stderr=True)) as progress:
            _fill_store(foundation, backup / STORE, manifest.rows, progress)
            _fill_log(foundation, backup / LOG, manifest, progress)
            _put_blobs(foundation.blobs, backup / BLOBS, progress)
            if archive is not None:
                _put_blobs(archive, backup / ARCHIVE, progress)
    return manifest


def _require_empty(directory: Path) -> None:
    may_stay = ("onward.toml", "rewards.toml")
    there = (path for path in directory.glob("*") if path.name not in may_stay and not is_nobodys(path.name))
    found = next(there, None)
    if found is not None:
        raise ConfigError(f"{directory}: not empty, it has {found.name}: a backup is restored where nothing is")


def _copy_directory(source: Path, directory: Path) -> None:
    names = [path.relative_to(source) for path in sorted(source.rglob("*")) if path.is_file()]
    copy_files(source, [name for name in names if not (directory / name).exists()], directory, lambda _: None)


def _check_partitions(foundation: Foundation, manifest: BackupManifest) -> None:
    for topic in Topic:
        found, wanted = foundation.log.partitions(topic), len(manifest.ends[topic])
        if found != wanted:
            raise ConfigError(
                f"ingest.partitions: {topic} has {found} partitions here, and {wanted} in the backup; "
                "to go from one mode to the other, it has to be 1"
            )


def _require_none(name: str, blobs: FsspecBlobs | None) -> None:
    """Refuse blobs beside those of the backup: later versions and files, whose numbers would be given again."""
    if blobs is not None and (found := next(iter(blobs.list("")), None)) is not None:
        raise ConfigError(f"{name}: not empty, it has {found}: a backup is restored where nothing is")


def _fill_store(foundation: Foundation, path: Path, total: int, progress: Progress) -> None:
    """Write all rows in one transaction: a store that is there is whole."""
    task = progress.add_task("rows of the store", total=total)
    with foundation.store.begin() as connection:
        copies.require_empty(connection)
        for part in read_pieces(path, _Rows):
            copies.write_rows(connection, part.table, part.columns, part.rows)
            progress.advance(task, len(part.rows))
        copies.go_on_counting(connection)


def _fill_log(foundation: Foundation, path: Path, manifest: BackupManifest, progress: Progress) -> None:
    task = progress.add_task("records of the log", total=manifest.records)
    for records in kept_records(path):
        foundation.log.restore(records)
        progress.advance(task, len(records))
    for topic, ends in manifest.ends.items():
        for partition, end in enumerate(ends):
            foundation.log.skip_to(TopicPartition(topic, partition), end)


def _put_blobs(blobs: FsspecBlobs, source: Path, progress: Progress) -> None:
    files = [path for path in sorted(source.rglob("*")) if path.is_file()]
    for path in progress.track(files, description="blobs"):
        blobs.put_file(str(path.relative_to(source)), path)
