"""The store's contract for API keys, on each database."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from sqlalchemy.exc import IntegrityError

from core.ids import Namespace, UserHash
from core.operations.keys import KeyWish, StoredKey, key_digest, make_key, revoked, rotated
from core.store import SqlStore
from core.store.database import tables

NOW = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
HOUR = timedelta(hours=1)
WISH = KeyWish(namespace=Namespace("ours"), name="plugin", user=UserHash("ab"), scopes=("read",), expires_at=NOW + HOUR)


def add(store: SqlStore, wish: KeyWish = WISH) -> tuple[str, StoredKey]:
    key, kept = make_key(wish, "root", NOW)
    with store.work() as work:
        work.keys.add(kept)
    return key, kept


def test_a_key_rests_as_its_digest_alone(store: SqlStore) -> None:
    key, kept = add(store)
    assert key.startswith("onw_")
    assert len(key) == 47
    assert kept.digest == key_digest(key.encode())
    with store.look() as view:
        assert view.keys.all() == [kept] == [view.keys.get(kept.key_id)]
        assert view.keys.get("none") is None
    with store.read() as connection:
        (row,) = connection.execute(tables.api_keys.select()).mappings()
    assert key not in str(dict(row))
    assert key.removeprefix("onw_").encode() not in row["record"]


def test_every_change_is_news(store: SqlStore) -> None:
    with store.look() as view:
        assert view.keys.revision() == 0
    _, kept = add(store)
    with store.work() as work:
        work.keys.replace(revoked(kept, "ada", NOW))
    with store.look() as view:
        assert view.keys.revision() == 2
        (found,) = view.keys.all()
    assert (found.revoked_at, found.revoked_by) == (NOW, "ada")
    assert found.is_over(NOW)
    _, other = add(store)
    with store.look() as view:
        assert view.keys.revision() == 3
    with pytest.raises(IntegrityError), store.work() as work:
        work.keys.add(msgspec.structs.replace(other, key_id="another"))


def test_changes_at_once_each_have_a_revision_of_their_own(store: SqlStore) -> None:
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda _: add(store), range(12)))
    with store.look() as view:
        assert view.keys.revision() == len(view.keys.all()) == 12


def test_uses_are_noted_by_the_hour_and_never_go_back(store: SqlStore) -> None:
    _, kept = add(store)
    _, other = add(store)
    for hour in (NOW, NOW + HOUR, NOW):
        with store.work() as work:
            work.keys.note_use({kept.key_id, "gone"}, hour)
    with store.look() as view:
        found = {key.key_id: key.used_at for key in view.keys.all()}
        assert view.keys.revision() == 2, "a use is no news to those who know the keys"
    assert found == {kept.key_id: NOW + HOUR, other.key_id: None}
    with store.work() as work:
        work.keys.replace(revoked(kept, "ada", NOW))
    with store.look() as view:
        assert (again := view.keys.get(kept.key_id)) is not None
    assert again.used_at == NOW + HOUR


def test_a_successor_has_the_rights_of_the_key_before_it_and_a_life_as_long() -> None:
    _, old = make_key(WISH, "root", NOW)
    key, new, ends = rotated(old, "ada", NOW + HOUR / 2, overlap_s=60)
    assert new.digest == key_digest(key.encode()) != old.digest
    assert new.expires_at == NOW + HOUR + HOUR / 2
    assert ends.expires_at == NOW + HOUR / 2 + timedelta(seconds=60)
    assert rotated(old, "ada", NOW, overlap_s=1e6)[2].expires_at == old.expires_at
    wished = {name: getattr(new, name) for name in KeyWish.__struct_fields__ if name != "expires_at"}
    assert wished == {name: getattr(old, name) for name in wished}
    assert (new.created_by, new.is_over(NOW), ends.is_over(NOW + HOUR)) == ("ada", False, True)
