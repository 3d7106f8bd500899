"""The store's contract for the audit trail, on each database: what is written there shows when it is changed."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from blake3 import blake3
from sqlalchemy import delete, select, text, update

from core.ids import UserHash
from core.operations.audit import AuditHead, Deed, StoredEntry, chain, find_tampering
from core.records.audit_head import HeadFile
from core.store import SqlStore
from core.store.database import tables

NOW = datetime(2026, 3, 1, 12, 30, 0, 123456, tzinfo=UTC)
KEY = "a-key-that-only-the-auditor-has"


def deed(number: int = 0, **fields: Any) -> Deed:
    said: dict[str, Any] = {"by": "ada", "kind": "read", "what": "GET /v1/turns/{inference_id}", "namespace": "ours"}
    said |= {"at": NOW, "objects": {"inference_id": f"i{number}"}, "users": (UserHash("ab12"),)}
    return Deed(**{**said, **fields})


def append(store: SqlStore, count: int) -> None:
    for number in range(count):
        with store.work() as work:
            work.audit.append([deed(number)])


def entries(store: SqlStore) -> list[StoredEntry]:
    with store.look() as view:
        return list(view.audit.in_order())


def faults(store: SqlStore, *heads: AuditHead, key: str | None = None) -> list[tuple[int, str]]:
    return [(each.sequence, each.why) for each in find_tampering(entries(store), heads, key)]


def test_each_entry_has_the_digest_of_the_one_before(store: SqlStore) -> None:
    append(store, 3)
    with store.work() as work:
        head = work.audit.append([deed(3, namespace="theirs"), deed(4, kind="order", users=(), status=202)])
        assert work.audit.append([]) == head == work.audit.head()
    found = entries(store)
    assert [each.sequence for each in found] == [1, 2, 3, 4, 5]
    said = [msgspec.json.decode(each.record) for each in found]
    assert [each["previous"] for each in said] == ["", *(each.digest for each in found[:-1])]
    assert said[3]["objects"] == {"inference_id": "i3"}
    assert found[0].record == (  # anybody can check an entry by these bytes, which docs/security.md describes
        b'{"at":"2026-03-01T12:30:00.123456Z","by":"ada","key":null,"kind":"read","namespace":"ours",'
        b'"objects":{"inference_id":"i0"},"previous":"","sequence":1,"status":null,"users":["ab12"],'
        b'"what":"GET /v1/turns/{inference_id}"}'
    )
    assert found[0].digest == blake3(found[0].record).hexdigest()
    assert head == AuditHead(5, found[-1].digest)
    assert faults(store, head) == []
    with store.look() as view:
        assert view.audit.newest("ours", 5, 2) == [found[2], found[1]]
        assert view.audit.newest(None, 9, 9) == found[::-1]


def test_what_many_append_at_once_is_one_chain(store: SqlStore) -> None:
    def work(number: int) -> None:
        with store.work() as work:
            work.audit.append([deed(number), deed(number + 100)])

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(24)))
    assert len(entries(store)) == 48
    assert faults(store) == []


def test_an_entry_is_there_with_the_order_or_neither_is(store: SqlStore) -> None:
    def work_and_fail() -> None:
        with store.work() as work:
            work.audit.append([deed()])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work_and_fail()
    assert entries(store) == []


def rewrite(store: SqlStore, sequence: int, **fields: Any) -> None:
    """Change what an entry says, and its digest with it, as somebody would who knows how."""
    table = tables.audit
    with store.begin() as connection:
        record = connection.execute(select(table.c.record).where(table.c.sequence == sequence)).scalar_one()
        changed = msgspec.json.encode({**msgspec.json.decode(record), **fields}, order="sorted")
        values = {"record": changed, "digest": blake3(changed).hexdigest()}
        connection.execute(update(table).where(table.c.sequence == sequence).values(values))


def replace_all(store: SqlStore, without: int) -> None:
    """Make a whole new chain in which one entry never was."""
    table = tables.audit
    deeds = [deed(n) for n in range(6) if n != without]
    with store.begin() as connection:
        connection.execute(delete(table))
        for each in chain(deeds, 0, ""):
            row = {name: getattr(each, name) for name in each.__struct_fields__}
            connection.execute(table.insert().values(row))


def run(statement: str) -> Callable[[SqlStore], None]:
    def work(store: SqlStore) -> None:
        with store.begin() as connection:
            connection.execute(text(statement))

    return work


TAMPERING = {
    "changed": (lambda store: rewrite(store, 3, by="eve"), [(4, "it does not follow the entry before it")]),
    "changed clumsily": (
        run("UPDATE audit SET record = (SELECT record FROM audit WHERE sequence = 1) WHERE sequence = 3"),
        [
            (3, "its digest is not that of what it says"),
            (3, "it does not follow the entry before it"),
            (3, "its columns are not what it says"),
        ],
    ),
    "hidden from a namespace": (
        run("UPDATE audit SET namespace = 'x' WHERE sequence = 2"),
        [(2, "its columns are not what it says")],
    ),
    "removed": (run("DELETE FROM audit WHERE sequence = 2"), [(2, "removed, up to entry 2")]),
    "removed at the start": (run("DELETE FROM audit WHERE sequence <= 2"), [(1, "removed, up to entry 2")]),
    "cut off": (
        run("DELETE FROM audit WHERE sequence >= 5"),
        [(6, "the trail ends with entry 4, and once had this one")],
    ),
    "all gone": (run("DELETE FROM audit"), [(6, "the trail ends with entry 0, and once had this one")]),
    "newest changed": (
        lambda store: rewrite(store, 6, by="eve"),
        [(6, "another entry stood here when its digest was kept as the head")],
    ),
    "made anew": (
        lambda store: replace_all(store, without=2),
        [(6, "the trail ends with entry 5, and once had this one")],
    ),
}


@pytest.mark.parametrize("how", TAMPERING)
def test_tampering_is_found(store: SqlStore, tmp_path: Path, how: str) -> None:
    file = HeadFile(tmp_path / "head.json", KEY)
    append(store, 6)
    assert file.keep(store)
    kept = file.read()
    assert kept is not None
    assert faults(store, kept, key=KEY) == []
    tamper, expected = TAMPERING[how]
    tamper(store)
    assert faults(store, kept, key=KEY) == expected


def test_a_head_that_the_trail_lacks_is_not_replaced_by_one_that_it_has(store: SqlStore, tmp_path: Path) -> None:
    file = HeadFile(tmp_path / "head.json")
    append(store, 3)
    assert file.keep(store)
    kept = file.read()
    run("DELETE FROM audit WHERE sequence = 3")(store)
    append(store, 4)
    assert not file.keep(store)
    assert file.read() == kept
    assert kept is not None
    assert faults(store, kept) == [(3, "another entry stood here when its digest was kept as the head")]
    with store.look() as view:
        forged = AuditHead(3, view.audit.digest_of(3) or "")
    for heads in ((kept, forged), (forged, kept)):  # one that somebody made anew hides none that was kept elsewhere
        assert faults(store, *heads) == [(3, "another entry stood here when its digest was kept as the head")]


def test_a_head_of_another_key_is_no_head(store: SqlStore, tmp_path: Path) -> None:
    append(store, 2)
    HeadFile(tmp_path / "head.json", "another").keep(store)
    forged = HeadFile(tmp_path / "head.json").read()
    assert forged is not None
    assert faults(store, forged) == []
    assert faults(store, forged, key=KEY) == [(2, "the head that was kept does not have the seal of audit.key")]


def test_the_head_is_kept_by_several_and_never_goes_back(store: SqlStore, tmp_path: Path) -> None:
    files = [HeadFile(tmp_path / "head.json") for _ in range(4)]

    def work(file: HeadFile) -> None:
        for _ in range(5):
            append(store, 1)
            assert file.keep(store)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, files))
    kept = files[0].read()
    assert kept is not None
    assert kept.sequence == 20
