"""The exports that were made: which sessions left in which files."""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

import zstandard
from blake3 import blake3
from sqlalchemy import insert, select

from core.clock import to_micros
from core.ids import Namespace, SessionId
from core.store.database import tables
from core.store.database.repository import Repository

_table = tables.exports
_DIGEST_BYTES: Final = 8  # one in 10^13 files of a million sessions is named by mistake


class ExportsReader(Repository):
    """The exports, by what is in them."""

    def holding(self, namespace: Namespace, sessions: Iterable[SessionId]) -> list[str]:
        """Return the places of the exports in which one of these sessions is."""
        wanted = {_digest(namespace, session) for session in sessions}
        rows = self._connection.execute(select(_table.c.place, _table.c.sessions).order_by(_table.c.export_id))
        return [row.place for row in rows if not wanted.isdisjoint(_read(row.sessions))]


class Exports(ExportsReader):
    """The exports, each entered by the command that makes it, before its file appears."""

    def put(self, place: str, form: str, sessions: Iterable[tuple[Namespace, SessionId]], now: datetime) -> None:
        """Enter an export: its file or URL, what it is, and whose sessions are in it."""
        digests = b"".join(sorted({_digest(*session) for session in sessions}))
        data = zstandard.ZstdCompressor().compress(digests)
        values = {"place": place, "form": form, "made_at": to_micros(now), "sessions": data}
        self._connection.execute(insert(_table).values(values))


def _digest(namespace: Namespace, session: SessionId) -> bytes:
    return bytes(blake3(f"{namespace}\0{session}".encode()).digest(_DIGEST_BYTES))


def _read(data: bytes) -> set[bytes]:
    digests = zstandard.ZstdDecompressor().decompress(data)
    return {digests[start : start + _DIGEST_BYTES] for start in range(0, len(digests), _DIGEST_BYTES)}
