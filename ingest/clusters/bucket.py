"""The bucket between clusters: its paths, and what lies there.

    releases/HOME/000000000042.msgpack        a step of home's releases: which version went live, and what it is
    clusters/EDGE/turns/0003/000000000120-000000000160.pieces
                                              the records of a partition of an edge's log, from one offset to another
    clusters/NAME/status.json                 what a cluster serves, and when it said so

    erasures/NAME/000000000007/order.json     an order to erase that this cluster gave
    erasures/NAME/000000000007/reports/OTHER.json
                                              how far another cluster has obeyed it

    consents/NAME/000000000007.json           a word of consent that this cluster was brought, by its own count of them

Each is written once, whole, by one writer, but for status and reports; a writer that was killed writes the same again,
or more of the same partition from the same offset on, and an eraser writes segments again with tombstones in them, and
words without their reasons."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import PurePosixPath
from typing import Final, TypeVar

import msgspec
import zstandard

from core import codec
from core.errors import LogError, Unavailable
from core.events import PolicyVersion, Release, Topic, TopicPartition
from core.ports import Blobs
from core.records.clusters import ClusterStanding, ClusterStatus, ConsentNotice, ErasureNotice, ErasureReport

T = TypeVar("T")
_DIGITS: Final = 12
STATUS_EVERY: Final = timedelta(seconds=10)
"""How often a cluster says how it stands, where nothing has changed."""
_RELEASES, _CLUSTERS, _ERASURES, _CONSENTS = "releases", "clusters", "erasures", "consents"
_encode = codec.encoder().encode
_PIECES = msgspec.msgpack.Decoder(list[tuple[int, bytes]])


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step of home's releases: a version that went live."""

    sequence: int
    release: Release
    policy: PolicyVersion


@dataclass(frozen=True, order=True)
class Segment:
    """The records of a partition of an edge's log, from offset `start` up to, but without, `end`."""

    cluster: str
    partition: int
    start: int
    end: int

    @property
    def path(self) -> str:
        span = f"{self.start:0{_DIGITS}d}-{self.end:0{_DIGITS}d}"
        return f"{_CLUSTERS}/{self.cluster}/turns/{self.partition:04d}/{span}.pieces"

    @property
    def source(self) -> TopicPartition:
        return TopicPartition(Topic.TURNS, self.partition)


_decode_step = codec.decoder(Step).decode
_decode_notice = msgspec.json.Decoder(ErasureNotice).decode
_decode_report = msgspec.json.Decoder(ErasureReport).decode
_decode_word = msgspec.json.Decoder(ConsentNotice).decode
_decode_status = msgspec.json.Decoder(ClusterStatus, dec_hook=codec.typed).decode


class Gone(Unavailable):
    """An object is not there any more."""


