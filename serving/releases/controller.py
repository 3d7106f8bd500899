"""The release controller: the one place that decides which version serves.

    candidate ──newer one waits──► superseded
        │ load, verify, probe
        ├──refused──► rejected
        ▼
      live ──the next one is live──► retired
        └──rolled back──► rolled_back          an earlier version is live again

A version is first switched to and then said to be live, in the store and then in the log. A crash in between leaves the
engine's memory or the log behind: the next start serves the store's live version, says so in the log, and tries a
candidate that is still one again.
"""

import logging
import threading
from contextlib import suppress

from core import telemetry
from core.errors import Conflict, GateRefused, InvalidRequest, NotFound, WeightsError
from core.events import PolicyVersion, Release, ReleaseState, Topic
from core.ids import Version
from core.ports import Clock, Engine, EventLog, Store, Weights, WeightsRef
from core.settings import ServingSettings
from core.store import policies
from serving.releases.anchor import CLUSTER
from serving.releases.gate import check
from serving.releases.timing import LoopTimer

_POLL_RECORDS = 64
logger = logging.getLogger(__name__)


class ReleaseController:
    """`step` and `rollback` may be called from different threads."""

    def __init__(
        self,
        log: EventLog,
        store: Store,
        engine: Engine,
        weights: Weights,
        settings: ServingSettings,
        vocabulary: int,
        clock: Clock,
    ) -> None:
        self._log, self._store, self._engine, self._weights = log, store, engine, weights
        self._settings, self._vocabulary, self._clock = settings, vocabulary, clock
        self._lock = threading.Lock()
        self._consumer = log.consumer("releases", [Topic.POLICIES])
        self._candidate: PolicyVersion | None = None
        self._previous: Version | None = None
        self._swapped_at = float("-inf")
        self.timer = LoopTimer()
        self._live = self._restore()

    @property
    def live(self) -> Version:
        return self._live

    def step(self, timeout_s: float) -> int:
        """Take what was published; release the newest candidate when a swap is due."""
        wait_s = timeout_s if self._candidate is None else min(timeout_s, max(0.0, self._due_in_s()))
        records = self._consumer.poll(_POLL_RECORDS, wait_s)
        with self._lock:
            for record in records:
                if isinstance(record.event, PolicyVersion):
                    self._consider(record.event)
            if self._candidate is not None and self._due_in_s() <= 0:
                candidate, self._candidate = self._candidate, None
                self._release(candidate)
            if records:
                self._consumer.commit({record.source: record.offset + 1 for record in records})
        self.timer.publish_quantiles()
        return len(records)

    def close(self) -> None:
        self._consumer.close()

    def rollback(self, version: Version, why: str, by: str) -> None:
        """Serve `version` again, now. Raises NotFound for one that does not exist, InvalidRequest for one that never
        served, WeightsError when its weights are gone."""
        assert by in ("operator", "guard")
        with self._lock:
            with self._store.read() as connection:
                policy = policies.get_policy(connection, version)
                served = policies.live_history(connection, CLUSTER)
            if policy is None:
                raise NotFound(f"no version {version}", param="version")
            if version not in served:
                raise InvalidRequest(f"version {version} never served", param="version")
            if version == self._live:
                raise InvalidRequest(f"version {version} serves already", param="version")
            self._load(policy)
            left = self._live
            undone = [v for v in served[served.index(version) + 1 :] if v != version]
            if self._candidate is not None:
                undone.append(self._candidate.version)
                self._candidate = None
            self._switch(version)
            gone = [self._event(v, "rolled_back", why, by) for v in dict.fromkeys([*undone, left])]
            self._say([*gone, self._event(version, "live", why, by)])
            self._unload_others()

    # ------------------------------------------------------------------------------------------ candidates

    def _consider(self, policy: PolicyVersion) -> None:
        """The newest waits, the one that waited is superseded."""
        with self._store.read() as connection:
            states = policies.states_of_lineage(connection, policy.version)
        waits = self._candidate is not None and self._candidate.version == policy.version
        if waits or states[0][1] != "candidate":
            return  # seen before
        undone = next((version for version, state in states[1:] if state == "rolled_back"), None)
        if undone is not None:
            self._say([self._event(policy.version, "rejected", f"descends from rolled back version {undone}", "gate")])
            return
        if self._candidate is not None:
            newer = f"version {policy.version} is newer"
            self._say([self._event(self._candidate.version, "superseded", newer, "gate")])
        self._candidate = policy
        self.timer.learned(policy.outcome_arrivals)

    def _release(self, policy: PolicyVersion) -> None:
        try:
            self._load(policy)
            check(self._engine.probe(policy.version), self._vocabulary, self._settings)
        except (WeightsError, GateRefused) as error:
            telemetry.GATE_REFUSALS.inc()
            logger.warning("version %d is rejected: %s", policy.version, error)
            self._say([self._event(policy.version, "rejected", str(error), "gate")])
            self._unload_others()
            return
        before = self._live
        self._switch(policy.version)
        self._say(
            [
                self._event(before, "retired", f"version {policy.version} serves", "gate"),
                self._event(policy.version, "live", "passed the sanity gate", "gate"),
            ]
        )
        self._unload_others()
        self._discard_old()

    def _due_in_s(self) -> float:
        return self._swapped_at + self._settings.min_swap_interval_s - self._clock.monotonic()

    # ------------------------------------------------------------------------------------------ the engine

    def _load(self, policy: PolicyVersion) -> None:
        if policy.version not in self._engine.loaded():
            self._engine.load(_ref(policy))
        found = self._engine.loaded()[policy.version]
        if found != policy.digest:
            raise WeightsError(f"version {policy.version}: loaded digest {found}, published {policy.digest}")

    def _switch(self, version: Version) -> None:
        self.timer.goes_live(version)
        self._engine.switch(version)
        self._previous, self._live = self._live, version
        self._swapped_at = self._clock.monotonic()
        telemetry.SWAPS.inc()

    def _unload_others(self) -> None:
        """The live and the one before it stay in memory: a rollback takes no loading."""
        for version in set(self._engine.loaded()) - {self._live, self._previous}:
            with suppress(Conflict):  # a request is pinned to it; the next swap tries again
                self._engine.unload(version)

    def _restore(self) -> Version:
        """Serve what the store says is live, and tell those who follow the log: it may not have heard the last."""
        with self._store.read() as connection:
            live = policies.live_version(connection, CLUSTER)
            assert live is not None, "ensure_anchor released the first version"
            policy = policies.get_policy(connection, live)
            waiting = policies.list_candidates(connection)
        assert policy is not None
        self._load(policy)
        self._live = live
        self._engine.switch(live)
        self._log.append_blocking(Topic.RELEASES, [self._event(live, "live", "serves since the start", "start")])
        for candidate in waiting:
            self._consider(candidate)
        return live

    # ------------------------------------------------------------------------------------------ what is said

    def _event(self, version: Version, state: ReleaseState, why: str, by: str) -> Release:
        return Release(
            version=version,
            cluster=CLUSTER,
            state=state,
            why=why,
            by=by,  # type: ignore[arg-type]  # one of the literal's values, see rollback
            at=self._clock.now(),
        )

    def _say(self, releases: list[Release]) -> None:
        with self._store.begin() as connection:
            for release in releases:
                policies.put_release(connection, release)
        self._log.append_blocking(Topic.RELEASES, releases)

    def _discard_old(self) -> None:
        """Let weights go that nobody will serve: beyond `keep_versions`, never the anchor, the live or the previous."""
        with self._store.read() as connection:
            versions = policies.list_versions(connection)
        keep = {versions[0], self._live, self._previous, *versions[-self._settings.keep_versions :]}
        beyond = len(versions) - self._settings.keep_versions
        for version in versions[max(0, beyond - 2) : max(0, beyond)]:
            if version not in keep:
                self._weights.discard(version)


def _ref(policy: PolicyVersion) -> WeightsRef:
    return WeightsRef(version=policy.version, digest=policy.digest, path=policy.weights, parent=policy.parent)
