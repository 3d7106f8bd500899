"""Making versions again from their manifests, by the same updates, to the same bits.

The bits are equal on the same machine and with the same number of processes."""

import logging
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from core.errors import OnwardError, WeightsError
from core.events import Completion, PolicyVersion
from core.grammars.masks import NoMasks
from core.ids import InferenceId, PolicyRef
from core.model.beside import memory_path
from core.ports import Blobs, Opened, Store, Weights, WeightsRef
from core.settings import LearnerSettings
from learner.rank_group import RankGroup, adopt, anchor_at
from learner.sequences.scored import ScoredTurn
from learner.updates.update import NonFiniteLoss, UpdateResult, update
from learner.versions import manifest
from learner.versions.manifest import Manifest, batch_of, settings_of
from learner.versions.version_files import digest_of, room_for_files, write_files

logger = logging.getLogger(__name__)


class Unlike(OnwardError):
    """A version cannot be made again, or came out different; says why."""


class Reliving:
    """Makes a learner's weights those of earlier versions, by their manifests."""

    def __init__(self, group: Callable[[], RankGroup], store: Store, weights: Weights, blobs: Blobs) -> None:
        """Work on the weights of a group, which may be another one in each call."""
        self._group = group
        self.blobs = blobs
        self._store, self._weights = store, weights
        self.held_to: PolicyRef | None = None
        """The version that the KL term holds to; None: the given model."""

    def live_again(self, made: Manifest) -> tuple[list[ScoredTurn], UpdateResult]:
        """Make a version from its parent, whose weights are loaded. Raises Unlike when it cannot be, or differs."""
        settings = settings_of(made)
        if made.afresh:
            self.adopt(made.parent, settings)
        self.hold_to(made.held_to)
        batch = batch_of(made, self._turns_of(made))
        try:
            result = self._group().do(update, batch, settings, made.released)
        except (NonFiniteLoss, NoMasks) as error:
            raise Unlike(str(error)) from error
        return batch, result

    def adopt(self, version: PolicyRef, settings: LearnerSettings) -> None:
        """Go on from published weights, and the memory published with them, with a fresh optimizer."""
        path = memory_path(version)
        memory = self.blobs.get(path) if self.blobs.exists(path) else None
        self._group().do(adopt, self.open(version), settings, memory)

    def hold_to(self, version: PolicyRef | None) -> None:
        if version != self.held_to:
            self._group().do(anchor_at, None if version is None else self.open(version))
            self.held_to = version

    def held_by(self, version: PolicyRef) -> PolicyRef | None:
        """Return the version that the KL term held to when a version was made; if unknown, the present one."""
        try:
            return self.manifest_of(version).held_to
        except Unlike:
            return self.held_to

    def hold_again(self, version: PolicyRef | None) -> PolicyRef | None:
        """Let the KL term hold to a version, or to the given model if its weights are gone; return which."""
        try:
            self.hold_to(version)
        except WeightsError as error:
            logger.error("the KL term holds to the given model from now on, and not to version %s: %s", version, error)
            self.hold_to(None)
        return self.held_to

    def open(self, version: PolicyRef) -> Opened:
        """Return a version's published weights. Raises Unlike when it is not in the store."""
        policy = self.published(version)
        if policy is None:
            raise Unlike(f"version {version} is not in the store")
        ref = WeightsRef(version=version, digest=policy.digest, path=policy.weights, parent=policy.parent)
        return self._weights.open(ref)

    def published(self, version: PolicyRef) -> PolicyVersion | None:
        with self._store.look() as view:
            return view.policies.get(version)

    def manifest_of(self, version: PolicyRef) -> Manifest:
        """Return a version's manifest. Raises Unlike when there is none by which it could be made again."""
        policy = self.published(version)
        if policy is None or policy.manifest is None or not self.blobs.exists(policy.manifest):
            raise Unlike(f"version {version} has no manifest")
        if policy.is_proposed:
            raise Unlike(f"version {version} was proposed, and not made here")
        made = manifest.decode(self.blobs.get(policy.manifest))
        try:
            settings_of(made)
        except ValidationError as error:
            raise Unlike(
                f"version {version} was made with settings that this build no longer accepts: {error}"
            ) from error
        return made

    def digest(self, directory: Path, settings: LearnerSettings) -> str:
        """Return the digest that the weights are published with by the settings; `directory` has room for them."""
        with room_for_files(directory) as room:
            return digest_of(self._group().do(write_files, room, settings.compute.published))

    def _turns_of(self, made: Manifest) -> dict[InferenceId, Completion]:
        wanted = [reward.inference_id for reward in made.rewards]
        with self._store.look() as view:
            found = view.turns.get_many(wanted)
        if missing := set(wanted) - found.keys():
            raise Unlike(f"{len(missing)} of its {len(wanted)} turns are no longer in the store")
        return found
