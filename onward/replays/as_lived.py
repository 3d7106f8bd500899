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
from learner.model.ranks import ALONE
from learner.rank_group import RankGroup
from learner.reliving import Reliving, Unlike
from learner.versions.manifest import settings_of
from learner.versions.provenance import ancestry
from onward.replays.history import require_directory, version_named
from onward.wiring.foundation import Foundation, open_foundation


class Relived:
    """A learner that makes the versions of a directory again."""

    def __init__(self, source: Foundation) -> None:
        self._model = source.model
        self._group: RankGroup | None = None
        self._reliving = Reliving(self._its_group, source.store, source.weights, source.blobs)

    def live_again(self, policy: PolicyVersion) -> str:
        """Make the version from its parent, which was made before; in words how that went. Raises Unlike."""
        made = self._reliving.manifest_of(policy.version)
        self._group = self._group or RankGroup(self._model, settings_of(made), ALONE)
        _, result = self._reliving.live_again(made)
        with tempfile.TemporaryDirectory() as directory:
            digest = self._reliving.digest(Path(directory), settings_of(made))
        if digest != policy.digest:
            raise Unlike(f"digest {digest}, and the live one is {policy.digest}")
        if result.records != made.turns:
            raise Unlike("its weights equal the live ones, but the records of its turns differ")
        return f"digest {digest} equals the live one ({len(made.turns)} turns)"

    def _its_group(self) -> RankGroup:
        assert self._group is not None, "a version is being made"
        return self._group


def prove(directory: Path, version: int | None, overrides: Mapping[str, str]) -> bool:
    """Print a line for each version on the way from the anchor to `version`; return whether all digests are equal.

    A `version` of None is the one that serves. It stops at the first that differs. Raises ConfigError for an unknown
    version."""
    require_directory(directory, overrides)
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
        chosen = view.releases.live(source.settings.serving.cluster) if version is None else version_named(version)
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
