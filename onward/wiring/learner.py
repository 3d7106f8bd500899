"""The building of the learner."""

from pathlib import Path
from typing import TYPE_CHECKING

from core.errors import EngineUnavailable
from core.settings import LearnerSettings
from onward.wiring.engines import publish_anchor
from onward.wiring.foundation import Foundation
from onward.wiring.sharing import withdrawals

if TYPE_CHECKING:
    from learner.model.ranks import Ranks
    from learner.sequences.kept_out import SuiteSolutions
    from learner.stage import Learner


def build_learner(foundation: Foundation, ranks: "Ranks | None" = None) -> "Learner":
    """Build the learner; `ranks` are the processes that follow this one.

    Raises EngineUnavailable before there is a first version."""
    from learner.model.ranks import ALONE
    from learner.policies.roster import Roster
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
        suites_kept_out(foundation.settings.learner),
        load_renderer(foundation.model).tokenizer_digest,
        ranks or ALONE,
        foundation.settings.stages.record_attempts,
        Roster(foundation.settings.policies, foundation.settings.sharing),
        withdrawals(foundation),
    )


def _require_anchor(foundation: Foundation) -> None:
    """Raise EngineUnavailable until the service, which starts beside the learner, has released the given model."""
    with foundation.store.look() as view:
        if view.releases.live(foundation.settings.serving.cluster) is None:
            raise EngineUnavailable("the given model is not released yet")


def suites_kept_out(settings: LearnerSettings) -> "list[SuiteSolutions]":
    """Return the suites whose solutions turns to learn from must not resemble. Raises ConfigError."""
    return [solutions_of(suite) for suite in settings.admission.keep_out or ()]


def solutions_of(suite: Path) -> "SuiteSolutions":
    """Return what a suite's cases have as solutions; a suite whose drafts wait may have no cases yet.

    Raises ConfigError."""
    from learner.sequences.kept_out import SuiteSolutions
    from serving.evals.cases import load_suite
    from serving.evals.task_cases import found_in

    if (suite / "drafts").is_dir() and not found_in(suite, "*.toml"):
        return SuiteSolutions(suite.name, "")
    loaded = load_suite(suite)
    return SuiteSolutions(suite.name, loaded.digest, loaded.solutions())
