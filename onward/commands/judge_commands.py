"""`onward judge`: the stage, and how well it does. Imports what a command needs when it runs, as `onward.cli` does."""

from typing import Annotated

from cyclopts import App, Parameter

from onward.commands.options import DEFAULT_DIRECTORY, ChildName, Directory, Set, overrides_of

judge = App(name="judge", help="A language model that says how good answers are: let it judge, see how well it does.")


@judge.default
def run_judge(directory: Directory = DEFAULT_DIRECTORY, *, child: ChildName = None, set_: Set = None) -> None:
    """Judge turns as `[judge]` says, until stopped; in mode `distributed` a second one stands by. `run` does it too."""
    from onward.processes.stages import run_judge

    run_judge(directory, overrides_of(set_), child)


@judge.command(name="agreement")
def show_agreement(
    directory: Directory = DEFAULT_DIRECTORY,
    *,
    json_: Annotated[bool, Parameter(name="--json", negative="", help="All figures, as JSON.")] = False,
    set_: Set = None,
) -> None:
    """Hold what the judge said of turns against what became of them, by version of the judge."""
    from onward.commands.judge import show_agreement

    show_agreement(directory, overrides_of(set_), as_json=json_)
