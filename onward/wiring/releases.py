"""The building of the release controller."""

from functools import partial
from typing import TYPE_CHECKING

from core.errors import ConfigError
from core.ports import EventLog
from onward.wiring.engines import Serving, ask_fleet
from onward.wiring.evals.building import build_task_cases_of_service
from onward.wiring.foundation import Foundation, holder

if TYPE_CHECKING:
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
    evals = settings.release.evals
    tasks = build_task_cases_of_service(
        suite, foundation.layout, settings, allowed=evals.allow_commands, asked_by="release.evals.suite"
    )
    return CaseGate(suite, ask, renderer, evals, foundation.clock, None if tasks is None else tasks.opened)