class Bucket:
    """What clusters leave for each other. Raises Unavailable while it cannot be reached."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    def put_step(self, home: str, step: Step) -> None:
        self._put(_step_path(home, step.sequence), _encode(step))

    def last_step(self, home: str) -> int:
        """Return the sequence of the newest step, 0 where there is none."""
        paths = self._list(f"{_RELEASES}/{home}/")
        return int(PurePosixPath(paths[-1]).stem) if paths else 0

    def steps_after(self, sequence: int) -> Iterator[Step]:
        """Yield the steps of the one home after a sequence, in order. Raises LogError where there are two homes."""
        paths = self._list(f"{_RELEASES}/")
        homes = {PurePosixPath(path).parent.name for path in paths}
        if len(homes) > 1:
            raise LogError(f"two clusters call themselves home here: {', '.join(sorted(homes))}")
        for path in paths:
            if int(PurePosixPath(path).stem) > sequence:
                yield _decode_step(self._get(path))

    def put_segment(self, segment: Segment, pieces: Sequence[tuple[int, bytes]]) -> None:
        """Put the (offset, bytes) of a segment's records."""
        self._put(segment.path, zstandard.compress(msgspec.msgpack.encode(pieces)))

    def segments(self) -> list[Segment]:
        """Return the segments of all edges, by cluster, partition and start."""
        found = (_segment(path) for path in self._list(f"{_CLUSTERS}/"))
        return sorted(segment for segment in found if segment is not None)

    def records(self, segment: Segment) -> list[tuple[int, bytes]]:
        """Return the (offset, bytes) of a segment's records."""
        return _PIECES.decode(zstandard.decompress(self._get(segment.path)))

    def remove(self, segment: Segment) -> None:
        self._reach(lambda: self._blobs.delete(segment.path))

    def put_status(self, status: ClusterStatus) -> None:
        self._put(f"{_CLUSTERS}/{status.cluster}/status.json", msgspec.json.encode(status, enc_hook=codec.plain))

    def statuses(self) -> list[ClusterStatus]:
        """Return what each cluster said last, by name."""
        paths = [path for path in self._list(f"{_CLUSTERS}/") if path.endswith("/status.json")]
        return [_decode_status(self._get(path)) for path in paths]

    def standings(self) -> list[ClusterStanding]:
        """Return what each cluster said last, by name, and how many of home's steps an edge has not followed."""
        said = self.statuses()
        steps = [int(PurePosixPath(path).stem) for path in self._list(f"{_RELEASES}/")] if said else []
        return [ClusterStanding(each, sum(step > each.followed for step in steps)) for each in said]

    def put_notice(self, notice: ErasureNotice) -> None:
        self._put(f"{_erasure(notice.name)}/order.json", msgspec.json.encode(notice))

    def notices(self) -> list[str]:
        """Return the orders to erase of all clusters, by their names, as `frankfurt/7`."""
        paths = [PurePosixPath(path) for path in self._list(f"{_ERASURES}/") if path.endswith("/order.json")]
        return [f"{path.parent.parent.name}/{int(path.parent.name)}" for path in paths]

    def notice(self, name: str) -> ErasureNotice:
        return _decode_notice(self._get(f"{_erasure(name)}/order.json"))

    def put_report(self, name: str, report: ErasureReport) -> None:
        self._put(f"{_erasure(name)}/reports/{report.cluster}.json", msgspec.json.encode(report))

    def reports(self, name: str) -> dict[str, ErasureReport]:
        """Return how far each cluster has obeyed an order, by the clusters' names."""
        found = [_decode_report(self._get(path)) for path in self._list(f"{_erasure(name)}/reports/")]
        return {report.cluster: report for report in found}

    def put_word(self, notice: ConsentNotice) -> None:
        self._put(_word(notice.origin, notice.number), msgspec.json.encode(notice))

    def word(self, cluster: str, number: int) -> ConsentNotice | None:
        """Return a cluster's word of consent by its number; None where it has brought no such word."""
        try:
            return _decode_word(self._get(_word(cluster, number)))
        except Gone:
            return None

    def last_words(self) -> dict[str, int]:
        """Return the number of each cluster's last word of consent, by the clusters' names."""
        paths = map(PurePosixPath, self._list(f"{_CONSENTS}/"))  # sorted: the last of each cluster stays
        return {path.parent.name: int(path.stem) for path in paths}

    def _put(self, path: str, data: bytes) -> None:
        self._reach(lambda: self._blobs.put(path, data))

    def _get(self, path: str) -> bytes:
        return self._reach(lambda: self._blobs.get(path))

    def _list(self, prefix: str) -> list[str]:
        return self._reach(lambda: self._blobs.list(prefix))

    def _reach(self, use: Callable[[], T]) -> T:
        try:
            return use()
        except FileNotFoundError as error:
            raise Gone(f"clusters.url: {error}") from error
        except OSError as error:
            raise Unavailable(f"clusters.url: the bucket cannot be reached: {error}") from error


def _erasure(name: str) -> str:
    origin, _, number = name.rpartition("/")
    return f"{_ERASURES}/{origin}/{int(number):0{_DIGITS}d}"


def _word(cluster: str, number: int) -> str:
    return f"{_CONSENTS}/{cluster}/{number:0{_DIGITS}d}.json"


def _step_path(home: str, sequence: int) -> str:
    return f"{_RELEASES}/{home}/{sequence:0{_DIGITS}d}.msgpack"


def _segment(path: str) -> Segment | None:
    """Return the segment of a path; None for what is none."""
    parts = PurePosixPath(path)
    if parts.suffix != ".pieces":
        return None
    _, cluster, _, partition, _ = parts.parts
    start, _, end = parts.stem.partition("-")
    return Segment(cluster, int(partition), int(start), int(end))
