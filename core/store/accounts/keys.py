"""API keys, of which the store has digests alone."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Row, func, insert, or_, select, update

from core import codec
from core.clock import from_micros, to_micros
from core.operations.keys import StoredKey
from core.store.database import tables
from core.store.database.locks import Lock, hold
from core.store.database.repository import Repository

_table = tables.api_keys
_encode = codec.encoder().encode
_decode = codec.decoder(StoredKey).decode


class KeysReader(Repository):
    def revision(self) -> int:
        """Return a number that grows with every change of any key; 0 before the first."""
        return self._connection.execute(select(func.max(_table.c.revision))).scalar() or 0

    def all(self) -> list[StoredKey]:
        """Return all keys, those too that are over, the oldest first."""
        rows = self._connection.execute(select(_table))
        return sorted(map(_stored, rows), key=lambda key: (key.created_at, key.key_id))

    def get(self, key_id: str) -> StoredKey | None:
        row = self._connection.execute(select(_table).where(_table.c.key_id == key_id)).one_or_none()
        return None if row is None else _stored(row)


class Keys(KeysReader):
    """The keys. Those who read some and then write hold them: `hold`."""

    def hold(self) -> None:
        """Hold all keys until the transaction ends: nobody else makes or changes one meanwhile."""
        hold(self._connection, Lock.KEYS)

    def add(self, key: StoredKey) -> None:
        self.hold()
        values = {"key_id": key.key_id, "digest": key.digest, "record": _encode(key), "revision": self.revision() + 1}
        self._connection.execute(insert(_table).values(values))

    def replace(self, key: StoredKey) -> None:
        """Store how a key is from now on."""
        self.hold()
        values = {"record": _encode(key), "revision": self.revision() + 1}
        self._connection.execute(update(_table).where(_table.c.key_id == key.key_id).values(values))

    def note_use(self, key_ids: Iterable[str], hour: datetime) -> None:
        """Note that keys were used in this hour, unless a later use is known."""
        at = to_micros(hour)
        for key_id in sorted(key_ids):
            is_news = or_(_table.c.used_at.is_(None), _table.c.used_at < at)
            self._connection.execute(update(_table).where(_table.c.key_id == key_id, is_news).values({"used_at": at}))


def _stored(row: Row[Any]) -> StoredKey:
    used_at = None if row.used_at is None else from_micros(row.used_at)
    return msgspec.structs.replace(_decode(row.record), used_at=used_at)
