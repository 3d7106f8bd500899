"""The building of the learner."""

from typing import TYPE_CHECKING

from core.errors import EngineUnavailable
from core.settings import LearnerSettings
from onward.wiring.engines import publish_anchor
from onward.wiring.foundation import Foundation

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
        solutions_kept_out(foundation.settings.learner),
        load_renderer(foundation.model).tokenizer_digest,
        ranks or ALONE,
        foundation.settings.stages.record_attempts,
    )


def _require_anchor(foundation: Foundation) -> None:
    """Raise EngineUnavailable until the service, which starts beside the learner, has released the given model."""
    with foundation.store.look() as view:
        if view.releases.live(foundation.settings.serving.cluster) is None:
            raise EngineUnavailable("the given model is not released yet")


def solutions_kept_out(settings: LearnerSettings) -> dict[str, str]:
    """Return the solutions that turns to learn from must not resemble, by case. Raises ConfigError."""
    from serving.evals.cases import load_suite

    return {} if settings.admission.keep_out is None else load_suite(settings.admission.keep_out).solutions()
