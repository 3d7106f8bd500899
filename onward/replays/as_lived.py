"""`onward replay --as-lived`: repeats the updates that made the serving version, and compares the digests.

Where `onward replay` scores and learns from the log anew, this follows the manifests: each version's batch, settings,
releases and anchor, from the given model on. Bits are equal on the machine, and with the number of processes, that made
them."""

import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from core.errors import ConfigError
from core.events import PolicyVersion
from core.ids import PolicyRef, base_ref
from core.ports import Opened, WeightsRef
from core.settings import LearnerSettings
from learner.rank_group import adopt, anchor_at
from learner.updates.state import LearnerState, make_state
from learner.updates.update import update
from learner.versions import manifest
from learner.versions.manifest import Manifest, batch_of, settings_of
from learner.versions.provenance import ancestry
from learner.versions.version_files import digest_of, write_files
from onward.replays.history import require_directory
from onward.wiring.foundation import Foundation, open_foundation


class Unlike(Exception):
    """A difference between a version and its repetition, in words for a person."""


class Relived:
    """A learner that is led by manifests."""

    def __init__(self, source: Foundation) -> None:
        self._source = source
        self._state: LearnerState | None = None
        self._held_to: PolicyRef | None = None

    def live_again(self, policy: PolicyVersion) -> str:
        """Make the version from its parent, which was made before; in words how that went. Raises Unlike."""
        made = self._manifest_of(policy)
        settings = settings_of(made)
        if self._state is None:
            self._state = make_state(self._source.model, settings)
        if made.afresh:
            adopt(self._state, self._open(made.parent), settings, self._memory_of(made.parent))
        if made.held_to != self._held_to:
            anchor_at(self._state, None if made.held_to is None else self._open(made.held_to))
            self._held_to = made.held_to
        with self._source.store.look() as view:
            found = view.turns.get_many([reward.inference_id for reward in made.rewards])
        if missing := {reward.inference_id for reward in made.rewards} - found.keys():
            raise Unlike(f"{len(missing)} of its {len(made.rewards)} turns are no longer in the store")
        result = update(self._state, batch_of(made, found), settings, made.released)
        digest = self._digest(self._state, settings)
        if digest != policy.digest:
            raise Unlike(f"digest {digest}, and the live one is {policy.digest}")
        if result.records != made.turns:
            raise Unlike("its weights equal the live ones, but the records of its turns differ")
        return f"digest {digest} equals the live one ({len(made.turns)} turns)"

    def _manifest_of(self, policy: PolicyVersion) -> Manifest:
        if policy.manifest is None or not self._source.blobs.exists(policy.manifest):
            raise Unlike("it has no manifest")
        return manifest.decode(self._source.blobs.get(policy.manifest))

    def _memory_of(self, version: PolicyRef) -> bytes | None:
        path = manifest.memory_path_of(version)
        return self._source.blobs.get(path) if self._source.blobs.exists(path) else None

    def _open(self, version: PolicyRef) -> Opened:
        with self._source.store.look() as view:
            policy = view.policies.get(version)
        if policy is None:
            raise Unlike(f"version {version}, from which it is made, is not in the store")
        ref = WeightsRef(version=version, digest=policy.digest, path=policy.weights, parent=policy.parent)
        return self._source.weights.open(ref)

    @staticmethod
    def _digest(state: LearnerState, settings: LearnerSettings) -> str:
        with tempfile.TemporaryDirectory() as directory:
            return digest_of(write_files(state, Path(directory), settings.compute.published))


def prove(directory: Path, version: int | None, overrides: Mapping[str, str]) -> bool:
    """Print a line for each version on the way from the anchor to `version`; return whether all digests are equal.

    A `version` of None is the one that serves. It stops at the first that differs. Raises ConfigError for an unknown
    version."""
    require_directory(directory)
    with (
        closing(open_foundation(directory, overrides)) as source,
        Progress(console=Console(stderr=True)) as progress,  # on stdout are the proofs
    ):
        lineage = _lineage(source, version)
        relived = Relived(source)
        for policy in progress.track(lineage[1:], description="live again"):
            if policy.is_proposed:
                print(f"version {policy.version}: was proposed, and not made here: taken as it was published")
                continue  # who goes on from it began afresh
            try:
                print(f"version {policy.version}: {relived.live_again(policy)}", flush=True)
            except Unlike as difference:
                print(f"version {policy.version}: DIFFERS: {difference}", flush=True)
                return False
        print(f"{len(lineage) - 1} versions from {lineage[0].version} to {lineage[-1].version}, all as they were lived")
        return True


def _lineage(source: Foundation, version: int | None) -> list[PolicyVersion]:
    """Return the versions from the anchor on."""
    with source.store.look() as view:
        chosen = view.releases.live(source.settings.serving.cluster) if version is None else base_ref(version)
        known = chosen is not None and view.policies.get(chosen) is not None
    if chosen is None or not known:
        raise ConfigError("nothing serves yet" if version is None else f"--version {version}: there is no such version")
    found = []
    for step in ancestry(source.store, chosen):
        with source.store.look() as view:
            policy = view.policies.get(step)
        assert policy is not None, "a lineage is of versions in the store"
        found.append(policy)
    return found
