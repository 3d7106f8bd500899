"""The keeper of the log: which readers it waits for, and where the archive is."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from core.blobs import FsspecBlobs
from core.errors import ConfigError
from core.events import Topic
from core.settings import JOURNAL_VERSIONS, Settings
from onward.directory.layout import Layout
from onward.wiring.foundation import Foundation

if TYPE_CHECKING:
    from ingest.archive.keeper import Keeper

_DAY_S = 86400.0


def archive_blobs(settings: Settings, layout: Layout) -> FsspecBlobs:
    """Open the archive's blobs. Raises ConfigError."""
    return FsspecBlobs(settings.archive.url or settings.blobs or layout.blobs, layout.cache)


def build_keeper(foundation: Foundation, readers: Mapping[str, Topic]) -> "Keeper":
    """Build the keeper of the log. Raises ConfigError if the settings give it nothing to do.

    `readers`: the topic that each stage reads, by name; what such a stage has not read is not deleted."""
    from ingest.archive.archive import Archiver
    from ingest.archive.keeper import Keeper
    from ingest.archive.retention import Retention, archived, committed_by, learned, read_by

    settings, log, store = foundation.settings, foundation.log, foundation.store
    if not settings.archive.has_work:
        raise ConfigError("archive.enabled is false and archive.retention_days is not set: there is nothing to do")
    archiver = retention = None
    everybody = [committed_by(log, "releases")]
    if settings.archive.enabled:
        blobs = archive_blobs(settings, foundation.layout)
        archiver = Archiver(log, store, blobs, settings.archive.segment_bytes)
        everybody.append(archived)
    if settings.archive.retention_days is not None:
        learner = [learned(JOURNAL_VERSIONS)] if settings.learner.enabled else []
        floors = {
            topic: [
                *(read_by(name) for name, read in readers.items() if read is topic),
                *everybody,
            ]
            for topic in (Topic.TURNS, Topic.REWARDS)
        }
        floors[Topic.REWARDS] += learner
        retention = Retention(log, store, foundation.clock, settings.archive.retention_days * _DAY_S, floors)
    return Keeper(log, archiver, retention, settings.archive.interval_s)
