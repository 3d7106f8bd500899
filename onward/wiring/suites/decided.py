"""The drafts of cases on which operators decide: those of the suites that the service keeps out of training."""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from core.events import PolicyVersion
from core.ports import Blobs, Drafts
from onward.wiring.foundation import Foundation
from onward.wiring.suites.usable import unusable_in
from serving.evals.drafts.deciding import Learned

_MOST_VERSIONS: Final = 200  # of which manifests are read for one undo


def drafts_of(foundation: Foundation) -> Drafts | None:
    """Return the drafts of the service's suites; None where it has no suite."""
    from serving.evals.drafts.board import Board

    suites = foundation.settings.learner.admission.keep_out
    return Board(suites, foundation.clock, learned_by(foundation), unusable_in(foundation)) if suites else None


def learned_by(foundation: Foundation) -> Learned:
    """Return what says which version learned from a turn since a moment."""

    def learned(turn: str, since: datetime) -> str | None:
        with foundation.store.look() as view:
            newest = [policy for policy, _ in view.policies.newest(_MOST_VERSIONS)]
        later = [policy for policy in newest if policy.created_at >= since]
        if len(later) == _MOST_VERSIONS:
            return f"{_MOST_VERSIONS} versions and more were made since, which are too many to look through"
        return _first(turn, later, foundation.blobs)

    return learned


def _first(turn: str, versions: Iterable[PolicyVersion], blobs: Blobs) -> str | None:
    from learner.versions import manifest

    for version in versions:
        if version.manifest is None:
            continue
        try:
            made = manifest.decode(blobs.get(version.manifest))
        except OSError as error:
            return f"whether version {version.version.version} learned from it cannot be read ({error})"
        if any(record.inference_id == turn and record.dropped is None for record in made.turns):
            return f"version {version.version.version} has learned from it since"
    return None
