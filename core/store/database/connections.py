"""Connections and transactions."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DatabaseError, DataError, IntegrityError, InterfaceError, ProgrammingError, TimeoutError

from core.errors import SchemaMismatch, StoreUnavailable
from core.store.erasure.scrubbing import scrub_engine
from core.store.work import View, Work


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Turn errors of the database `name` into StoreUnavailable, or SchemaMismatch where tables are not this build's."""
    try:
        yield
    except (IntegrityError, DataError):
        raise  # the caller's
    except ProgrammingError as error:
        raise SchemaMismatch(f"{name}: the store's tables are not this build's: {str(error.orig).strip()}") from error
    except (DatabaseError, InterfaceError) as error:  # locked, full, gone, too slow or corrupt
        raise StoreUnavailable(f"{name}: the store does not answer: {str(error.orig).strip()}") from error
    except TimeoutError as error:
        raise StoreUnavailable(f"{name}: all connections to the store are in use") from error


class SqlStore:
    """The store over one SQLAlchemy engine. Thread-safe; each transaction has a connection of its own."""

    def __init__(self, engine: Engine, name: str, for_reads: Mapping[str, Any]) -> None:
        """`name` tells operators which store it is; `for_reads` are execution options."""
        self._engine = engine
        self._name = name
        self._for_reads = dict(for_reads)

    def wake(self, woken: threading.Event) -> None:
        """Do nothing: a store in a file cannot announce changes (see the port)."""

    @property
    def wakes(self) -> bool:
        return False

    @contextmanager
    def work(self) -> Iterator[Work]:
        """Open a unit of work, as the port describes, in a transaction opened by `begin`."""
        with self.begin() as connection:
            yield Work(connection)

    @contextmanager
    def look(self) -> Iterator[View]:
        with self.read() as connection:
            yield View(connection)

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """Open a read-write transaction.

        Raises StoreUnavailable when the database cannot be used, and when this transaction was ended because it
        deadlocked with another. Nothing was written then, except perhaps when the connection broke during the commit: a
        caller that tries again finds what is there."""
        with explained(self._name), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        with explained(self._name), self._engine.connect().execution_options(**self._for_reads) as connection:
            yield connection

    def scrub(self) -> None:
        """Leave no byte in the database's files of what was overwritten or deleted (`core.store.erasure.scrubbing`).

        Raises StoreUnavailable while others hold them."""
        with explained(self._name):
            scrub_engine(self._engine, self._name)

    def close(self) -> None:
        self._engine.dispose()
