"""The journal of rollouts: what was begun, how it ended, and what the service has yet to be told.

A power cut or `kill -9` at any moment neither loses nor doubles an episode. What was begun and has no end in the
journal was interrupted: it is tried again, as another attempt and in another session, and the service is told that the
first one counts for nothing. The end of an attempt and the report that follows from it are written in one transaction,
and the report is sent until the service has taken it, under an id that makes a second one impossible."""

import sqlite3
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import msgspec

from environments.errors import EnvironmentFault
from environments.rollouts.episode import Episode, EpisodeResult
from environments.rollouts.reports import Report, interruption_of, report_of

_SCHEMA = """
CREATE TABLE IF NOT EXISTS journal (id TEXT NOT NULL, version INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS episodes (
    episode_id TEXT PRIMARY KEY, environment TEXT NOT NULL, task TEXT NOT NULL, task_digest TEXT NOT NULL,
    attempt INTEGER NOT NULL, failures INTEGER NOT NULL, state TEXT NOT NULL, began_at REAL NOT NULL,
    episode BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS episodes_by_state ON episodes (state);
CREATE TABLE IF NOT EXISTS attempts (
    episode_id TEXT NOT NULL, attempt INTEGER NOT NULL, result BLOB NOT NULL, PRIMARY KEY (episode_id, attempt)
);
CREATE TABLE IF NOT EXISTS reports (
    feedback_id TEXT PRIMARY KEY, report BLOB NOT NULL, answer TEXT
);
CREATE INDEX IF NOT EXISTS reports_untold ON reports (feedback_id) WHERE answer IS NULL;
CREATE TABLE IF NOT EXISTS forgotten_episodes (
    environment TEXT NOT NULL, task TEXT NOT NULL, task_digest TEXT NOT NULL, episodes INTEGER NOT NULL,
    PRIMARY KEY (environment, task, task_digest)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS forgotten_reports (answer TEXT PRIMARY KEY, reports INTEGER NOT NULL) WITHOUT ROWID;
"""
_VERSION = 1
_KEPT = 10_000  # attempts
_AT_ONCE = 500  # episodes, which are forgotten in a few hundredths of a second
_FORGETTABLE = """
SELECT episode_id FROM attempts JOIN episodes USING (episode_id, attempt)
WHERE state = 'ended' AND attempts.rowid <= (SELECT rowid FROM attempts ORDER BY rowid DESC LIMIT 1 OFFSET ?)
ORDER BY attempts.rowid LIMIT ?
"""
_HELD = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
T = TypeVar("T")


class JournalInUse(EnvironmentFault):
    """Another program runs rollouts on this journal."""


@dataclass(frozen=True)
class Waiting:
    """An episode whose last attempt failed, to be tried again as `episode`. `failures` counts those that failed."""

    episode: Episode
    failures: int


