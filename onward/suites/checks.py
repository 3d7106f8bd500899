"""`onward suite checks`: how the turns that a version learned from were compared with suites of eval cases."""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from core.errors import ConfigError
from core.ids import PolicyRef
from learner.sequences.kept_out import SuiteCheck
from learner.versions.provenance import ancestry, compared_with_suites
from onward.replays.history import require_directory
from onward.wiring.foundation import open_foundation


def checks_of(directory: Path, version: str | None, overrides: Mapping[str, str]) -> tuple[str, tuple[SuiteCheck, ...]]:
    """Return the version, the newest where none is named, and what its whole lineage was compared with.

    Raises ConfigError where there is no such version."""
    require_directory(directory, overrides)
    with closing(open_foundation(directory, overrides)) as foundation:
        with foundation.store.look() as view:
            newest = view.policies.newest(1)
            wanted = PolicyRef.parse(version) if version is not None else newest[0][0].version if newest else None
            if wanted is None or view.policies.get(wanted) is None:
                raise ConfigError(f"{directory}: no version {version or 'at all'}")
        return str(wanted), compared_with_suites(ancestry(foundation.store, wanted), foundation.blobs)
