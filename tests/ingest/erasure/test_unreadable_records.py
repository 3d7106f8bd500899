"""In a log, and among its dead letters, what does not decode goes with whom it names, and stays with others."""

import made_events
import pytest
from made_events import NOW

from core.codec import encode
from core.events import DeadLetter, Topic
from core.ids import Namespace, SessionId
from core.operations.erasures import Erasure, Subjects
from core.ports import Record
from ingest.erasure.in_log import left_of

ACME, GLOBEX = Namespace("acme"), Namespace("globex")
ORDER = Erasure(
    erasure_id=1, namespace=ACME, kind="session", subject="1", why="a test", by="ada", ordered_at=NOW, deadline_at=NOW,
    sessions=(SessionId("1"),),
)  # fmt: skip


def unreadable(namespace: Namespace, session: str) -> bytes:
    return encode(made_events.completion(SessionId(session), namespace=namespace, text="customer-1"))[:-20]


@pytest.mark.parametrize(
    ("raw", "goes"),
    [
        (unreadable(ACME, "1"), True),
        (b"\xc1\xa11 words", True),
        (unreadable(GLOBEX, "1"), False),
        (unreadable(GLOBEX, "7"), False),
        (unreadable(ACME, "7"), False),
        (b"\xc1 customer-1", False),
    ],
    ids=["of it", "of no namespace", "that name elsewhere", "another's", "another session's", "no whole value"],
)
def test_an_unreadable_record_goes_if_it_names_what_is_erased(raw: bytes, goes: bool) -> None:
    subjects = Subjects([ORDER])
    record = Record(
        topic=Topic.TURNS, partition=0, offset=7, appended_at=NOW, raw=raw, event=None, error="it does not decode"
    )
    assert left_of(record, subjects) == (b"" if goes else None)
    letter = DeadLetter(topic=Topic.TURNS, partition=0, offset=7, reason="it does not decode", raw=raw, at=NOW)
    set_aside = Record(
        topic=Topic.DEAD_LETTERS, partition=0, offset=0, appended_at=NOW, raw=encode(letter), event=letter, error=None
    )
    assert (left_of(set_aside, subjects) is not None) == goes
