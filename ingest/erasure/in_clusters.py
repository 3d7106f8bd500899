"""Erasure in what clusters send each other, and in the other clusters, each of which erases by itself."""

from collections.abc import Callable
from typing import Final

import msgspec

from core.events import Topic
from core.operations.erasures import Erasure, Step
from core.ports import Clock, Store
from core.records.consent_words import takes_reason
from core.records.erasing import NotYet, digest_of, subjects_of
from core.store.erasure.orders import WEIGHTS
from ingest.clusters.bucket import Bucket, Gone, Segment
from ingest.clusters.erasures import notice_of
from ingest.erasure.in_log import Meant, left_of
from ingest.records import to_record

_CAME: Final = "it came from"


class Told:
    """Tells the other clusters of an order that was given here."""

    name = "told"

    def __init__(self, bucket: Bucket, store: Store, cluster: str) -> None:
        self._bucket, self._store, self._cluster = bucket, store, cluster

    def erase(self, order: Erasure) -> Step:
        if order.origins:
            return Step(note=f"{_CAME} {', '.join(order.origins)}")
        with self._store.look() as view:
            parts = [part for number in order.parts if (part := view.erasures.get(number)) is not None]
        self._bucket.put_notice(notice_of(order, self._cluster, parts))
        return Step()


class InBucket:
    """The segments that are still in the bucket, and reasons of words of consent: an edge rewrites its own, home all.

    A segment that home takes in and removes meanwhile comes back, and is passed over as known."""

    def __init__(self, bucket: Bucket, store: Store, clock: Clock, cluster: str | None, name: str = "bucket") -> None:
        """`cluster`: whose; None: those of all clusters."""
        self.name = name
        self._bucket, self._store, self._clock, self._cluster = bucket, store, clock, cluster

    def erase(self, order: Erasure) -> Step:
        subjects = subjects_of(self._store, order)
        segments = [each for each in self._bucket.segments() if self._cluster in (None, each.cluster)]
        found = [place for segment in segments for place in self._redo(segment, subjects)]
        words = self._without_reasons(order)
        removed = {"records": len(found), "consents": len(words)}
        return Step(removed={name: count for name, count in removed.items() if count}, digest=digest_of(found + words))

    def _redo(self, segment: Segment, subjects: Meant) -> list[str]:
        try:
            pieces = self._bucket.records(segment)
        except Gone:  # home took it in this moment
            return []
        left, found, now = list[tuple[int, bytes]](), list[str](), self._clock.now()
        for offset, raw in pieces:
            record = to_record(Topic.TURNS, segment.partition, offset, now, raw, segment.path)
            kept = left_of(record, subjects)
            left.append((offset, raw if kept is None else kept))
            if kept is not None:
                found.append(f"{segment.path} {offset}")
        if left != pieces:
            self._bucket.put_segment(segment, left)
        return found

    def _without_reasons(self, order: Erasure) -> list[str]:
        """Empty the reasons of the words of consent that an order is about; return these words."""
        takes, found = takes_reason(order), list[str]()
        for cluster, last in self._bucket.last_words().items():
            if self._cluster not in (None, cluster):
                continue
            for number in range(1, last + 1):
                notice = self._bucket.word(cluster, number)
                if notice is None or not takes(notice.word):
                    continue
                found.append(f"consents {cluster} {number}")
                if notice.word.why:
                    word = msgspec.structs.replace(notice.word, why="")
                    self._bucket.put_word(msgspec.structs.replace(notice, word=word))
        return found


class OfHome:
    """At an edge: the versions that home withdrew, which this cluster's hosts drop."""

    name = WEIGHTS

    def __init__(self, bucket: Bucket, cluster: str, forget: Callable[[str], None]) -> None:
        self._bucket, self._cluster, self._forget = bucket, cluster, forget

    def erase(self, order: Erasure) -> Step:
        names = order.origins or (f"{self._cluster}/{order.erasure_id}",)
        told = [self._bucket.reports(name) for name in names]
        found = [
            next((report.withdrawn for report in reports.values() if report.withdrawn is not None), None)
            for reports in told
        ]
        withdrawn = tuple(dict.fromkeys(digest for each in found if each is not None for digest in each))
        if None in found:
            raise NotYet("home learns again without it")
        for digest in withdrawn:
            self._forget(digest)
        return Step(removed={"versions": len(withdrawn)} if withdrawn else {}, withdrawn=withdrawn)


class InClusters:
    """Waits until every other cluster has erased what was ordered here, and signed that."""

    name = "clusters"

    def __init__(self, bucket: Bucket, cluster: str) -> None:
        self._bucket, self._cluster = bucket, cluster

    def erase(self, order: Erasure) -> Step:
        if order.origins:
            return Step(note=f"{_CAME} {', '.join(order.origins)}, where all clusters are waited for")
        others = {each.status.cluster for each in self._bucket.standings()} - {self._cluster}
        reports = self._bucket.reports(f"{self._cluster}/{order.erasure_id}")
        signed = {name: each.statement for name, each in reports.items() if each.statement is not None}
        if away := sorted(others - signed.keys()):
            raise NotYet(f"{', '.join(away)} to erase it as well")
        of_others = {name: signed[name] for name in others}
        note = f"{', '.join(sorted(of_others))} stated it, each by itself" if of_others else "there is no other cluster"
        return Step(
            removed={"clusters": len(of_others)} if of_others else {}, digest=digest_of(of_others.values()), note=note
        )
