"""Publishing a version, for the first time or again.

Each step may be repeated, so the next learner completes what a crash left. A version is published again if its weights
are gone and an order waits for them: the learner makes its weights again and stays at this version for a while. Most
likely it goes on from there; if not, it goes back to where releases lead."""

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from core.errors import ConfigError, WeightsError
from core.events import GateVerdict, PolicyVersion, Topic
from core.ids import PolicyName, PolicyRef
from core.model.beside import memory_path
from core.model.probes import get_probe, put_probe
from core.operations.servable import WEIGHTS_BYTES
from core.ports import Blobs, Clock, EventLog, Store, Weights, WeightsRef
from core.settings import LearnerSettings
from learner.past import Past, Reached
from learner.rank_group import RankGroup, answers, memory_file
from learner.reliving import Reliving, Unlike
from learner.versions import manifest
from learner.versions.journal import Entry
from learner.versions.manifest import Manifest, settings_of
from learner.versions.relearning import Relearning
from learner.versions.version_files import digest_of, room_for_files, write_files

_STANDS: Final = timedelta(seconds=60)  # until what was made again serves: engines load it, one after the other
logger = logging.getLogger(__name__)


class Publisher:
    """Publishes what the group's weights are."""

    def __init__(
        self,
        group: RankGroup,
        store: Store,
        log: EventLog,
        weights: Weights,
        blobs: Blobs,
        directory: Path,
        relearning: Relearning,
    ) -> None:
        self._group, self._directory, self._relearning = group, directory, relearning
        self._store, self._log, self._weights, self._blobs = store, log, weights, blobs

    def publish(self, entry: Entry) -> PolicyVersion:
        """Publish weights, memory, probe and manifest, then the row, then the event; return the version as published.

        So a reader of the version finds all of it. After a crash the weights are the same, and so is a probe made
        again. A version that learned from turns that were excluded meanwhile is published as refused, for no user."""
        draft, path = entry.policy, manifest.path_of(entry.version)
        ref = self._put(entry.manifest, entry.lineage[0])
        self._blobs.put(path, manifest.encode(entry.manifest))
        policy = msgspec.structs.replace(
            draft,
            digest=ref.digest,
            weights=ref.path,
            manifest=path,
            metrics=draft.metrics | {WEIGHTS_BYTES: float(ref.size)},
        )
        while (put := self._put_row(policy, entry.manifest)) is None:
            pass  # something more was excluded
        policy = put
        self._log.append_blocking(Topic.POLICIES, [policy])
        return policy

    def _put_row(self, policy: PolicyVersion, made: Manifest) -> PolicyVersion | None:
        """Put the row and return the version with its verdict; None if more has been excluded by now.

        Both this and whoever excludes turns hold the history of releases, so each sees what the other has written."""
        if (why := self._relearning.misled(made.rewards)) is not None:
            policy = msgspec.structs.replace(policy, verdict=GateVerdict(action="refuse", why=why, proposed=False))
        with self._store.work() as work:
            work.releases.lock()
            if self._relearning.is_overtaken(work):
                return None
            work.policies.put(policy)
        return policy

    def publish_again(self, policy: PolicyVersion, made: Manifest, first: PolicyRef) -> None:
        """Publish the weights of a version that once had some. Raises WeightsError unless they are the same."""
        ref = self._put(made, first, policy.digest)
        with self._store.work() as work:
            work.files.keep(policy.version, ref.size)

    def _put(self, made: Manifest, first: PolicyRef, digest: str | None = None) -> WeightsRef:
        """Put weights, memory, and the probe of the texts that the first version answered.

        Raises WeightsError where the weights have another digest than the one given."""
        probe = self._group.do(answers, get_probe(self._blobs, first))
        memory = self._group.do(memory_file)
        with room_for_files(self._directory) as room:
            files = self._group.do(write_files, room, settings_of(made).compute.published)
            if digest is not None and (found := digest_of(files)) != digest:
                raise WeightsError(f"version {made.version} came out with digest {found}, published was {digest}")
            ref = self._weights.publish(made.version, files.shards, made.parent, files.adapter)
        self._blobs.put(memory_path(made.version), memory)
        put_probe(self._blobs, made.version, msgspec.structs.replace(probe, weights_digest=ref.digest))
        return ref


class Remaking:
    """Versions that an order waits for, made again."""

    def __init__(self, past: Past, reliving: Reliving, publisher: Publisher, store: Store, clock: Clock) -> None:
        self._past, self._reliving, self._publisher = past, reliving, publisher
        self._store, self._clock = store, clock
        self._stands: tuple[PolicyRef, datetime] | None = None  # where, and until when
        self._told: list[PolicyRef] | None = None  # the checkpoints that the store knows of

    def tell(self, checkpoints: list[PolicyRef], policy: PolicyName) -> None:
        """Tell the store from where versions can be made again."""
        if checkpoints == self._told:
            return
        with self._store.work() as work:
            work.files.put_checkpoints(checkpoints, policy)
            if self._told is None:
                work.files.try_again(policy)  # this learner may have what another lacked
        self._told = list(checkpoints)

    def wanted(self, policy: PolicyName) -> PolicyRef | None:
        with self._store.look() as view:
            return next(iter(view.files.wanted(policy)), None)

    def stands(self, live: PolicyRef | None) -> bool:
        """Return whether an order still waits for what was made again, so that releases are not followed yet."""
        if self._stands is not None and (self._stands[0] == live or self._clock.now() > self._stands[1]):
            self._stands = None
        return self._stands is not None

    def make(self, lineage: Sequence[PolicyRef], settings: LearnerSettings) -> Reached:
        """Make the weights those of a lineage's last version, and publish them. Raises Unlike when that cannot be."""
        version = lineage[-1]
        try:
            reached = self._past.go_to(lineage, settings)
            policy = self._reliving.published(version)
            assert policy is not None, "a lineage is of versions in the store"
            self._publisher.publish_again(policy, self._reliving.manifest_of(version), lineage[0])
        except (ConfigError, WeightsError) as error:
            raise Unlike(str(error)) from error
        logger.info("version %s was made again, by %d updates", version, reached.num_updates)
        self._stands = version, self._clock.now() + _STANDS
        return reached

    def give_up(self, version: PolicyRef, why: Unlike) -> None:
        logger.error("version %s cannot be made again: %s", version, why)
        with self._store.work() as work:
            work.files.give_up(version, str(why))
