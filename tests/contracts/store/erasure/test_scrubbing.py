"""On Postgres, every table that an erasure writes to is written anew: no dead row of it is left."""

from contextlib import closing
from datetime import timedelta
from pathlib import Path

import psycopg
from made_events import NOW
from stores import database

from core.ids import Namespace, SessionId
from core.operations.consents import Consent
from core.operations.erasures import Erasure
from core.operations.exclusions import Selection
from core.operations.quotas import Account, Use
from core.store import open_postgres

ACME = Namespace("acme")
WORD = "Zugspitzfeuersalamander"
CHANGED = ("turns", "outcomes", "rewards", "consents", "exclusions", "erasures", "spending", "dead_letters")


def test_what_an_erasure_overwrote_or_deleted_is_in_no_dead_row(tmp_path: Path) -> None:
    earlier = NOW - timedelta(seconds=60)
    order = Erasure(
        erasure_id=1, namespace=ACME, kind="user", subject="ada", why=f"consent of a user: {WORD}", by="ada",
        ordered_at=NOW, deadline_at=NOW,
    )  # fmt: skip
    with database("postgres", tmp_path) as home:
        assert home.postgres is not None
        with closing(open_postgres(home.postgres)) as store, psycopg.connect(home.postgres.url) as connection:
            connection.autocommit = True
            with store.work() as work:
                number = work.exclusions.give(Selection(namespace=ACME, sessions=(SessionId("s"),)), WORD, "p", earlier)
                word = {"learn": False, "store": False, "purposes": (), "why": WORD, "by": "p", "at": earlier}
                work.consents.hold()
                work.consents.add(
                    Consent(namespace=ACME, kind="user", subject="ada", exclusion_id=number, **word)  # type: ignore[arg-type]
                )
                work.spending.add("2026-11", {Account("user", "acme", WORD): Use(1, 1)})
                work.erasures.give(order)
            with store.work() as work:
                work.sweeps.redact_subject(order)
            before = files(connection)
            store.scrub()
            after = files(connection)
    assert [name for name in CHANGED if before[name] == after[name]] == []


def files(connection: psycopg.Connection) -> dict[str, int]:
    """Return the number of each table's file, which is another once the table was written anew."""
    return dict(connection.execute("SELECT relname, relfilenode FROM pg_class WHERE relkind = 'r'").fetchall())
