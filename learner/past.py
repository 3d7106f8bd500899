"""Going back: the learner's weights become those of any earlier version.

The learner starts from the nearest checkpoint, from an update that began afresh, or from the given model, and makes
all later updates again. If the result is not the same to the bit, it takes the version's published weights instead."""

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from core.errors import CheckpointError, WeightsError
from core.ids import InferenceId, PolicyRef
from core.operations.servable import MOST_REMADE_S
from core.settings import LearnerSettings
from learner.batches.backlog import Backlog
from learner.rank_group import RankGroup
from learner.reliving import Reliving, Unlike
from learner.sequences.scored import Applied
from learner.versions.checkpoint import Checkpoint, Checkpoints, restore
from learner.versions.manifest import Manifest, settings_of
from learner.versions.provenance import applied_on

_SAY_EVERY_S: Final = 5.0
logger = logging.getLogger(__name__)


class Way(NamedTuple):
    """The way to a version. Without a checkpoint it begins at the given model, or where its first update says."""

    start: Checkpoint | None
    updates: list[Manifest]


class Reached(NamedTuple):
    """The version that the weights now are: what its lineage applied, and how many updates were made again."""

    applied: dict[InferenceId, Applied]
    num_updates: int


class Past:
    """The past of one learner, as far as it is kept."""

    def __init__(self, group: RankGroup, reliving: Reliving, checkpoints: Checkpoints, directory: Path) -> None:
        self._group, self._reliving = group, reliving
        self._checkpoints, self._directory = checkpoints, directory
        self.base: PolicyRef | None = None
        """The version whose published weights adapters stand beside; None: the given model."""

    def go_to(self, lineage: Sequence[PolicyRef], settings: LearnerSettings, last: Manifest | None = None) -> Reached:
        """Make the weights, and all that belongs to them, those of the last version of a lineage.

        `last`: the manifest of that version, where it may not be published yet. Raises Unlike when that cannot be done,
        or they come out other than published: then those are to be adopted. Raises ConfigError when other weights
        trained when a checkpoint was written than do now."""
        try:
            way = self._way_to(lineage, last)
            backlog = Backlog(applied=self._begin(way, lineage, settings))
            self._live_again(way.updates, backlog)
            if way.updates:
                self._require_published(way.updates[-1])
        except (CheckpointError, WeightsError) as error:
            raise Unlike(str(error)) from error
        return Reached(backlog.applied, len(way.updates))

    def _live_again(self, updates: Sequence[Manifest], backlog: Backlog) -> None:
        began_s = said_s = time.monotonic()
        for done, made in enumerate(updates, 1):
            batch, result = self._reliving.live_again(made)
            if result.records != made.turns:
                raise Unlike(f"version {made.version} came out otherwise: the records of its turns differ")
            backlog.enter(batch, made.turns, made.version, settings_of(made).admission)
            if made.afresh:
                self.base = self._base_after(made.parent)
            if done == len(updates) or (now_s := time.monotonic()) - said_s > _SAY_EVERY_S:
                said_s = now_s = time.monotonic()
                rate, left = done / (now_s - began_s), len(updates) - done
                logger.info(
                    "learned up to version %s again: %d of %d updates, %.1f a second, %.0f s left",
                    *(made.version, done, len(updates), rate, left / rate),
                )

    def _require_published(self, made: Manifest) -> None:
        published = self._reliving.published(made.version)
        if published is None:
            return
        found = self._reliving.digest(self._directory, settings_of(made))
        if found != published.digest:
            raise Unlike(
                f"version {made.version} came out with digest {found}, and is published with {published.digest}"
            )

    def adopt(self, version: PolicyRef, settings: LearnerSettings) -> None:
        """Go on from a version's published weights, with a fresh optimizer."""
        self._reliving.adopt(version, settings)
        self.base = self._base_after(version)

    def _base_after(self, adopted: PolicyRef) -> PolicyRef | None:
        return adopted if self._group.has_other_base else None

    def _way_to(self, lineage: Sequence[PolicyRef], last: Manifest | None) -> Way:
        updates: list[Manifest] = []
        spent_s = 0.0
        for version in reversed(lineage):
            if (start := self._checkpoint_of(version)) is not None or self._is_given(version):
                return Way(start, updates)
            known = last is not None and last.version == version
            made = last if known and last is not None else self._reliving.manifest_of(version)
            updates.insert(0, made)
            if made.afresh:
                return Way(None, updates)
            policy = self._reliving.published(version)
            spent_s += policy.metrics.get("seconds_updating", 0.0) if policy is not None else 0.0
            if spent_s > MOST_REMADE_S:
                raise Unlike(f"the updates since the last checkpoint took more than {MOST_REMADE_S:.0f} s")
        raise Unlike("there is no version to begin from")

    def _is_given(self, version: PolicyRef) -> bool:
        published = self._reliving.published(version)
        return published is not None and published.parent is None and published.digest == self._group.given_digest

    def _checkpoint_of(self, version: PolicyRef) -> Checkpoint | None:
        try:
            return self._checkpoints.of(version)
        except CheckpointError as error:
            logger.error("%s; going on from what is before it", error)
            return None

    def _begin(self, way: Way, lineage: Sequence[PolicyRef], settings: LearnerSettings) -> dict[InferenceId, Applied]:
        """Load where the way begins; return what was applied up to there."""
        if way.start is not None:
            self._restore(way.start)
            return dict(way.start.meta.applied)
        first = way.updates[0] if way.updates else None
        if any(settings_of(made).lora != settings.lora for made in way.updates):
            raise Unlike("other weights trained then, by learner.lora, than do now")
        if first is None or not first.afresh:
            self._group.begin_again(settings if first is None else settings_of(first))
            self._reliving.held_to = self.base = None
            return {}
        return applied_on(list(lineage[: lineage.index(first.version)]), self._reliving.blobs)

    def _restore(self, checkpoint: Checkpoint) -> None:
        base = checkpoint.meta.base
        self._group.do(restore, checkpoint, [] if base is None else self._reliving.open(base).shards)
        self.base = base
        self._reliving.hold_to(checkpoint.meta.anchor)
