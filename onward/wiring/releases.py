"""The building of the release controller."""

from functools import partial
from typing import TYPE_CHECKING

from core.errors import ConfigError, from_extra
from core.ports import EventLog, Renderer
from onward.wiring.engines import Serving, ask_fleet
from onward.wiring.foundation import Foundation, holder
from onward.wiring.log.needed import needed_by_others

if TYPE_CHECKING:
    from serving.evals.cases import Suite
    from serving.evals.run import OpenAttempts
    from serving.releases import ReleaseController
    from serving.releases.cases import CaseGate


def build_releases(foundation: Foundation, log: EventLog, serving: Serving | None) -> "ReleaseController":
    """Build the release controller; `serving` is that of the same process.

    Raises ConfigError naming the setting, or the file and the case, at fault."""
    from serving.engines.model_facts import read_model_facts
    from serving.releases import ReleaseController

    settings = foundation.settings
    controller = ReleaseController(
        log,
        foundation.store,
        foundation.weights,
        settings.serving,
        settings.release,
        read_model_facts(foundation.model).vocabulary,
        foundation.clock,
        holder=holder(),
        on_change=None if serving is None else serving.targets_changed,
        cases=_build_cases(foundation, serving),
        policies=settings.policies,
        needed=needed_by_others(foundation),
    )
    if serving is not None:
        serving.when_status_changes(controller.wake)
    return controller


def _build_cases(foundation: Foundation, serving: Serving | None) -> "CaseGate | None":
    from serving.evals.cases import load_suite
    from serving.releases.cases import CaseGate
    from serving.rendering import load_renderer

    settings = foundation.settings
    if settings.release.evals.suite is None:
        return None
    if serving is None and settings.serving.engine == "local":
        raise ConfigError(
            "release.evals.suite: with serving.engine local only the service can ask cases: set release.controller true"
        )
    ask = partial(ask_fleet, foundation) if serving is None else serving.asking
    suite = load_suite(settings.release.evals.suite)
    renderer = load_renderer(foundation.model, family=settings.serving.family)
    attempts = open_attempts(foundation, suite, renderer) if suite.has_tasks else None
    return CaseGate(suite, ask, renderer, settings.release.evals, foundation.clock, attempts)


def open_attempts(foundation: Foundation, suite: "Suite", renderer: Renderer) -> "OpenAttempts":
    """Return what lets agents work on the suite's tasks. Raises ConfigError for a task that cannot be honoured here."""
    with from_extra("environments", "release.evals.suite: it has tasks for agents"):
        from environments.harness.harness import Budget
        from onward.trials.attempts import Attempts, Workplace
        from onward.trials.version_service import serve_version

    settings = foundation.settings
    tokens = settings.serving.context_length or Budget().context_tokens
    folder = settings.rollouts.prepared or foundation.layout.rollouts
    at_once = max(1, settings.release.evals.concurrency // 2)  # for each of the two versions
    workplace = Workplace(folder, settings.rollouts.images, Budget(context_tokens=tokens), at_once)
    serve = partial(serve_version, renderer=renderer, spec=foundation.spec, model=settings.serving.model_name)
    return Attempts(suite, workplace, serve).opened
