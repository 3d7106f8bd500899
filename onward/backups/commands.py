"""`onward backup` and `onward restore`: a service as it is, in files, and back."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from onward.commands.options import DEFAULT_DIRECTORY, Directory, Set, overrides_of


def backup(
    directory: Directory = DEFAULT_DIRECTORY,
    *,
    into: Annotated[Path, Parameter(help="A new folder for the backup. It holds users' words, and settings.")],
    set_: Set = None,
) -> None:
    """Write everything that a service is, log, store, blobs and directory at one point, to a folder; it may run on."""
    from onward.backups.backup import back_up
    from onward.commands.accounts.deeds import record_command
    from onward.output import show_line

    record_command(directory, overrides_of(set_), "read", "onward backup")
    made = back_up(directory, into, overrides_of(set_))
    show_line({"backup": str(into), "rows": made.rows, "records": made.records, "files": len(made.files)})


def restore(
    directory: Directory = DEFAULT_DIRECTORY,
    *,
    from_: Annotated[Path, Parameter(name="--from", help="The folder that `onward backup` wrote.")],
    set_: Set = None,
) -> None:
    """Bring back what a backup holds, where there is nothing yet; then `onward run` goes on from it.

    The directory may hold `onward.toml` and `rewards.toml`, which stay; in mode `distributed` Kafka's topics and
    Postgres's tables must be empty, or missing."""
    from onward.backups.restore import restore as restore_backup
    from onward.commands.accounts.deeds import record_command
    from onward.output import show_line

    made = restore_backup(from_, directory, overrides_of(set_))
    record_command(directory, overrides_of(set_), "change", "onward restore")
    told = {"from": str(from_), "taken_at": made.taken_at.isoformat(), "rows": made.rows, "records": made.records}
    show_line(told)
