"""The stage of an edge cluster: follows home's releases, and sends home what was logged here.

A version that went live at home becomes a candidate here: this cluster's own gate, canary and guards decide whether its
users get it. Where home went back to an earlier version, this cluster is ordered back as well. While the bucket cannot
be reached the cluster serves what it has, and what it logs waits in its log."""

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

import msgspec

from core.codec import encode
from core.events import Topic, TopicPartition
from core.ids import PolicyName, PolicyRef
from core.operations.fleet import OrderKind
from core.ports import Clock, EventLog, Record, Store
from core.records.clusters import ClusterStatus
from core.records.erasing import left
from core.stages.stage import Stage
from core.store.work import View, Work
from ingest.clusters.bucket import STATUS_EVERY, Bucket, Segment, Step
from ingest.clusters.consents import TravellingConsents
from ingest.clusters.erasures import TravellingErasures

GROUP: Final = "follower"
"""The group whose offsets in the store say how far the log was sent: retention waits for it."""
BY: Final = "home"
"""Who gives the orders that follow home's."""
_RECORDS_AT_ONCE: Final = 512
_POLL_S: Final = 0.1
_KEPT: Final = 2  # releases of each policy whose versions are needed: a guard goes back by one
_STEPS = TopicPartition(Topic.RELEASES, 0)
_FOLLOWED: Final = "follower:releases"
HeldAgainst = Callable[[View, str, PolicyRef], Collection[PolicyRef]]
logger = logging.getLogger(__name__)


