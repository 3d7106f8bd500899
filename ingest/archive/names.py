"""The names of the archive's files: each holds one range of a partition, one namespace and one day (UTC).

    archive/turns/namespace=acme/day=2026-11-21/0003-000000012000-000000012999.parquet

The name gives the partition and the range's first and last offset; which of its records are in the file follows from
the records alone. So writing a range again writes the same files. A record that cannot be decoded, or has no namespace,
is filed under Hive's name for null.

What is in them is `ingest.archive.files`' concern, and needs pyarrow, which takes long to import."""

from collections.abc import Iterable
from datetime import date
from typing import Final
from urllib.parse import quote, unquote

import msgspec

from core.events import Topic
from core.ids import Namespace

ROOT: Final = "archive"
_NOBODY: Final = "__HIVE_DEFAULT_PARTITION__"
_SUFFIX: Final = ".parquet"


class ArchivedRange(msgspec.Struct, frozen=True, order=True):
    """The offsets of a partition from `start` to before `end`."""

    partition: int
    start: int
    end: int


class ArchiveFile(msgspec.Struct, frozen=True, order=True):
    stretch: ArchivedRange
    topic: Topic
    namespace: Namespace | None
    day: date

    @property
    def path(self) -> str:
        one = self.stretch
        name = f"{one.partition:04d}-{one.start:012d}-{one.end - 1:012d}{_SUFFIX}"
        return f"{folder(self.topic)}/namespace={_quoted(self.namespace)}/day={self.day.isoformat()}/{name}"


def folder(topic: Topic) -> str:
    return f"{ROOT}/{topic.value.removeprefix('onward.')}"


def parse(topic: Topic, path: str) -> ArchiveFile:
    """Parse a file's name. Raises ValueError when it is no file of the archive."""
    namespace, day, name = path.removeprefix(f"{folder(topic)}/").split("/")
    partition, first, last = map(int, name.removesuffix(_SUFFIX).split("-"))
    quoted = namespace.removeprefix("namespace=")
    return ArchiveFile(
        stretch=ArchivedRange(partition, first, last + 1),
        topic=topic,
        namespace=None if quoted == _NOBODY else Namespace(unquote(quoted)),
        day=date.fromisoformat(day.removeprefix("day=")),
    )


def _quoted(namespace: Namespace | None) -> str:
    if namespace is None:
        return _NOBODY
    return quote(namespace, safe="").replace(_NOBODY, f"%5F{_NOBODY[1:]}")


def stretches(files: Iterable[ArchiveFile]) -> dict[ArchivedRange, list[ArchiveFile]]:
    """Return the archived ranges in order."""
    found: dict[ArchivedRange, list[ArchiveFile]] = {}
    for file in sorted(files, key=lambda file: file.stretch):
        found.setdefault(file.stretch, []).append(file)
    return found
