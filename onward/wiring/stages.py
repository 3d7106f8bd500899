"""The table of stages, from which the threads and processes of `onward run` and the commands are made.

Imports what a stage needs when it is made."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.events import Topic

if TYPE_CHECKING:
    from core.ports import Announcer, EventLog
    from core.settings import Settings
    from core.stages.lease import Lease
    from core.stages.stage import Stage
    from onward.wiring.engines import Serving
    from onward.wiring.foundation import Foundation


@dataclass(frozen=True)
class Neighbours:
    """The other parts of a stage's process that it may use."""

    log: "EventLog"
    announcer: Callable[[], "Announcer | None"]
    """Makes the announcer of new rewards; None: readers of the reward stream look for themselves."""
    serving: "Serving | None" = None


@dataclass(frozen=True)
class StageRow:
    command: str
    """The command of a process of this stage alone: `onward COMMAND`."""
    name: str
    """The name of its thread or process in `onward run`, and of its lease."""
    help: str
    make: Callable[["Foundation", Neighbours], "Stage"]
    is_wanted: Callable[["Settings"], bool] = lambda _: True
    count: Callable[["Settings"], int] | None = None
    """How many `onward run` starts in mode `distributed`; None: one, where it is wanted."""
    is_child: bool = False
    """Whether it is a process of its own also where the others are threads of one service."""
    is_leased: bool = True
    """Whether, of all that run anywhere, only one may work: the holder of the lease. Else they share the work."""
    reads: Topic | None = None
    """The topic of which it keeps in the store, as the group `name`, how far it has come: retention waits for it, and
    the API tells how far behind it is."""

    def names(self, settings: "Settings") -> list[str]:
        """Return the names of its processes in mode `distributed`."""
        if self.count is None:
            return [self.name] if self.is_wanted(settings) else []
        return [f"{self.command}-{number}" for number in range(1, self.count(settings) + 1)]

    def lease(self, foundation: "Foundation") -> "Lease | None":
        """Return its lease, or None where no other process may work on this log and store, or all may."""
        from core.stages.lease import Lease
        from onward.wiring.foundation import holder

        if not self.is_leased or not foundation.is_shared:
            return None
        return Lease(self.name, holder(), foundation.store, foundation.clock, foundation.settings.release.lease_s)


def _writer(foundation: "Foundation", beside: Neighbours) -> "Stage":
    from ingest.writer import Writer

    settings = foundation.settings
    return Writer(beside.log, foundation.store, settings.ingest, foundation.clock, settings.stages.record_attempts)


def _scorer(foundation: "Foundation", beside: Neighbours) -> "Stage":
    from scoring.stage import Scorer

    settings, store, clock = foundation.settings, foundation.store, foundation.clock
    attempts, announcer = settings.stages.record_attempts, beside.announcer()
    return Scorer(beside.log, store, foundation.spec, settings.scoring, clock, announcer, attempts)


def _releases(foundation: "Foundation", beside: Neighbours) -> "Stage":
    from onward.wiring.releases import build_releases

    return build_releases(foundation, beside.log, beside.serving)


def _learner(foundation: "Foundation", _: Neighbours) -> "Stage":
    from onward.wiring.learner import build_learner

    return build_learner(foundation)


def _monitors(foundation: "Foundation", beside: Neighbours) -> "Stage":
    from scoring.watching import MonitorStage

    settings, store, clock = foundation.settings, foundation.store, foundation.clock
    return MonitorStage(beside.log, store, foundation.spec, settings.monitors, clock, settings.stages.record_attempts)


def _notifier(foundation: "Foundation", _: Neighbours) -> "Stage":
    from core.errors import ConfigError
    from scoring.alerts.stage import Notifier

    if not foundation.settings.alerts.targets:
        raise ConfigError("alerts.targets is empty: there is nobody to tell")
    return Notifier(foundation.store, foundation.settings.alerts, foundation.clock)


