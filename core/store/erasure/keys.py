"""Keys of sessions, with which their records are sealed before they reach a medium that cannot be rewritten."""

import os
from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Final

from sqlalchemy import delete, insert, select, update

from core.clock import to_micros
from core.ids import Namespace, SessionId
from core.store.database import tables
from core.store.database.locks import Lock, hold
from core.store.database.repository import Repository

_table = tables.session_keys
_ID_BYTES: Final = 16
KEY_BYTES: Final = 32
_PART: Final = 400


class SessionKeysReader(Repository):
    """The keys that there are."""

    def get_many(self, key_ids: Collection[bytes]) -> dict[bytes, bytes]:
        """Return those of the keys that are not deleted."""
        found: dict[bytes, bytes] = {}
        ids = list(key_ids)
        for start in range(0, len(ids), _PART):
            query = select(_table.c.key_id, _table.c.key).where(_table.c.key_id.in_(ids[start : start + _PART]))
            found |= {bytes(row.key_id): bytes(row.key) for row in self._connection.execute(query)}
        return found


class SessionKeys(SessionKeysReader):
    """The keys: who appends a session's record asks for its key, the eraser retires and deletes it."""

    def of_session(self, namespace: Namespace, session: SessionId, now: datetime) -> tuple[bytes, bytes]:
        """Return (id, key) for new records of a session, made at the first use."""
        if (known := self._newest(namespace, session)) is not None:
            return known
        hold(self._connection, Lock.EXCLUSIONS)
        if (known := self._newest(namespace, session)) is not None:  # another process was faster
            return known
        key_id, key = os.urandom(_ID_BYTES), os.urandom(KEY_BYTES)
        self._connection.execute(
            insert(_table).values(
                key_id=key_id, namespace=namespace, session_id=session, key=key, made_at=to_micros(now)
            )
        )
        return key_id, key

    def retire(self, namespace: Namespace, sessions: Iterable[SessionId], now: datetime) -> int:
        """Let no new record be sealed with the keys of sessions; return how many keys they have."""
        chosen = list(sessions)
        count = 0
        for start in range(0, len(chosen), _PART):
            part = chosen[start : start + _PART]
            of = _table.c.namespace == namespace, _table.c.session_id.in_(part)
            self._connection.execute(
                update(_table).where(*of, _table.c.retired_at.is_(None)).values(retired_at=to_micros(now))
            )
            count += len(self._connection.execute(select(_table.c.key_id).where(*of)).all())
        return count

    def delete(self, namespace: Namespace, sessions: Iterable[SessionId], before: datetime) -> int:
        """Delete the keys that were retired before that time; return how many that were."""
        chosen, count = list(sessions), 0
        for start in range(0, len(chosen), _PART):
            of = _table.c.namespace == namespace, _table.c.session_id.in_(chosen[start : start + _PART])
            gone = delete(_table).where(*of, _table.c.retired_at <= to_micros(before))
            count += self._connection.execute(gone).rowcount
        return count

    def _newest(self, namespace: Namespace, session: SessionId) -> tuple[bytes, bytes] | None:
        of = _table.c.namespace == namespace, _table.c.session_id == session, _table.c.retired_at.is_(None)
        row = self._connection.execute(select(_table.c.key_id, _table.c.key).where(*of).limit(1)).one_or_none()
        return None if row is None else (bytes(row.key_id), bytes(row.key))
