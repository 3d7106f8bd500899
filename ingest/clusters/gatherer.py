"""The stage of the home cluster: tells edges its releases, and appends what they logged to its own log."""

import logging
from datetime import datetime, timedelta
from typing import Final

from core import telemetry
from core.events import Event, Topic
from core.ports import Clock, EventLog, Record, Store
from core.records.clusters import ClusterStatus
from core.records.erasing import left
from core.stages.stage import Stage
from ingest.clusters.bucket import STATUS_EVERY, Bucket, Segment, Step
from ingest.clusters.consents import TravellingConsents
from ingest.clusters.erasures import TravellingErasures
from ingest.records import to_record

_STEPS_AT_ONCE: Final = 64
_GAP: Final = timedelta(minutes=1)
"""How long a segment waits for the one before it, which was put first: not every bucket lists all that it has."""
logger = logging.getLogger(__name__)


class Gatherer(Stage):
    """Appends each record of an edge at least once: between an append and the note of it in the store it may be killed.

    Readers of the log know ids, so it counts once."""

    def __init__(self, log: EventLog, store: Store, bucket: Bucket, cluster: str, clock: Clock, every_s: float) -> None:
        super().__init__()
        self._log, self._store, self._bucket = log, store, bucket
        self._cluster, self._clock, self._every_s = cluster, clock, every_s
        self._said: ClusterStatus | None = None
        self._erasures = TravellingErasures(store, bucket, cluster, is_home=True)
        self._consents = TravellingConsents(store, bucket, cluster, clock)
        self._told: int | None = None  # the sequence of the newest release that is in the bucket
        self._gaps: dict[tuple[str, int], datetime] = {}  # since when records of a cluster's partition are missing

    def tick(self) -> float:
        """Tell what was released and how it stands, erase what others erase, tell and hear of consent, gather."""
        self._tell_releases()
        self._tell()
        self._erasures.look()
        is_behind = self._consents.look()
        gathered = [self._gather(segment) for segment in self._bucket.segments()]
        return 0.0 if is_behind or any(gathered) else self._every_s

    def _tell_releases(self) -> None:
        """Write each step that made a version live, once; steps of other kinds are home's own business."""
        if self._told is None:
            self._told = self._bucket.last_step(self._cluster)
        while True:
            with self._store.look() as view:
                steps = view.releases.after(self._told, _STEPS_AT_ONCE)
                policies = {release.version: view.policies.get(release.version) for _, release in steps}
            for sequence, release in steps:
                policy = policies[release.version]
                if release.state == "live" and release.cluster == self._cluster and policy is not None:
                    self._bucket.put_step(self._cluster, Step(sequence=sequence, release=release, policy=policy))
                self._told = sequence
            if len(steps) < _STEPS_AT_ONCE:
                return

    def _tell(self) -> None:
        now, told = self._clock.now(), self._told or 0
        with self._store.look() as view:
            live = view.releases.live(self._cluster)
        said = self._said
        if said is not None and (said.live, said.followed) == (live, told) and now - said.at < STATUS_EVERY:
            return
        self._said = ClusterStatus(cluster=self._cluster, role="home", live=live, followed=told, unsent=0, at=now)
        self._bucket.put_status(self._said)

    def _gather(self, segment: Segment) -> bool:
        """Append what is new of a segment, note it, and remove the segment; return False where it has to wait."""
        group = f"gatherer:{segment.cluster}"
        with self._store.look() as view:
            reached = view.offsets.of_group(group).get(segment.source, 0)
        if not self._is_next(segment, reached):
            return False
        events = self._new_events(segment, reached)
        self._log.append_blocking(Topic.TURNS, events)
        with self._store.work() as work:
            work.offsets.put(group, segment.source, max(reached, segment.end))
        telemetry.GATHERED_RECORDS.labels(cluster=segment.cluster).inc(len(events))
        self._bucket.remove(segment)
        return True

    def _is_next(self, segment: Segment, reached: int) -> bool:
        """Return whether a segment goes on where the one before it ended, or waited for that in vain."""
        place = segment.cluster, segment.partition
        if segment.start <= reached:
            self._gaps.pop(place, None)
            return True
        if self._clock.now() - self._gaps.setdefault(place, self._clock.now()) < _GAP:
            return False
        del self._gaps[place]
        logger.error(
            "%s: records %d to %d of partition %d never came",
            segment.cluster,
            reached,
            segment.start - 1,
            segment.partition,
        )
        return True

    def _new_events(self, segment: Segment, reached: int) -> list[Event]:
        """Return what is new of a segment; of what is being erased its tombstones."""
        now, new = self._clock.now(), list[Record]()
        for offset, raw in self._bucket.records(segment):
            if offset < reached:
                continue
            record = to_record(Topic.TURNS, segment.partition, offset, now, raw, segment.path)
            if record.event is None:  # a dead letter of the edge, too, whose readers met it first
                logger.error("%s: %d of partition %d: %s", segment.cluster, offset, segment.partition, record.error)
            new.append(record)
        with self._store.look() as view:
            return [record.event for record in left(view, new) if record.event is not None]
