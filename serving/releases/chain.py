"""The chain of releases: written by one controller at a time, step upon step, and told to the log.

Three things keep two controllers from each other: the lease says who may decide; its epoch, renewed in the very
transaction that writes, fences out a holder that lost it without noticing; and each write names the last step that its
writer knew of (compare and swap), so that nobody decides on what is no longer so.

What was written is told to the log from the store (an outbox): a crash in between delays the telling, and may repeat
it, and loses nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime

from core.errors import Conflict, Fenced
from core.events import Release, ReleaseState, Topic
from core.ids import PolicyRef
from core.ports import Clock, EventLog, Store, TopicPartition
from core.stages.renewing import renewing
from core.store.work import View, Work

_OUTBOX = "releases-outbox"
_PLACE = TopicPartition(Topic.RELEASES, 0)
_PAGE = 256
_ASKS = 3  # in the life of a lease

STEPS: Mapping[str, frozenset[ReleaseState]] = {
    "candidate": frozenset({"canary", "live", "rejected", "superseded", "rolled_back"}),
    "canary": frozenset({"live", "superseded", "rolled_back"}),
    "live": frozenset({"retired", "rolled_back"}),
    "retired": frozenset({"live", "rolled_back"}),
    "superseded": frozenset({"live"}),
    "rolled_back": frozenset({"live"}),
    "rejected": frozenset(),
}
"""The states that may follow a state. An operator may make a version live again that was superseded or rolled back,
never one that was rejected."""


class Chain:
    """The chain of releases, written by the holder of a lease. Not thread-safe: one thread of one controller."""

    def __init__(self, store: Store, log: EventLog, cluster: str, clock: Clock, holder: str, ttl_s: float) -> None:
        self._store, self._log, self._clock = store, log, clock
        self._name, self._holder, self._ttl_s = f"release:{cluster}", holder, ttl_s
        self._epoch: int | None = None
        self._told: int | None = None  # the last sequence that the log was told, where this leader knows it
        self._ask_at_s = float("-inf")

    def lead(self) -> bool:
        """Return whether this controller may decide now: take a free lease, renew an own one in time.

        A controller that stands by asks as often."""
        now_s = self._clock.monotonic()
        if now_s >= self._ask_at_s:
            with self._store.work() as work:
                epoch = work.leases.acquire(self._name, self._holder, self._clock.now(), self._ttl_s)
            if epoch != self._epoch:
                self._epoch, self._told = epoch, None
            self._ask_at_s = now_s + self._ttl_s / _ASKS
        return self._epoch is not None

    def kept(self) -> AbstractContextManager[None]:
        """Renew the lease in a thread, around work that may take longer than a lease lives.

        Else two controllers that need so long to start would take it from each other for ever, and neither would
        decide."""
        return renewing(f"{self._name}-lease", self._ttl_s / _ASKS, self._renew)

    def _renew(self) -> None:
        with self._store.work() as work:
            self._fence(work, self._clock.now())

    def write(
        self, sequence: int, releases: Sequence[Release] = (), also: Callable[[Work], object] | None = None
    ) -> None:
        """Write in one transaction.

        Raises Fenced when the lease is another's, Conflict when the chain has grown since `sequence`; then nothing was
        written."""
        try:
            with self._store.work() as work:
                self._fence(work, self._clock.now())
                work.releases.lock()
                last = work.releases.last_sequence()
                if last != sequence:
                    raise Conflict(f"the chain of releases stands at {last}, not at {sequence}")
                if releases:
                    _check(work, releases)
                    work.releases.put(*releases)
                if also is not None:
                    also(work)
        except Fenced:
            self._epoch = None
            raise

    def announce(self) -> int:
        """Tell the log what it has not been told; returns how much that was."""
        with self._store.look() as view:
            if self._told is None:
                self._told = view.offsets.of_group(_OUTBOX).get(_PLACE, 1) - 1
            news = view.releases.after(self._told, _PAGE)
        if not news:
            return 0
        self._log.append_blocking(Topic.RELEASES, [release for _, release in news])
        with self._store.work() as work:
            self._fence(work, self._clock.now())
            work.offsets.put(_OUTBOX, _PLACE, news[-1][0] + 1)
        self._told = news[-1][0]
        return len(news)

    def resign(self) -> None:
        """Give up the lease, so that the next controller need not wait for it to expire."""
        if self._epoch is not None:
            with self._store.work() as work:
                work.leases.give_back(self._name, self._epoch)
            self._epoch = None

    def _fence(self, work: Work, now: datetime) -> None:
        if self._epoch is None:
            raise Fenced(f"{self._name}: no lease is held")
        work.leases.fence(self._name, self._epoch, now, self._ttl_s)


def _check(view: View, releases: Sequence[Release]) -> None:
    """Check that each release may follow the one before. Raises Conflict, also for a refused version."""
    states = view.policies.states_of([release.version for release in releases])
    for release in releases:
        if release.state in ("canary", "live") and states.get(release.version) in ("candidate", "superseded"):
            _require_not_refused(view, release.version)
        state = states.get(release.version)
        following = frozenset() if state is None else STEPS[state]
        assert release.state in {state, *following}, (
            f"version {release.version}: {release.state} does not follow {state}"
        )
        states[release.version] = release.state


def _require_not_refused(view: View, version: PolicyRef) -> None:
    """Raise Conflict if a version was refused after the controller read its state, as an exclusion does."""
    policy = view.policies.get(version)
    if policy is not None and policy.verdict is not None and policy.verdict.action == "refuse":
        raise Conflict(f"version {version} was refused meanwhile: {policy.verdict.why}")
