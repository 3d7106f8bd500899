"""A command for each stage. Imports what a command needs when it runs, as `onward.cli` does."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from cyclopts import App, Parameter

from core.errors import from_extra
from onward.commands.options import DEFAULT_DIRECTORY, ChildName, Directory, FiguresAsJson, Set, overrides_of
from onward.wiring.stages import StageRow, row_of

Command = App | Callable[..., Any]


def stage_command(row: StageRow) -> Callable[..., None]:
    """Run a stage until stopped."""

    def run(directory: Directory = DEFAULT_DIRECTORY, *, child: ChildName = None, set_: Set = None) -> None:
        from onward.processes.stages import run_stage

        run_stage(row.command, directory, overrides_of(set_), child)

    run.__doc__ = row.help
    return run


def _learn(directory: Directory = DEFAULT_DIRECTORY, *, child: ChildName = None, set_: Set = None) -> None:
    from onward.processes.stages import run_learner

    run_learner(directory, overrides_of(set_), child)


_learn.__doc__ = row_of("learn").help


judge = App(
    name="judge", help="Run the judge, a language model that says how good answers are, or see how well it does."
)
judge.default(stage_command(row_of("judge")))


@judge.command(name="agreement")
def _show_agreement(
    directory: Directory = DEFAULT_DIRECTORY,
    *,
    json_: FiguresAsJson = False,
    set_: Set = None,
) -> None:
    """Compare the judge's opinions of turns with their other outcomes, by version of the judge."""
    from onward.commands.judge import show_agreement

    show_agreement(directory, overrides_of(set_), as_json=json_)


def _archive(
    directory: Directory = DEFAULT_DIRECTORY,
    *,
    once: Annotated[bool, Parameter(negative="", help="Do what is due now, print what it was, and end.")] = False,
    child: ChildName = None,
    set_: Set = None,
) -> None:
    if once:
        from onward.output import show_line
        from onward.replays.history import keep_once

        show_line(keep_once(directory, overrides_of(set_)))
    else:
        from onward.processes.stages import run_stage

        run_stage("archive", directory, overrides_of(set_), child)


_archive.__doc__ = row_of("archive").help


def _rollouts(
    directory: Directory = DEFAULT_DIRECTORY,
    *,
    ray: Annotated[
        str | None, Parameter(help="Address of a Ray cluster on whose nodes the episodes run; `auto`: of this machine.")
    ] = None,
    tries: Annotated[int | None, Parameter(help="Episodes of each task; without it, as the settings say.")] = None,
    demo: Annotated[
        Literal["tiny", "smollm2"] | None,
        Parameter(help="Work on the tasks that come with the program, against a service of its own with that model."),
    ] = None,
    prepared: Annotated[Path, Parameter(help="With --demo: the folder that keeps prepared images.")] = Path(
        "build/environments"
    ),
    child: ChildName = None,
    set_: Set = None,
) -> None:
    overrides = overrides_of(set_)
    overrides |= {} if ray is None else {"ONWARD_ROLLOUTS__RAY": ray}
    overrides |= {} if tries is None else {"ONWARD_ROLLOUTS__TRIES": str(tries)}
    if demo is not None:
        with from_extra("environments", "--demo"):
            from onward.commands.rollouts.demo import run_demo

        run_demo(directory, demo, prepared, overrides)
    elif child is None:
        with from_extra("environments", "onward rollouts"):
            from onward.commands.rollouts.by_hand import run_by_hand

        run_by_hand(directory, overrides)
    else:
        from onward.processes.stages import run_stage

        run_stage("rollouts", directory, overrides, child)


_rollouts.__doc__ = row_of("rollouts").help

COMMANDS_OF_THEIR_OWN: Final[dict[str, Command]] = {
    "learn": _learn,
    "judge": judge,
    "archive": _archive,
    "rollouts": _rollouts,
}
"""Commands of the stages that have more options or subcommands than the others."""
