"""`onward dead-letters`: shows records that could not be used, says why, and tries them again."""

import re
from collections.abc import Mapping
from pathlib import Path

from rich.table import Table

from core.codec import decode
from core.errors import ConfigError, OnwardError, Undecodable
from core.events import DeadLetter, Event, Reward, Topic
from ingest.writer import is_usable
from onward.commands.accounts.deeds import deed_of, head_file, record, write_deed
from onward.output import console, show_list
from onward.replays.history import require_directory
from onward.wiring.foundation import Foundation, open_foundation

_NAME = re.compile(r"(.+):(\d+):(\d+)")
_PREVIEW_BYTES = 256


def show_all(directory: Path, overrides: Mapping[str, str], limit: int, *, as_json: bool) -> None:
    require_directory(directory, overrides)
    foundation = open_foundation(directory, overrides)
    try:
        with foundation.store.look() as view:
            letters = view.dead_letters.newest(limit)
    finally:
        foundation.close()
    table = Table("record", "set aside", "bytes", "why", title=f"Dead letters (the latest {limit})")
    for letter in letters:
        table.add_row(_name(letter), f"{letter.at:%Y-%m-%d %H:%M:%S}", str(len(letter.raw)), letter.reason)
    rows = [{"record": _name(each), "at": each.at, "bytes": len(each.raw), "why": each.reason} for each in letters]
    show_list(rows, table, as_json=as_json)


def show_one(directory: Path, overrides: Mapping[str, str], name: str, save: Path | None) -> None:
    """`save`: where its bytes go, as they were in the log."""
    require_directory(directory, overrides)
    foundation = open_foundation(directory, overrides)
    try:
        letter = _get(foundation, name)
        head = head_file(foundation.layout, foundation.settings)
        record(foundation.store, head, deed_of("read", "onward dead-letters show", record=name))
    finally:
        foundation.close()
    shown = console()
    shown.print(f"{_name(letter)}, set aside {letter.at:%Y-%m-%d %H:%M:%S} UTC\n{letter.reason}")
    shown.print(repr(letter.raw[:_PREVIEW_BYTES]) + (" ..." if len(letter.raw) > _PREVIEW_BYTES else ""))
    if save is not None:
        save.write_bytes(letter.raw)


def redrive(directory: Path, overrides: Mapping[str, str], name: str) -> None:
    """Append a dead letter to the end of its topic again.

    A crash in between appends it twice: readers of the log know ids. Raises OnwardError when it still cannot be
    used."""
    require_directory(directory, overrides)
    foundation = open_foundation(directory, overrides)
    try:
        letter = _get(foundation, name)
        foundation.log.append_blocking(Topic(letter.topic), [_usable(letter)])
        with foundation.store.work() as work:
            work.dead_letters.forget(letter)
            write_deed(work, "change", "onward dead-letters redrive", record=name)
        head_file(foundation.layout, foundation.settings).keep(foundation.store)
    finally:
        foundation.close()
    console().print(f"{name} is back in {letter.topic}")


def _get(foundation: Foundation, name: str) -> DeadLetter:
    parts = _NAME.fullmatch(name)
    if parts is None:
        raise ConfigError(f"{name}: want TOPIC:PARTITION:OFFSET, as the list shows")
    with foundation.store.look() as view:
        letter = view.dead_letters.get(parts[1], int(parts[2]), int(parts[3]))
    if letter is None:
        raise ConfigError(f"{name}: no such record was set aside")
    return letter


def _usable(letter: DeadLetter) -> Event:
    try:
        event = decode(letter.raw)
    except Undecodable as error:
        raise OnwardError(f"{_name(letter)} still cannot be used: {error}") from error
    if not (isinstance(event, Reward) if letter.topic == Topic.REWARDS else is_usable(event)):
        raise OnwardError(f"{_name(letter)}: a {type(event).__name__} does not belong into {letter.topic}")
    return event


def _name(letter: DeadLetter) -> str:
    return f"{letter.topic}:{letter.partition}:{letter.offset}"
