"""The eraser goes through what is known of a user beside turns, too: words may have come since the API did."""

from contextlib import closing
from pathlib import Path

from made_events import NOW

from core.ids import Namespace
from core.operations.erasures import FIRST, Erasure, Step
from core.operations.quotas import Account, Use
from core.store import open_sqlite
from ingest.erasure.in_store import InStore


def test_what_quotas_counted_since_the_order_goes_and_what_went_before_is_counted(tmp_path: Path) -> None:
    account = Account("user", "acme", "ada")
    order = Erasure(
        erasure_id=1,
        namespace=Namespace("acme"),
        kind="user",
        subject="ada",
        why="a test",
        by="ada",
        ordered_at=NOW,
        deadline_at=NOW,
        steps={"store": Step(removed={"spending": 3, "turns": 2}, marks={FIRST: 1})},
    )
    with closing(open_sqlite(tmp_path / "store.db")) as store:
        with store.work() as work:
            work.spending.add("2026-11", {account: Use(1, 1)})
        step = InStore(store, store.scrub).erase(order)
        with store.look() as view:
            assert view.spending.of_accounts("2026-11", [account]) == {}
    assert step.removed == {"spending": 3, "turns": 2}
