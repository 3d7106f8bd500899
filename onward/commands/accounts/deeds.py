"""The audit trail of commands that read or change users' data; requests are in the same trail."""

import os
import pwd
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from core.clock import SystemClock
from core.operations.audit import Deed, DeedKind
from core.ports import Store
from core.records.audit_head import HeadFile
from core.settings import Settings
from core.store.work import Work
from onward.directory.layout import Layout
from onward.replays.history import require_directory
from onward.wiring.foundation import open_store, read_directory


def head_file(layout: Layout, settings: Settings) -> HeadFile:
    return HeadFile(layout.audit_head, settings.audit.key)


def by_shell() -> str:
    """Return the name of the user who runs this command, from the operating system."""
    try:
        return f"shell:{pwd.getpwuid(os.getuid()).pw_name}"
    except KeyError:  # in a container nobody may have given the number a name
        return f"shell:{os.getuid()}"


def deed_of(kind: DeedKind, what: str, namespace: str | None = None, **objects: str) -> Deed:
    now = SystemClock().now()
    return Deed(at=now, by=by_shell(), namespace=namespace or "", kind=kind, what=what, objects=objects)


def write_deed(work: Work, kind: DeedKind, what: str, namespace: str | None = None, **objects: str) -> None:
    """Write a command's line as the last thing in its transaction; call `head_file(…).keep` afterwards."""
    work.audit.append([deed_of(kind, what, namespace, **objects)])


def record_command(
    directory: Path,
    overrides: Mapping[str, str],
    kind: DeedKind,
    what: str,
    namespace: str | None = None,
    **objects: str,
) -> None:
    """Write what a command is about to do. If it raises ConfigError or StoreUnavailable, the command must not go on."""
    require_directory(directory, overrides)
    layout, settings = read_directory(directory, overrides)
    with closing(open_store(layout, settings)) as store:
        record(store, head_file(layout, settings), deed_of(kind, what, namespace, **objects))


def record(store: Store, head: HeadFile, deed: Deed) -> None:
    with store.work() as work:
        work.audit.append([deed])
    head.keep(store)