def _judge(foundation: "Foundation", beside: Neighbours) -> "Stage":
    from core.errors import ConfigError
    from scoring.judge import Judge

    settings, store, clock = foundation.settings, foundation.store, foundation.clock
    if not settings.judge.enabled:
        raise ConfigError("judge.enabled is false: there is nothing to do")
    return Judge(beside.log, store, foundation.spec, settings.judge, clock, settings.stages.record_attempts)


def _archive(foundation: "Foundation", _: Neighbours) -> "Stage":
    from onward.wiring.log.archive import build_keeper

    return build_keeper(foundation, wanted_readers(foundation.settings))


def _rollouts(foundation: "Foundation", _: Neighbours) -> "Stage":
    from core.errors import from_extra

    with from_extra("environments", "rollouts.enabled"):
        from onward.wiring.rollouts import Rollouts
    return Rollouts(foundation.layout, foundation.settings)


STAGES = (
    StageRow(
        "ingest",
        "writer",
        "Copy turns and outcomes from the log to the store, until stopped; several share the partitions.",
        _writer,
        count=lambda settings: settings.processes.ingest,
        is_leased=False,
        reads=Topic.TURNS,
    ),
    StageRow(
        "score",
        "scorer",
        "Turn outcomes into rewards, until stopped; several share the partitions.",
        _scorer,
        count=lambda settings: settings.processes.score,
        is_leased=False,
        reads=Topic.TURNS,
    ),
    StageRow(
        "release",
        "releases",
        "Decide on releases, until stopped; a second one stands by. For services with `release.controller` false.",
        _releases,
        is_wanted=lambda settings: settings.release.controller,
        count=lambda settings: settings.processes.release,
        is_leased=False,  # its chain has one, which fences all that it writes
    ),
    StageRow(
        "learn",
        "learner",
        "Update the weights from rewards, until stopped; in mode `distributed` a second one stands by.",
        _learner,
        is_wanted=lambda settings: settings.learner.enabled,
        is_child=True,
    ),
    StageRow(
        "watch",
        "monitors",
        "Watch turns and rewards for a model that games them, and raise alarms, until stopped; a second one stands by. "
        "`run` does it, too.",
        _monitors,
        is_wanted=lambda settings: settings.monitors.enabled,
    ),
    StageRow(
        "notify",
        "notifier",
        "Tell Alertmanager and webhooks of alarms that open and close, as `[alerts]` says, until stopped; a second one "
        "stands by. `run` does it, too.",
        _notifier,
        is_wanted=lambda settings: bool(settings.alerts.targets),
    ),
    StageRow(
        "judge",
        "judge",
        "Judge turns as `[judge]` says, until stopped; in mode `distributed` a second one stands by. `run` does it, "
        "too.",
        _judge,
        is_wanted=lambda settings: settings.judge.enabled,
        reads=Topic.TURNS,
    ),
    StageRow(
        "archive",
        "archive",
        "Copy turns and rewards from the log into Parquet files and delete what is old, as `[archive]` says, until "
        "stopped; a second one stands by.",
        _archive,
        is_wanted=lambda settings: settings.archive.has_work,
        is_child=True,
    ),
    StageRow(
        "rollouts",
        "rollouts",
        "Let the model work on tasks in sandboxes, as `[rollouts]` says, with a progress bar and a report; goes on "
        "where it was. `run` does it beside the users, where it is enabled.",
        _rollouts,
        is_wanted=lambda settings: settings.rollouts.enabled,
        is_child=True,
    ),
)


def readers() -> dict[str, Topic]:
    """Return the topic that each stage reads which keeps in the store how far it has come, by the stage's name."""
    return {row.name: row.reads for row in STAGES if row.reads is not None}


def wanted_readers(settings: "Settings") -> dict[str, Topic]:
    """Return the same for the stages that the settings ask for."""
    return {row.name: row.reads for row in STAGES if row.reads is not None and row.is_wanted(settings)}


def row_of(command: str) -> StageRow:
    return next(row for row in STAGES if row.command == command)