class RolloutJournal:
    """A journal in one file, used by one thread of one program at a time."""

    def __init__(self, file: Path) -> None:
        """Open the journal, and set down as interrupted what another program left without an end.

        Raises JournalInUse, EnvironmentFault for one that cannot be opened or is another build's."""
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(file, isolation_level=None, timeout=0.5)
        except (OSError, sqlite3.Error) as error:
            raise EnvironmentFault(f"{file}: it cannot be opened: {error}") from error
        try:
            self._make_ready(file)
        except sqlite3.Error as error:
            self._db.close()
            if error.sqlite_errorcode in _HELD:
                raise JournalInUse(f"{file}: {error}: another program runs rollouts on it") from error
            raise EnvironmentFault(f"{file}: it cannot be opened: {error}") from error
        except EnvironmentFault:
            self._db.close()
            raise

    def _make_ready(self, file: Path) -> None:
        self._db.execute("PRAGMA locking_mode=EXCLUSIVE")  # until closed, or until this program ends in any way
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        with self._transaction():
            for statement in _SCHEMA.split(";"):
                self._db.execute(statement)
            self.id = self._own_id(file)
        self.interrupt()

    def _own_id(self, file: Path) -> str:
        rows = self._db.execute("SELECT id, version FROM journal").fetchall()
        if not rows:
            rows = [(str(uuid.uuid4()), _VERSION)]
            self._db.execute("INSERT INTO journal VALUES (?, ?)", rows[0])
        ((own_id, version),) = rows
        if version != _VERSION:
            raise EnvironmentFault(f"{file}: written by another build (version {version}, this is {_VERSION})")
        return str(own_id)

    def close(self) -> None:
        self._db.close()

    # ------------------------------------------------------------------------------------------ writing

    def begin(self, episode: Episode) -> None:
        """Set down that an attempt begins. Durable when it returns."""
        row = (episode.episode_id, episode.environment, episode.task, episode.task_digest, episode.attempt)
        with self._transaction():
            self._db.execute(
                "INSERT INTO episodes VALUES (?, ?, ?, ?, ?, 0, 'running', ?, ?) ON CONFLICT (episode_id) DO UPDATE"
                " SET attempt = excluded.attempt, state = 'running', began_at = excluded.began_at,"
                " episode = excluded.episode",
                (*row, time.time(), _encode(episode)),
            )

    def end(self, result: EpisodeResult, *, again: bool, counts: bool = True) -> None:
        """Set down how an attempt ended, with the report that follows from it. Durable when it returns.

        `again`: the episode is to be tried again; `counts`: as one of the attempts that it may have."""
        with self._transaction():
            self._end(result, again=again, counts=counts)

    def _end(self, result: EpisodeResult, *, again: bool, counts: bool) -> None:
        episode, report = result.episode, report_of(result)
        self._db.execute(
            "INSERT INTO attempts VALUES (?, ?, ?)", (episode.episode_id, episode.attempt, _encode(result))
        )
        self._db.execute("INSERT INTO reports VALUES (?, ?, NULL)", (report.feedback_id, _encode(report)))
        self._db.execute(
            "UPDATE episodes SET state = ?, failures = failures + ? WHERE episode_id = ?",
            ("waiting" if again else "ended", int(again and counts), episode.episode_id),
        )

    def interrupt(self) -> int:
        """Set down that all attempts under way were interrupted; return how many there were."""
        rows = self._db.execute("SELECT episode, began_at FROM episodes WHERE state = 'running'").fetchall()
        with self._transaction():
            for blob, began_at in rows:
                result = interruption_of(_decode(blob, Episode), began_at, time.time())
                self._end(result, again=True, counts=False)
        return len(rows)

    def told(self, feedback_id: str, answer: str) -> None:
        """Set down what the service made of a report."""
        with self._transaction():
            self._db.execute("UPDATE reports SET answer = ? WHERE feedback_id = ?", (answer, feedback_id))

    def forget(self, kept: int = _KEPT) -> int:
        """Forget some episodes that have ended, beyond the latest attempts; return how many.

        Those are done with: the service has answered all that was to be told of them, and their number is kept, so
        that none is begun again."""
        rows = self._db.execute(_FORGETTABLE, (kept, _AT_ONCE)).fetchall()
        with self._transaction():
            return sum(self._forget(episode_id) for (episode_id,) in rows)

    def _forget(self, episode_id: str) -> bool:
        blobs = self._db.execute("SELECT result FROM attempts WHERE episode_id = ?", (episode_id,)).fetchall()
        told = [report_of(_decode(blob, EpisodeResult)).feedback_id for (blob,) in blobs]
        places = ", ".join("?" * len(told))
        answers = self._db.execute(f"SELECT answer FROM reports WHERE feedback_id IN ({places})", told).fetchall()
        if (None,) in answers:
            return False
        self._db.execute(
            "INSERT INTO forgotten_episodes SELECT environment, task, task_digest, 1 FROM episodes WHERE episode_id = ?"
            " ON CONFLICT DO UPDATE SET episodes = episodes + 1",
            (episode_id,),
        )
        self._db.executemany(
            "INSERT INTO forgotten_reports VALUES (?, 1) ON CONFLICT DO UPDATE SET reports = reports + 1", answers
        )
        self._db.execute(f"DELETE FROM reports WHERE feedback_id IN ({places})", told)
        self._db.execute("DELETE FROM attempts WHERE episode_id = ?", (episode_id,))
        self._db.execute("DELETE FROM episodes WHERE episode_id = ?", (episode_id,))
        return True

    # ------------------------------------------------------------------------------------------ reading

    def begun(self) -> Counter[tuple[str, str, str]]:
        """Return how many episodes were ever begun, by task set, task and the task's digest."""
        begun = Counter[tuple[str, str, str]]()
        for *key, count in self._db.execute(
            "SELECT environment, task, task_digest, count(*) FROM episodes GROUP BY 1, 2, 3"
            " UNION ALL SELECT environment, task, task_digest, episodes FROM forgotten_episodes"
        ):
            environment, task, digest = key
            begun[environment, task, digest] += count
        return begun

    def waiting(self) -> list[Waiting]:
        """Return the episodes to be tried again, the longest waiting first."""
        rows = self._db.execute("SELECT episode, failures FROM episodes WHERE state = 'waiting' ORDER BY began_at")
        return [Waiting(_next_attempt(_decode(blob, Episode)), failures) for blob, failures in rows]

    def untold(self) -> list[Report]:
        """Return the reports that the service has not taken yet."""
        rows = self._db.execute("SELECT report FROM reports WHERE answer IS NULL ORDER BY rowid")
        return [_decode(blob, Report) for (blob,) in rows]

    def ended(self) -> int:
        """Return how many episodes have come to their end."""
        return int(
            self._db.execute(
                "SELECT (SELECT count(*) FROM episodes WHERE state = 'ended')"
                " + (SELECT coalesce(sum(episodes), 0) FROM forgotten_episodes)"
            ).fetchone()[0]
        )

    def attempts(self, most: int) -> Iterator[EpisodeResult]:
        """Yield how the latest attempts ended, the newest first."""
        return self.attempts_as(EpisodeResult, most)

    def attempts_as(self, kind: type[T], most: int) -> Iterator[T]:
        """Yield the latest attempts, the newest first, with those fields of their results that `kind` has."""
        for (blob,) in self._db.execute("SELECT result FROM attempts ORDER BY rowid DESC LIMIT ?", (most,)):
            yield _decode(blob, kind)

    def answers(self) -> Counter[str]:
        """Return how many reports had which answer; those that are yet to be told count as `untold`."""
        answers = Counter[str]()
        for answer, count in self._db.execute(
            "SELECT coalesce(answer, 'untold'), count(*) FROM reports GROUP BY 1"
            " UNION ALL SELECT answer, reports FROM forgotten_reports"
        ):
            answers[answer] += count
        return answers

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        with self._db:  # commits, or rolls back what failed
            yield


_encode = msgspec.json.Encoder().encode


def _decode(blob: bytes, kind: type[T]) -> T:
    return msgspec.json.decode(blob, type=kind)


def _next_attempt(episode: Episode) -> Episode:
    return replace(episode, attempt=episode.attempt + 1)
