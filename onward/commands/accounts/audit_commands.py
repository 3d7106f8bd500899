"""The commands `onward audit`, as the command line has them. What they need is imported when they run."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from onward.commands.options import DEFAULT_DIRECTORY, Directory, Set, overrides_of

audit = App(name="audit", help="The trail of who read, ordered, changed or deleted what.")


@audit.command(name="verify")
def verify_trail(
    directory: Directory = DEFAULT_DIRECTORY,
    *,
    file: Annotated[Path | None, Parameter(help="An export of the whole trail, instead of the store's.")] = None,
    head: Annotated[
        list[Path] | None, Parameter(negative="", help="A head that was kept elsewhere, which must be in the trail.")
    ] = None,
    json_: Annotated[bool, Parameter(name="--json", negative="", help="What was found, as JSON.")] = False,
    set_: Set = None,
) -> None:
    """Check that no entry was changed, removed or cut off; exit code 1 where one was.

    Digests show changes, and heads what is missing at the end: the one in DIR, and those that you kept elsewhere."""
    from onward.commands.accounts.audit import verify

    sys.exit(0 if verify(directory, overrides_of(set_), file, head or (), as_json=json_) else 1)


@audit.command(name="export")
def export_trail(
    directory: Directory = DEFAULT_DIRECTORY,
    *,
    out: Annotated[Path, Parameter(help="A file for JSON lines, the oldest entry first.")],
    namespace: Annotated[str | None, Parameter(help="Only what is about this namespace.")] = None,
    set_: Set = None,
) -> None:
    """Write the trail to a file, which is itself an entry, and print the head."""
    from onward.commands.accounts.audit import export

    export(directory, overrides_of(set_), out, namespace)


@audit.command(name="head")
def show_trails_head(directory: Directory = DEFAULT_DIRECTORY, *, set_: Set = None) -> None:
    """Print the newest entry's number and digest, to be kept elsewhere: `onward audit verify --head FILE`."""
    from onward.commands.accounts.audit import show_head

    show_head(directory, overrides_of(set_))
