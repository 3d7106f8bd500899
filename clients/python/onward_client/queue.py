"""The queue of requests that the service has not acknowledged: a SQLite file, or memory."""

import sqlite3
import threading
from dataclasses import dataclass
from pathlib import Path

from onward_client.errors import QueueFull
from onward_client.requests import Queued

_KEPT_REFUSALS = 1000
_TABLES = """
CREATE TABLE IF NOT EXISTS queued (
    place INTEGER PRIMARY KEY AUTOINCREMENT, request_id TEXT NOT NULL UNIQUE,
    method TEXT NOT NULL, path TEXT NOT NULL, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS refused (
    place INTEGER PRIMARY KEY AUTOINCREMENT, request_id TEXT NOT NULL UNIQUE,
    method TEXT NOT NULL, path TEXT NOT NULL, body TEXT NOT NULL, status INTEGER NOT NULL, why TEXT NOT NULL);
"""


@dataclass(frozen=True)
class Refusal:
    """A request that the service refused for good, and why."""

    request: Queued
    status: int
    why: str


class Queue:
    """A bounded queue; what `put` has returned for survives a kill of the process. Any thread may use it.

    Several processes may share a file. Two of them may then send the same request, which counts once."""

    def __init__(self, file: Path | None, most: int) -> None:
        """Open the queue in `file`, or in memory; it holds `most` requests."""
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
        self.is_durable = file is not None
        self._most = most
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(
            file or ":memory:", timeout=30, isolation_level=None, check_same_thread=False
        )
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.executescript(_TABLES)

    def put(self, request: Queued) -> None:
        """Add the request unless it is there. Raises QueueFull, and sqlite3.Error where the disk does not take it."""
        row = request.request_id, request.method, request.path, request.body
        with self._lock:
            added = self._connection.execute(
                "INSERT OR IGNORE INTO queued (request_id, method, path, body) SELECT ?, ?, ?, ?"
                " WHERE (SELECT count(*) FROM queued) < ?",
                (*row, self._most),
            ).rowcount
            if not added and not self._has(request.request_id):
                raise QueueFull(f"{self._most} requests wait to be sent: the service has not answered for long")

    def _has(self, request_id: str) -> bool:
        return (
            self._connection.execute("SELECT 1 FROM queued WHERE request_id = ?", (request_id,)).fetchone() is not None
        )

    def after(self, place: int) -> tuple[int, Queued] | None:
        """Return the oldest request after a place in the queue, with its place; places start at 1."""
        query = "SELECT place, request_id, method, path, body FROM queued WHERE place > ? ORDER BY place LIMIT 1"
        with self._lock:
            row = self._connection.execute(query, (place,)).fetchone()
        return None if row is None else (row[0], Queued(*row[1:]))

    def done(self, request_id: str) -> None:
        """Forget a request that the service has acknowledged."""
        with self._lock:
            self._connection.execute("DELETE FROM queued WHERE request_id = ?", (request_id,))

    def refuse(self, refusal: Refusal) -> None:
        """Move a request to those that were refused, of which the latest thousand are kept."""
        sent = refusal.request
        row = sent.request_id, sent.method, sent.path, sent.body, refusal.status, refusal.why
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute(
                "INSERT OR REPLACE INTO refused (request_id, method, path, body, status, why)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                row,
            )
            self._connection.execute(
                "DELETE FROM refused WHERE place <= (SELECT max(place) FROM refused) - ?", (_KEPT_REFUSALS,)
            )
            self._connection.execute("DELETE FROM queued WHERE request_id = ?", (sent.request_id,))
            self._connection.execute("COMMIT")

    def refused(self) -> list[Refusal]:
        query = "SELECT request_id, method, path, body, status, why FROM refused ORDER BY place"
        with self._lock:
            rows = self._connection.execute(query).fetchall()
        return [Refusal(Queued(*row[:4]), row[4], row[5]) for row in rows]

    def __len__(self) -> int:
        with self._lock:
            return int(self._connection.execute("SELECT count(*) FROM queued").fetchone()[0])

    def close(self) -> None:
        with self._lock:
            self._connection.close()
