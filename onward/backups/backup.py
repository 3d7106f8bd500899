"""`onward backup`: everything that a service is, at one point, while it runs or not.

For a moment nobody may allocate a version, write a release or, in a store that is a file, anything else. In it the
spools and the learner's journals are copied, the ends of the log are read, and a view of the store is opened; the rest
is read behind that moment. So the log holds all that the store has seen, and maybe more, as after a crash of everything
that reads it; and no journal, checkpoint or blob is of a version that the store does not know."""

import shutil
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import Progress

from core.blobs import FsspecBlobs
from core.errors import ConfigError, OnwardError, WeightsError
from core.events import PolicyVersion, Topic
from core.ports import TopicPartition, WeightsRef
from core.store.database import copies
from core.store.work import View
from onward.backups.folders import JOURNALS, Vanished, copy_blobs, copy_files, files_of_directory
from onward.backups.log_records import ends_of, keep_record, read_records
from onward.backups.manifest import BackupManifest, digests_of, write_manifest
from onward.backups.pieces import PieceWriter
from onward.directory.private import private_folder
from onward.replays.history import await_log, require_directory
from onward.wiring.foundation import Foundation, open_foundation
from serving.weights.published import BlobWeights

STORE, LOG, BLOBS, ARCHIVE, DIRECTORY = "store.pieces", "log.pieces", "blobs", "archive", "directory"
"""The parts of a backup."""
_ATTEMPTS: Final = 5
_MB: Final = 1e6


@dataclass(frozen=True)
class _Point:
    """The state at one moment: its store's rows, the log's ends, and the files that there were."""

    store: copies.Snapshot
    live: PolicyVersion | None
    ends: Mapping[TopicPartition, int]
    files: list[Path]
    blobs: list[str]
    archived: list[str]


def back_up(directory: Path, into: Path, overrides: Mapping[str, str]) -> BackupManifest:
    """Write a backup, and show its progress; return its manifest.

    Raises ConfigError when `into` is there already, or within the directory, LogUnavailable, StoreUnavailable, and
    OnwardError when the past changes faster than it can be copied."""
    require_directory(directory, overrides)
    if into.exists():
        raise ConfigError(f"--into {into}: it is there already")
    if into.resolve().is_relative_to(directory.resolve()):
        raise ConfigError(f"--into {into}: it is in {directory}, so the next backup would have this one in it")
    foundation = open_foundation(directory, overrides)
    with closing(foundation):
        await_log(foundation.log)
        for _ in range(_ATTEMPTS):
            with ExitStack() as undo:
                private_folder(into)
                undo.callback(shutil.rmtree, into)
                try:
                    made = _back_up(foundation, into)
                except Vanished:
                    continue
                undo.pop_all()
                return made
    raise OnwardError("the learner's files changed while they were copied, each time: stop it, or try again")


def _back_up(foundation: Foundation, into: Path) -> BackupManifest:
    with Progress(console=Console(stderr=True)) as progress:
        taken_at = foundation.clock.now()  # the log's end at the point is a little later
        with ExitStack() as held:
            point = _freeze(foundation, into, held)
            rows = _keep_rows(point.store, into / STORE, progress)
        files = progress.add_task("files (MB)", total=None)

        def seen(count: int) -> None:
            progress.advance(files, count / _MB)

        copy_files(foundation.layout.root, point.files, into / DIRECTORY, seen)
        records = _keep_records(foundation, point.ends, into / LOG, progress)
        copy_blobs(foundation.blobs, point.blobs, into / BLOBS, seen)
        if (archive := archive_of(foundation)) is not None:
            copy_blobs(archive, point.archived, into / ARCHIVE, seen)
        _check_weights(point.live, into / BLOBS)
        manifest = BackupManifest(
            taken_at=taken_at,
            schema=copies.SCHEMA,
            ends=_by_topic(point.ends),
            rows=rows,
            records=records,
            files=digests_of(into),
        )
    write_manifest(into, manifest)
    return manifest


def _freeze(foundation: Foundation, into: Path, held: ExitStack) -> _Point:
    """Return the point. The view of the store stays open until `held` is closed."""
    layout, archive = foundation.layout, archive_of(foundation)
    with foundation.store.begin() as frozen:
        copies.freeze(frozen)
        files = files_of_directory(layout)
        at_once = [path for path in files if path.match(JOURNALS) or (layout.root / path).is_relative_to(layout.spool)]
        at_once += [path for path in files if (layout.root / path).is_relative_to(layout.spools)]
        copy_files(layout.root, at_once, into / DIRECTORY, lambda _: None)
        view = held.enter_context(foundation.store.read())
        live = _live(View(view), foundation.settings.serving.cluster)  # the first query is the view's moment
        return _Point(
            store=copies.Snapshot(view),
            live=live,
            ends=ends_of(foundation.log),  # later than the view: the log has what the store has seen
            files=[path for path in files if path not in set(at_once)],
            blobs=foundation.blobs.list(""),
            archived=[] if archive is None else archive.list(""),
        )


def archive_of(foundation: Foundation) -> FsspecBlobs | None:
    """Return the archive where it is not among the blobs."""
    url = foundation.settings.archive.url
    return None if url is None else FsspecBlobs(url, foundation.layout.cache)


def _keep_rows(store: copies.Snapshot, path: Path, progress: Progress) -> int:
    total = store.count()
    task = progress.add_task("rows of the store", total=total)
    with PieceWriter(path) as writer:
        for table, rows in store.rows():
            writer.write((table, copies.COLUMNS[table], [tuple(row) for row in rows]))
            progress.advance(task, len(rows))
    return total


def _keep_records(foundation: Foundation, ends: Mapping[TopicPartition, int], path: Path, progress: Progress) -> int:
    left = sum(end - foundation.log.earliest(source) for source, end in ends.items())
    task, count = progress.add_task("records of the log", total=left), 0
    with PieceWriter(path) as writer:
        for records in read_records(foundation.log, ends):
            for record in records:
                keep_record(writer, record)
            count += len(records)
            progress.advance(task, len(records))
    return count


def _by_topic(ends: Mapping[TopicPartition, int]) -> dict[Topic, list[int]]:
    found: dict[Topic, list[int]] = {topic: [] for topic in Topic}
    for source in sorted(ends):
        found[source.topic].append(ends[source])
    return found


def _live(view: View, cluster: str) -> PolicyVersion | None:
    live = view.releases.live(cluster)
    return None if live is None else view.policies.get(live)


def _check_weights(policy: PolicyVersion | None, copied: Path) -> None:
    """Raise Vanished when the weights of the live version were discarded before they were copied."""
    if policy is None:
        return
    ref = WeightsRef(version=policy.version, digest=policy.digest, path=policy.weights, parent=policy.parent)
    cache = copied.parent / "cache"
    try:
        BlobWeights(FsspecBlobs(copied), cache, 1, 1).open(ref)
    except (WeightsError, FileNotFoundError) as error:
        raise Vanished(str(error)) from error
    finally:
        shutil.rmtree(cache, ignore_errors=True)