class Follower(Stage):
    """Sends each record at least once: killed before it notes what it sent, it sends the same again.

    Home knows offsets, and drops what it has."""

    def __init__(
        self,
        log: EventLog,
        store: Store,
        bucket: Bucket,
        cluster: str,
        clock: Clock,
        every_s: float,
        held_against: HeldAgainst = lambda view, cluster, live: (),
    ) -> None:
        """Make the stage. `held_against` returns the earlier versions that a live one may lead back to."""
        super().__init__()
        self._held_against = held_against
        self._log, self._store, self._bucket, self._cluster = log, store, bucket, cluster
        self._clock, self._every_s = clock, every_s
        self._reader = log.reader([Topic.TURNS])
        with store.look() as view:
            sent = view.offsets.of_group(GROUP)
            self._followed = view.offsets.of_group(_FOLLOWED).get(_STEPS, 0)
        for source in self._reader.assignment() & sent.keys():
            self._reader.seek(source, sent[source])
        self._erasures = TravellingErasures(store, bucket, cluster, is_home=False)
        self._consents = TravellingConsents(store, bucket, cluster, clock)
        self._told: ClusterStatus | None = None
        self._needs: tuple[int, int, tuple[PolicyRef, ...]] = (-1, -1, ())  # as of a release, and of a step of home's
        self._polled: list[Record] = []  # read and not yet sent

    def tick(self) -> float:
        """Erase what others erase, tell and hear of consent, send a batch, follow what is new, say how it stands."""
        self._erasures.look()
        is_behind = self._consents.look()
        is_behind = self._send() or is_behind
        self._follow(list(self._bucket.steps_after(self._followed)))
        self._tell()
        return 0.0 if is_behind else self._every_s

    def close(self) -> None:
        self._reader.close()

    # ------------------------------------------------------------------------------------------ what was logged

    def _send(self) -> bool:
        """Send what comes next, a segment for each partition; return whether there may be more."""
        self._polled = self._polled or self._reader.poll(_RECORDS_AT_ONCE, _POLL_S)
        by_partition: defaultdict[TopicPartition, list[Record]] = defaultdict(list)
        for record in self._polled:
            by_partition[record.source].append(record)
        for source, records in by_partition.items():
            self._send_segment(source, records)
        is_behind = len(self._polled) >= _RECORDS_AT_ONCE
        self._polled = []
        return is_behind

    def _send_segment(self, source: TopicPartition, records: Sequence[Record]) -> None:
        with self._store.look() as view:
            start = view.offsets.of_group(GROUP).get(source, 0)
            pieces = [(record.offset, _bytes_of(record)) for record in left(view, records)]
        end = records[-1].offset + 1
        if end <= start:  # sent before the bucket went away in the middle of a batch
            return
        self._bucket.put_segment(Segment(self._cluster, source.partition, start, end), pieces)
        with self._store.work() as work:
            work.offsets.put(GROUP, source, end)

    # ------------------------------------------------------------------------------------------ what was released

    def _follow(self, steps: Sequence[Step]) -> None:
        """Follow home to where it stands, and to none of the versions in between.

        A cluster that was cut off would else try one after the other, whose weights home has discarded since."""
        if not steps:
            return
        newest = {step.release.version.policy: step for step in steps}
        with self._store.work() as work:
            for step in newest.values():
                self._go_to(work, step)
            work.offsets.put(_FOLLOWED, _STEPS, steps[-1].sequence)
        self._followed = steps[-1].sequence
        for step in newest.values():
            logger.info("home released version %s", step.release.version)

    def _go_to(self, work: Work, step: Step) -> None:
        """Make home's version a candidate, or go back to it where it is older than what serves or is tried here."""
        version = step.release.version
        live = work.releases.live(self._cluster, version.policy)
        why = f"home went back to version {version}: {step.release.why}"
        for each in self._tried_after(work, version):
            work.orders.give(self._cluster, "withdraw", each, why, BY, self._clock.now())
        # judged by home's users, not by those here
        work.policies.adopt(msgspec.structs.replace(step.policy, verdict=None))
        if live is not None and version.policy == live.policy and version < live:
            served = version in work.releases.live_history(self._cluster, version.policy)
            kind: OrderKind = "rollback" if served else "promote"
            work.orders.give(self._cluster, kind, version, why, BY, self._clock.now())

    @staticmethod
    def _tried_after(view: View, version: PolicyRef) -> list[PolicyRef]:
        """Return the versions after one that are not decided on yet here."""
        states = ("candidate", "canary")
        found = (each.version for state in states for each in view.policies.in_state(state, version.policy))
        return [each for each in found if each > version]

    # ------------------------------------------------------------------------------------------ how it stands

    def _tell(self) -> None:
        now, told = self._clock.now(), self._told
        with self._store.look() as view:
            live, needs = view.releases.live(self._cluster), self._needed(view)
        is_known = told is not None and (told.live, told.needs, told.followed) == (live, needs, self._followed)
        if told is not None and is_known and now - told.at < STATUS_EVERY:
            return
        unsent = sum(self._log.end(source) - self._reader.position(source) for source in self._reader.assignment())
        self._told = ClusterStatus(
            cluster=self._cluster, live=live, needs=needs, followed=self._followed, unsent=unsent, at=now
        )
        self._bucket.put_status(self._told)

    def _needed(self, view: View) -> tuple[PolicyRef, ...]:
        """Return what serves or is about to, and what it may lead back to, of each policy."""
        known = view.releases.last_sequence(), self._followed
        if known != self._needs[:2]:
            found = (version for name in view.policies.names() for version in self._needed_of(view, name))
            self._needs = *known, tuple(dict.fromkeys(found))
        return self._needs[2]

    def _needed_of(self, view: View, policy: PolicyName) -> Iterator[PolicyRef]:
        served = view.releases.last_live(self._cluster, policy, _KEPT)
        yield from served
        for state in ("candidate", "canary"):
            yield from (each.version for each in view.policies.in_state(state, policy))
        if served:
            yield from self._held_against(view, self._cluster, served[0])


def _bytes_of(record: Record) -> bytes:
    """Return what is sent of a record; one that is erased meanwhile has no bytes, and is a tombstone."""
    return record.raw if record.raw or record.event is None else encode(record.event)
