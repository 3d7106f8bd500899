"""The writing of checkpoints beside the training: when one is due, and which of the older ones go."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Final

from core.errors import CheckpointError
from core.ids import InferenceId, PolicyRef
from core.settings import CheckpointSettings
from learner.rank_group import RankGroup
from learner.sequences.scored import Applied
from learner.versions.checkpoint import Checkpoints, Meta, begin, finish
from learner.versions.lineage import Lineage

_GB: Final = 1e9
logger = logging.getLogger(__name__)


class Checkpointing:
    """The checkpoints that a learner writes: one at a time, of the version that its weights are at that moment."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        group: RankGroup,
        lineage: Lineage,
        settings: CheckpointSettings,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._checkpoints, self._group, self._lineage = checkpoints, group, lineage
        self._settings, self._now_s = settings, now_s
        self._due_s = now_s() + settings.every_s
        self._writing: tuple[Meta, bytes] | None = None
        self.versions = checkpoints.versions()
        """The versions that have a checkpoint, the oldest first."""

    def is_due(self) -> bool:
        """Complete the one that was being written, if it is; return whether the newest version is to have one now."""
        if self._writing is not None and not self._group.is_saving:
            self.wait()
        if self._writing is not None or self._now_s() < self._due_s:
            return False
        if not self.is_missing():
            self._put_off()
            return False
        return True

    def is_missing(self) -> bool:
        """Return whether there is a newest version, and it has no checkpoint."""
        newest = self._lineage.newest
        being_written = self._writing is not None and self._writing[0].version == newest
        return newest is not None and not being_written and newest not in self._checkpoints.versions()

    def hasten(self) -> None:
        """Let one be due at once, because it took long to come to where the weights are."""
        self._due_s = self._now_s()

    def begin(self, base: PolicyRef | None, applied: Mapping[InferenceId, Applied]) -> None:
        """Begin to write one of the newest version, which the weights are. What prevents it is logged."""
        self.wait()
        self._put_off()
        line = self._lineage
        assert line.newest is not None, "a checkpoint is of a version"
        meta = Meta(
            version=line.newest, lineage=tuple(line.versions), anchor=line.anchor, base=base, applied=dict(applied)
        )
        try:
            room = self._checkpoints.room_for(meta.version)
        except OSError as error:
            self._fail(meta.version, error)
            return
        self._writing = meta, self._group.do(begin, room)

    def wait(self) -> None:
        """Wait for the one that is being written, if any, and complete it."""
        if self._writing is None:
            return
        (meta, memory), self._writing = self._writing, None
        try:
            self._checkpoints.keep(meta, memory, self._group.do(finish))
        except (CheckpointError, OSError) as error:
            self._fail(meta.version, error)
            return
        logger.info("checkpoint of version %s", meta.version)
        self._prune()

    @property
    def disk_bytes(self) -> int:
        """The disk space of checkpoints and journal."""
        return self._checkpoints.disk_bytes()

    def _put_off(self) -> None:
        self._due_s = self._now_s() + self._settings.every_s

    def _fail(self, version: PolicyRef, error: Exception) -> None:
        self._checkpoints.give_up(version)
        logger.error("no checkpoint of version %s, what was before it stays: %s", version, error)

    def _prune(self) -> None:
        """Delete what is neither among the newest of the lineage, nor the one from which the live version is made.

        The others stay as far as there is room for the past."""
        line, live = self._lineage.versions, self._lineage.live
        there = self._checkpoints.versions()
        ours = [version for version in there if version in line]
        kept = set(ours[-self._settings.keep :] or there)
        if live in line:
            kept |= set([version for version in ours if version <= live][-1:])
        self._thin(there, kept)
        self._bound(self._checkpoints.versions())
        self.versions = self._checkpoints.versions()

    def _thin(self, there: Sequence[PolicyRef], kept: Set[PolicyRef]) -> None:
        """Delete of the past what takes more of the disk than it may.

        The one goes first that leaves the smallest gap for its age, in versions: so what is there grows sparser the
        older it is, and the oldest goes last."""
        left = list(there)
        sizes = {version: self._checkpoints.size(version) for version in there if version not in kept}
        while sum(sizes.values()) > self._settings.past_gb * _GB:
            past = [version for version in left if version in sizes]
            gone = min(past[1:] or past, key=lambda version: _gap(version, left))
            self._checkpoints.delete(gone)
            left.remove(gone)
            del sizes[gone]

    def _bound(self, kept: Sequence[PolicyRef]) -> None:
        """Delete the oldest, and never the newest one, as far as they take more of the disk than they may."""
        most = self._settings.disk_gb
        for version in kept[:-1]:
            if most is None or self._checkpoints.disk_bytes() <= most * _GB:
                return
            self._checkpoints.delete(version)
            logger.info("checkpoint of version %s deleted: learner.checkpoints.disk_gb is %g", version, most)


def _gap(version: PolicyRef, among: Sequence[PolicyRef]) -> float:
    """Return the versions between a checkpoint's neighbours, as a share of those since it."""
    place = among.index(version)
    before, after = among[max(place - 1, 0)], among[min(place + 1, len(among) - 1)]
    return (after.version - before.version) / (1 + among[-1].version - version.version)
