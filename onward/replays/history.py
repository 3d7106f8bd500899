"""The past for commands: `onward archive --once`, and what `export`, `replay` and `midtrain` read."""

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from rich.progress import Progress

from core.errors import ConfigError, LogUnavailable
from core.events import Completion, Outcome, SessionEnded, Topic
from core.ids import UNKNOWN, Namespace, PolicyRef, base_ref
from core.ports import EventLog, Record, Store
from core.settings import load_settings
from ingest.archive.history import History
from onward.directory.layout import Layout
from onward.wiring.foundation import Foundation, is_distributed, open_foundation
from onward.wiring.log.archive import archive_blobs, build_keeper
from onward.wiring.stages import wanted_readers

_CONNECT_S = 30.0
_LOOK_EVERY_S = 0.1


def keep_once(directory: Path, overrides: Mapping[str, str]) -> dict[str, int]:
    """Archive all that is in the log now, and delete what may go. Raises ConfigError where neither is switched on."""
    require_directory(directory, overrides)
    foundation = open_foundation(directory, overrides)
    try:
        keeper = build_keeper(foundation, wanted_readers(foundation.settings))
        await_log(foundation.log)
        for _ in keeper.round():
            pass
        return {"archived": keeper.archived, "deleted": keeper.deleted}
    finally:
        foundation.close()


def open_history(
    foundation: Foundation,
    topic: Topic,
    begin: datetime | None = None,
    end: datetime | None = None,
    namespace: Namespace | None = None,
) -> History:
    await_log(foundation.log)
    archive = archive_blobs(foundation.settings, foundation.layout)
    return History(foundation.log, archive, topic, begin, end, namespace)


def watched(history: History, progress: Progress, name: str) -> Iterator[list[Record]]:
    """Its records, while a bar shows how much of them was read."""
    task = progress.add_task(name, total=1.0)
    for records in history.read():
        yield records
        progress.update(task, completed=history.share)
    progress.update(task, completed=1.0)


def span(batches: Iterable[list[Record]], directory: Path) -> tuple[datetime, datetime]:
    """Event times of the first and the last turn or outcome. Raises ConfigError where there is none."""
    ends: set[datetime] = set()
    for records in batches:
        seen = ends.union(moment for record in records if (moment := _event_time(record)) is not None)
        ends = {min(seen), max(seen)} if seen else ends
    if not ends:
        raise ConfigError(f"{directory}: no turns to replay, or none from --from to --to")
    return min(ends), max(ends)


def put_turns_of(
    batches: Iterable[list[Record]], store: Store, *, with_outcomes: bool = False
) -> Iterator[list[Record]]:
    """All records; their turns are in the store before anybody asks for them, and what was said of them if wanted."""
    for records in batches:
        with store.work() as work:
            work.turns.put([record.event for record in records if isinstance(record.event, Completion)])
            if with_outcomes:
                work.outcomes.put([record.event for record in records if isinstance(record.event, Outcome)])
        yield records


def _event_time(record: Record) -> datetime | None:
    match record.event:
        case Completion() | Outcome() | SessionEnded() as event:
            return event.received_at
    return None


def await_log(log: EventLog) -> None:
    """Wait for the log to connect. Raises LogUnavailable when that takes too long."""
    deadline_s = time.monotonic() + _CONNECT_S
    while True:
        try:
            log.partitions(Topic.TURNS)
            return
        except LogUnavailable:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(_LOOK_EVERY_S)


def period(begin: str | None, end: str | None) -> tuple[datetime | None, datetime | None]:
    """Return the times of `--from` and `--to`. Raises ConfigError naming the option."""
    first, last = _moment("--from", begin), _moment("--to", end)
    if first is not None and last is not None and first >= last:
        raise ConfigError(f"--from {begin} is not before --to {end}")
    return first, last


def _moment(option: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"{option} {text}: want a time as 2026-11-21T15:00:00Z") from error
    if moment.tzinfo is None:
        raise ConfigError(f"{option} {text}: a timezone is missing: write {moment.isoformat()}Z for UTC")
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise ConfigError(f"{option} {text}: in UTC there is no such year") from error


def version_named(version: int) -> PolicyRef:
    """Return the base policy's version that `--version` names. Raises ConfigError for what is no version's number."""
    try:
        found = base_ref(version)
    except ValueError:
        found = UNKNOWN
    if found == UNKNOWN:
        raise ConfigError(f"--version {version}: want the number of a version, from 1")
    return found


def require_directory(directory: Path, overrides: Mapping[str, str] | None = None) -> None:
    """Refuse a directory in which no service has run, so that a typo makes no new one. Raises ConfigError.

    Where log and store are services of their own, which its settings say, nothing of them is in it."""
    if not directory.is_dir():
        raise ConfigError(f"{directory}: no such directory")
    layout = Layout(directory)
    if layout.store.exists() or layout.log.exists():
        return
    if not is_distributed(load_settings(layout.settings, {**os.environ, **(overrides or {})})):
        raise ConfigError(f"{directory}: no service has run in it: it has neither {layout.store.name} nor log.db")
