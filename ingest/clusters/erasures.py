"""Orders to erase as they travel between clusters: each gives the others' as its own, and reports how far it is.

home, or an edge ──order.json──► all others, whose erasers obey it ──reports/NAME.json──► who gave it, and ends last

Only home makes weights: which versions lost theirs stands in its report, and edges drop these."""

import logging
from collections.abc import Sequence

from core.ids import SessionId
from core.operations.erasures import Erasure
from core.ports import Store
from core.records.clusters import ErasureNotice, ErasureReport
from core.records.erasure_orders import give, redact_rest
from core.store.erasure.orders import WEIGHTS
from core.store.work import View
from ingest.clusters.bucket import Bucket

_MOST = 1000
logger = logging.getLogger(__name__)


class TravellingErasures:
    """One cluster's part: gives the orders of others, and reports. Repeated after a crash, it changes nothing."""

    def __init__(self, store: Store, bucket: Bucket, cluster: str, *, is_home: bool) -> None:
        self._store, self._bucket, self._cluster, self._is_home = store, bucket, cluster, is_home
        self._given: set[str] = set()
        self._stamp = (0, 0)
        self._reported: dict[str, ErasureReport] = {}

    def look(self) -> None:
        """Give what is new, report what has changed. Raises Unavailable while the bucket cannot be reached."""
        new = [name for name in self._bucket.notices() if name not in self._given]
        for name in new:
            notice = self._bucket.notice(name)
            if notice.origin == self._cluster or self._give(notice):
                self._given.add(name)
        with self._store.look() as view:
            stamp, orders = view.erasures.stamp(), view.erasures.in_force()
            if stamp != self._stamp:  # orders were given, or ended
                orders = view.erasures.newest(None, _MOST)
        self._stamp = stamp
        for order in orders:
            for name in self._names(order):
                self._report(name, order)

    def _names(self, order: Erasure) -> tuple[str, ...]:
        """Return what it reports on: orders that came, and at home each by which weights of its own go."""
        return _names(order, self._cluster) if self._is_home and order.kind != "organisation" else order.origins

    def _give(self, notice: ErasureNotice) -> bool:
        """Give an order; return whether it is given. An organisation's comes after those for its namespaces."""
        with self._store.work() as work:
            if self._known(work, notice.name) is not None:
                return True
            parts = [self._known(work, name) for name in notice.parts]
            numbers = tuple(part.erasure_id for part in parts if part is not None)
            if len(numbers) < len(parts):
                return False
            order = _order_of(notice, numbers)
            rest: Sequence[SessionId] = ()
            if order.kind == "organisation":  # its parts redact what was said
                number = work.erasures.give(order)
            else:
                given, rest = give(work, order, notice.sessions)
                number = given.erasure_id
        redact_rest(self._store, order, rest)
        logger.warning("erasure %d: %s is erased there, and here", number, notice.name)
        return True

    def _known(self, view: View, name: str) -> Erasure | None:
        """Return this cluster's order that goes by a name, its own or as another's."""
        cluster, _, number = name.rpartition("/")
        return view.erasures.get(int(number)) if cluster == self._cluster else view.erasures.called(name)

    def _report(self, name: str, order: Erasure) -> None:
        weights = order.steps.get(WEIGHTS)
        withdrawn = weights.withdrawn if self._is_home and weights is not None else None
        report = ErasureReport(cluster=self._cluster, withdrawn=withdrawn, statement=order.statement)
        if report != self._reported.get(name, ErasureReport(cluster=self._cluster)):
            self._bucket.put_report(name, report)
            self._reported[name] = report


def _names(order: Erasure, cluster: str) -> tuple[str, ...]:
    """Return the names by which clusters call an order: as others', and as this cluster's own."""
    return (*order.origins, f"{cluster}/{order.erasure_id}")


def notice_of(order: Erasure, cluster: str, parts: Sequence[Erasure] = ()) -> ErasureNotice:
    """Return an order as other clusters are told of it; `parts` are the orders for an organisation's namespaces."""
    return ErasureNotice(
        origin=cluster,
        number=order.erasure_id,
        namespace=order.namespace,
        kind=order.kind,
        subject=order.subject,
        sessions=order.sessions,
        ordered_at=order.ordered_at,
        deadline_at=order.deadline_at,
        namespaces=order.namespaces,
        parts=tuple(_names(part, cluster)[0] for part in parts),
    )


def _order_of(notice: ErasureNotice, parts: tuple[int, ...]) -> Erasure:
    return Erasure(
        erasure_id=0,
        namespace=notice.namespace,
        kind=notice.kind,
        subject=notice.subject,
        why=f"erasure {notice.number} of the cluster {notice.origin}",
        by=f"cluster {notice.origin}",
        origins=(notice.name,),
        ordered_at=notice.ordered_at,
        deadline_at=notice.deadline_at,
        namespaces=notice.namespaces,
        parts=parts,
    )
