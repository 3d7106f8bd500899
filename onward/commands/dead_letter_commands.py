"""The commands `onward dead-letters`: records that could not be used.

Modules that a command needs are imported when it runs, as in `onward.cli`."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from onward.commands.options import DEFAULT_DIRECTORY, AsJson, Directory, Set, overrides_of

Letter = Annotated[str, Parameter(help="The record's name, as `onward dead-letters list` shows it.")]

dead_letters = App(name="dead-letters", help="Records that could not be used: see them, and try them again.")


@dead_letters.command(name="list")
def list_dead_letters(
    directory: Directory = DEFAULT_DIRECTORY,
    *,
    limit: Annotated[int, Parameter(help="Show at most this many.")] = 50,
    json_: AsJson = False,
    set_: Set = None,
) -> None:
    """List dead letters and their reasons, the newest first."""
    from onward.commands.dead_letters import show_all

    show_all(directory, overrides_of(set_), limit, as_json=json_)


@dead_letters.command(name="show")
def show_dead_letter(
    record: Letter,
    directory: Directory = DEFAULT_DIRECTORY,
    *,
    save: Annotated[Path | None, Parameter(help="A file for the record's bytes.")] = None,
    set_: Set = None,
) -> None:
    """Show a dead letter (TOPIC:PARTITION:OFFSET): its reason and its first bytes."""
    from onward.commands.dead_letters import show_one

    show_one(directory, overrides_of(set_), record, save)


@dead_letters.command(name="redrive")
def redrive_dead_letter(record: Letter, directory: Directory = DEFAULT_DIRECTORY, *, set_: Set = None) -> None:
    """Put a dead letter (TOPIC:PARTITION:OFFSET) back at the end of its topic, once this build can read it."""
    from onward.commands.dead_letters import redrive

    redrive(directory, overrides_of(set_), record)
