"""The building of the learner."""

from typing import TYPE_CHECKING

from core.errors import EngineUnavailable
from onward.wiring.engines import publish_anchor
from onward.wiring.foundation import Foundation
from onward.wiring.suites.kept_out import WatchedSuites

if TYPE_CHECKING:
    from learner.model.ranks import Ranks
    from learner.stage import Learner


def build_learner(foundation: Foundation, ranks: "Ranks | None" = None) -> "Learner":
    """Build the learner; `ranks` are the processes that follow this one.

    Raises EngineUnavailable before there is a first version."""
    from learner.model.ranks import ALONE
    from learner.stage import Learner
    from serving.rendering import load_renderer

    if not foundation.is_shared:
        _require_anchor(foundation)
    publish_anchor(foundation, foundation.log)
    return Learner(
        foundation.log,
        foundation.store,
        foundation.weights,
        foundation.blobs,
        foundation.settings.learner,
        foundation.model,
        foundation.layout.learner,
        foundation.clock,
        WatchedSuites(foundation.settings.learner),
        load_renderer(foundation.model).tokenizer_digest,
        ranks or ALONE,
        foundation.settings.stages.record_attempts,
    )


def _require_anchor(foundation: Foundation) -> None:
    """Raise EngineUnavailable until the service, which starts beside the learner, has released the given model."""
    with foundation.store.look() as view:
        if view.releases.live(foundation.settings.serving.cluster) is None:
            raise EngineUnavailable("the given model is not released yet")
