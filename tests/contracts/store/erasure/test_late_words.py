"""What comes late of an order is noticed, whoever said it and whatever may be learned from it, on each database."""

from datetime import timedelta

import made_events
import msgspec
import pytest
from made_events import NOW

from core.events import Completion
from core.ids import Namespace, SessionId, UserHash
from core.operations.erasures import ErasedKind, Erasure
from core.ports import Store

ACME = Namespace("acme")


def order(kind: ErasedKind, subject: str, *sessions: str) -> Erasure:
    return Erasure(
        erasure_id=1, namespace=ACME, kind=kind, subject=subject, why="a test", by="ada", ordered_at=NOW,
        deadline_at=NOW, sessions=tuple(map(SessionId, sessions)),
    )  # fmt: skip


def said(session: str = "talk", age_s: float = 1.0, **changes: object) -> Completion:
    at = NOW - timedelta(seconds=age_s)
    return made_events.completion(SessionId(session), namespace=ACME, received_at=at, **changes)


@pytest.mark.parametrize(
    ("turn", "is_late"),
    [
        (said(), True),
        (said(learn=False, trainable=False, transcript_digest="d"), True),
        (said(learn=False, trainable=False, user_id=UserHash("ada")), True),
        (said("other"), False),
        (said(age_s=0.0), False),
    ],
    ids=["all of it", "learn: false, by nobody", "learn: false, by a user", "another session", "after the order"],
)
def test_a_turn_of_an_erased_session_that_comes_late_is_noticed(store: Store, turn: Completion, is_late: bool) -> None:
    session = order("session", "talk", "talk")
    with store.work() as work:
        work.turns.put([turn])
        assert work.sweeps.with_more([session]) == [session] * is_late
        work.sweeps.redact(ACME, session.sessions, NOW)
        assert work.sweeps.with_more([session]) == [], "what became a tombstone is no more"


def test_of_many_orders_those_are_found_of_which_more_came(store: Store) -> None:
    ada, eve = UserHash("ada"), UserHash("eve")
    orders = {
        "hers": order("user", "ada"),
        "hers, from before": msgspec.structs.replace(order("user", "ada"), ordered_at=NOW - timedelta(seconds=30)),
        "hers elsewhere": msgspec.structs.replace(order("user", "ada"), namespace=Namespace("other")),
        "another's": order("user", "mallory"),
        "that of who said more afterwards": order("user", "eve"),
        "a session's": order("session", "late", "late"),
        "another session's": order("session", "talk", "talk"),
        "the namespace's": order("namespace", "acme"),
        "an organisation's": order("organisation", "acme"),
    }
    with store.work() as work:
        work.turns.put([said("late", user_id=ada), said("new", age_s=-1.0, user_id=eve)])
        found = work.sweeps.with_more(list(orders.values()))
    assert [name for name, each in orders.items() if each in found] == ["hers", "a session's", "the namespace's"]
