"""`onward backup` and `onward restore`: a service as it is, in files, and back."""

import json
import sys
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

    record_command(directory, overrides_of(set_), "read", "onward backup")
    made = back_up(directory, into, overrides_of(set_))
    print(json.dumps({"backup": str(into), "rows": made.rows, "records": made.records, "files": len(made.files)}))


def restore(
    directory: Directory = DEFAULT_DIRECTORY,
    *,
    from_: Annotated[Path, Parameter(name="--from", help="The folder that `onward backup` wrote.")],
    erasures: Annotated[
        tuple[Path, ...],
        Parameter(
            negative="",
            help="What was erased since: the directory of a service that is still there, the answer to GET "
            "/v1/erasures in a file, or a signed statement. May be given several times.",
        ),
    ] = (),
    set_: Set = None,
) -> None:
    """Bring back what a backup holds, where there is nothing yet; then `onward run` goes on from it.

    What was erased after the backup was made comes back with it, but what `--erasures` names: that is redacted at once,
    and erased everywhere else as soon as the service runs.

    The directory may hold `onward.toml` and `rewards.toml`, which stay; in mode `distributed` Kafka's topics and
    Postgres's tables must be empty, or missing."""
    from onward.backups.erasures import read_erased
    from onward.backups.restore import restore as restore_backup
    from onward.commands.accounts.deeds import record_command

    made, given = restore_backup(from_, directory, overrides_of(set_), read_erased(erasures, overrides_of(set_)))
    if given:
        record_command(directory, overrides_of(set_), "delete", "onward restore")
    if not erasures:
        print(f"what was erased after {made.taken_at.isoformat()} came back with it: see --erasures", file=sys.stderr)
    print(
        json.dumps(
            {
                "from": str(from_),
                "taken_at": made.taken_at.isoformat(),
                "rows": made.rows,
                "records": made.records,
                "erasures": given,
            }
        )
    )
