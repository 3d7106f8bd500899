"""Ids carry their session's routing bits and sort by time."""

import uuid

from hypothesis import given
from hypothesis import strategies as st

from core.ids import (
    InferenceId,
    SessionId,
    inference_routing,
    is_uuid,
    new_inference_id,
    new_outcome_id,
    new_session_id,
    session_routing,
)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_an_inference_finds_its_sessions_partition(text: str) -> None:
    session = SessionId(text)
    inference = new_inference_id(session)
    assert inference_routing(inference) == session_routing(session) < 2**16
    assert uuid.UUID(inference).version == 7
    assert uuid.UUID(inference).variant == uuid.RFC_4122


def test_sessions_spread_over_partitions() -> None:
    hits = [session_routing(new_session_id()) % 4 for _ in range(2000)]
    assert all(400 < hits.count(partition) < 600 for partition in range(4))


def test_ids_are_unique_and_rise() -> None:
    session = new_session_id()
    ids = [new_inference_id(session) for _ in range(2000)]
    assert len(set(ids)) == 2000
    assert [text[:13] for text in ids] == sorted(text[:13] for text in ids)
    assert len({new_outcome_id() for _ in range(100)}) == 100


def test_the_routing_hash_never_changes() -> None:
    """Logs written before rely on it."""
    assert session_routing(SessionId("session-1")) == 6380
    assert inference_routing(InferenceId("0190f3c2-7d3b-7000-8000-00000000beef")) == 0xBEEF


def test_what_is_no_uuid_is_told() -> None:
    assert is_uuid(new_session_id())
    assert not is_uuid("session-1")
    assert not is_uuid("")
