"""`onward audit`: checks the audit trail against its digests and heads, and writes it to a file."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from core.errors import ConfigError
from core.operations.audit import AuditHead, StoredEntry, Tampered, find_tampering
from core.records.audit_head import HeadFile
from core.store import SqlStore
from onward.commands.accounts.deeds import deed_of, head_file, record
from onward.output import console, show_line
from onward.replays.history import require_directory
from onward.wiring.foundation import open_store, read_directory

_MOST_SHOWN = 20


def verify(
    directory: Path, overrides: Mapping[str, str], file: Path | None, heads: Iterable[Path], *, as_json: bool
) -> bool:
    """Check the store's trail, or one in a file, against the heads that were kept; return whether it is whole."""
    with _opened(directory, overrides) as (store, own, key):
        last = own.read()
        kept = [*([] if last is None else [last]), *map(_read_head, heads)]
        with store.look() as view:
            entries = _Counted(view.audit.in_order() if file is None else _from_file(file))
            found = list(find_tampering(entries, kept, key))
    count = entries.count
    if as_json:
        show_line({"entries": count, "heads": len(kept), "found": found})
    else:
        _say(count, len(kept), found)
    return not found


class _Counted:
    """Entries that are counted as they pass, since there may be more than memory holds."""

    def __init__(self, entries: Iterable[StoredEntry]) -> None:
        self._entries = entries
        self.count = 0

    def __iter__(self) -> Iterator[StoredEntry]:
        for entry in self._entries:
            self.count += 1
            yield entry


def _say(count: int, heads: int, found: list[Tampered]) -> None:
    shown = console()
    for each in found[:_MOST_SHOWN]:
        shown.print(f"entry {each.sequence}: {each.why}")
    if len(found) > _MOST_SHOWN:
        shown.print(f"and {len(found) - _MOST_SHOWN} more")
    beside = "no head was kept, so that nobody can say whether its end is missing" if not heads else f"heads: {heads}"
    entries = f"{count} {'entry' if count == 1 else 'entries'}"
    shown.print(f"{entries}; {beside}; {'the trail is whole' if not found else 'the trail was changed'}")


def export(directory: Path, overrides: Mapping[str, str], out: Path, namespace: str | None) -> None:
    """Write the trail as JSON lines, each an entry with its digest, and print how many, with the head."""
    if out.suffix.lower() == ".csv":
        raise ConfigError(f"--out {out}: entries have no columns in common: they are lines of JSON, for a .jsonl")
    with _opened(directory, overrides) as (store, own, _):
        record(store, own, deed_of("read", "onward audit export", namespace))
        count = 0
        with store.look() as view, out.open("w") as lines:
            head = own.sealed(view.audit.head())
            for entry in view.audit.in_order():
                if namespace in (None, entry.namespace):
                    lines.write(json.dumps({**msgspec.json.decode(entry.record), "digest": entry.digest}) + "\n")
                    count += 1
    show_line({"entries": count, "head": head})


def show_head(directory: Path, overrides: Mapping[str, str]) -> None:
    """Print the trail's head as JSON: kept elsewhere, it shows later what was changed or cut off since."""
    with _opened(directory, overrides) as (store, own, _), store.look() as view:
        show_line(own.sealed(view.audit.head()))


@contextmanager
def _opened(directory: Path, overrides: Mapping[str, str]) -> Iterator[tuple[SqlStore, HeadFile, str | None]]:
    """Yield the store, the file of its head, and the key of seals."""
    require_directory(directory, overrides)
    layout, settings = read_directory(directory, overrides)
    with closing(open_store(layout, settings)) as store:
        yield store, head_file(layout, settings), settings.audit.key


def _read_head(path: Path) -> AuditHead:
    head = HeadFile(path).read()
    if head is None:
        raise ConfigError(f"--head {path}: there is no such file")
    return head


def _from_file(path: Path) -> Iterator[StoredEntry]:
    """Yield what an export holds. Raises ConfigError naming the line that is no entry."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--file {path}: {error}") from error
    for number, line in enumerate(lines, 1):
        try:
            fields: dict[str, Any] = json.loads(line)
            digest = str(fields.pop("digest"))
            place = int(fields["sequence"]), str(fields["namespace"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"--file {path}: line {number} is no entry of an audit trail") from error
        yield StoredEntry(*place, msgspec.json.encode(fields, order="sorted"), digest)
