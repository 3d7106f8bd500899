"""`onward keys`: changes API keys in the store, where running services see them."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Column, Table
from rich.text import Text

from api.access.identity import TAKEN, KeyRing
from api.operator.accounts.keys import KeyBody
from core.clock import SystemClock
from core.errors import ConfigError, InvalidRequest
from core.ids import Namespace
from core.operations.keys import PREFIX, KeyWish, Party, StoredKey, check_wish, key_digest, make_key, revoked, rotated
from core.store.work import Work
from onward.commands.accounts.deeds import by_shell, head_file, write_deed
from onward.output import console, show_list
from onward.replays.history import require_directory
from onward.wiring.foundation import open_store, read_directory

_LEAST_CHARACTERS = 22  # of 128 random bits, in base64


def create(directory: Path, overrides: Mapping[str, str], wished: dict[str, Any]) -> None:
    """Make a key as `POST /v1/keys` does. Raises ConfigError naming the option."""
    now = SystemClock().now()
    place = _Place(directory, overrides)
    with place.writing() as work:
        body = _read(wished)
        stored = work.keys.all()
        ring = KeyRing(place.settings.api, None)
        namespace = Namespace(body.namespace)
        user = ring.user_hash(namespace, body.user)
        wish = KeyWish(**{**msgspec.structs.asdict(body), "namespace": namespace, "user": user})
        try:
            check_wish(
                wish, [*ring.parties(), *(Party(key.name, key.namespace, key.user) for key in stored)], TAKEN, now
            )
        except InvalidRequest as error:
            raise ConfigError(f"--{error.message}") from error
        text, made = make_key(wish, by_shell(), now)
        work.keys.add(made)
        write_deed(work, "change", "onward keys create", namespace, key_id=made.key_id)
    _print_once(text, made)


def _read(wished: dict[str, Any]) -> KeyBody:
    try:
        return msgspec.convert({name: value for name, value in wished.items() if value is not None}, KeyBody)
    except msgspec.ValidationError as error:
        raise ConfigError(f"onward keys create: {error}") from error


def show(directory: Path, overrides: Mapping[str, str], *, as_json: bool) -> None:
    require_directory(directory, overrides)
    layout, settings = read_directory(directory, overrides)
    with closing(open_store(layout, settings)) as store, store.look() as view:
        found = view.keys.all()
    table = Table(
        Column("id", no_wrap=True),
        "name",
        "namespace",
        "scopes",
        "made",
        "ends",
        "last used",
        title="API keys of the store",
    )
    for key in found:
        ends = f"revoked {_day(key.revoked_at)}" if key.revoked_at else _day(key.expires_at) if key.expires_at else "-"
        used = "never" if key.used_at is None else f"{key.used_at:%Y-%m-%d %H}h"
        cells = key.key_id, key.name, key.namespace, ", ".join(key.scopes), _day(key.created_at), ends, used
        table.add_row(*map(Text, cells))  # names may hold what rich takes for markup
    known = ("key_id", "name", "namespace", "scopes", "created_at", "expires_at", "revoked_at", "used_at")
    rows = [{name: getattr(key, name) for name in known} for key in found]
    if show_list(rows, table, as_json=as_json) and settings.api.keys:
        console().print(f"{len(settings.api.keys)} more stand in the settings")


def _day(moment: Any) -> str:
    return f"{moment:%Y-%m-%d %H:%M}"


def revoke(directory: Path, overrides: Mapping[str, str], key_id: str) -> None:
    require_directory(directory, overrides)
    with _Place(directory, overrides).writing() as work:
        key = _get(work, key_id)
        if key.revoked_at is None:
            work.keys.replace(revoked(key, by_shell(), SystemClock().now()))
            write_deed(work, "change", "onward keys revoke", key.namespace, key_id=key_id)
    print(f"{key_id} is revoked")


def rotate(directory: Path, overrides: Mapping[str, str], key_id: str, overlap_s: float) -> None:
    require_directory(directory, overrides)
    now = SystemClock().now()
    with _Place(directory, overrides).writing() as work:
        key = _get(work, key_id)
        if key.is_over(now):
            raise ConfigError(f"{key_id}: is over; make a new key by `onward keys create`")
        text, new, old = rotated(key, by_shell(), now, overlap_s)
        work.keys.replace(old)
        work.keys.add(new)
        write_deed(work, "change", "onward keys rotate", key.namespace, key_id=key_id, successor=new.key_id)
    _print_once(text, new)


def hash_key() -> None:
    key = sys.stdin.readline().strip()
    if not key.startswith(PREFIX) and len(key) < _LEAST_CHARACTERS:
        raise ConfigError("a key so short can be guessed from its hash: make one by `onward keys create`")
    print(key_digest(key.encode()))


class _Place:
    """A service's directory, whose keys a command changes."""

    def __init__(self, directory: Path, overrides: Mapping[str, str]) -> None:
        self._layout, self.settings = read_directory(directory, overrides)

    @contextmanager
    def writing(self) -> Iterator[Work]:
        """Yield a unit of work that holds all keys; afterwards the audit trail's head is kept."""
        with closing(open_store(self._layout, self.settings)) as store:
            with store.work() as work:
                work.keys.hold()
                yield work
            head_file(self._layout, self.settings).keep(store)


def _get(work: Work, key_id: str) -> StoredKey:
    key = work.keys.get(key_id)
    if key is None:
        raise ConfigError(f"{key_id}: no such key; `onward keys list` has them all")
    return key


def _print_once(text: str, key: StoredKey) -> None:
    """Print the key alone on standard output, for a file or a pipe, and all else beside it."""
    print(f"{key.key_id} for {key.namespace}; it is shown this once:", file=sys.stderr)
    print(text)
