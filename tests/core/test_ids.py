"""Ids carry their session's routing bits and sort by time; a version has one text, and one name among files."""

import copy
import pickle
import uuid

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import codec
from core.ids import (
    BASE,
    UNKNOWN,
    InferenceId,
    PolicyName,
    PolicyRef,
    SessionId,
    Version,
    base_ref,
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


NAMES = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,62}", fullmatch=True).map(PolicyName)
REFS = st.builds(PolicyRef, NAMES | st.just(BASE), st.integers(0, 2**63 - 1).map(Version))


@given(REFS)
def test_the_text_of_a_version_says_which_it_is(ref: PolicyRef) -> None:
    assert PolicyRef.parse(str(ref)) == ref
    assert PolicyRef.parse_padded(ref.padded) == ref
    assert str(ref).isdigit() == ref.padded.isdigit() == (ref.policy == BASE)
    assert "/" not in ref.padded


@given(REFS, REFS)
def test_versions_are_told_apart_by_their_text(one: PolicyRef, other: PolicyRef) -> None:
    assert (one == other) == (str(one) == str(other)) == (one.padded == other.padded)
    assert one != other or hash(one) == hash(other)
    assert (one < other) + (one == other) + (one > other) == 1


@given(NAMES | st.just(BASE), st.integers(0, 10**8 - 1), st.integers(0, 10**8 - 1))
def test_files_are_sorted_as_their_versions_are(name: PolicyName, one: int, other: int) -> None:
    earlier, later = PolicyRef(name, Version(one)), PolicyRef(name, Version(other))
    assert (earlier < later) == (earlier.padded < later.padded)


@given(st.text(max_size=12) | st.from_regex(r"\A[a-c@0-9]{0,6}\Z"))
def test_each_version_has_one_text_and_no_other(text: str) -> None:
    for parse, of in ((PolicyRef.parse, str), (PolicyRef.parse_padded, lambda ref: ref.padded)):
        try:
            found = parse(text)
        except ValueError:
            continue
        assert of(found) == text


@given(REFS)
def test_a_version_comes_back_from_records_and_processes(ref: PolicyRef) -> None:
    recorded = codec.encoder().encode({ref: [ref]})
    assert codec.decoder(dict[PolicyRef, list[PolicyRef]]).decode(recorded) == {ref: [ref]}
    in_json = msgspec.json.encode({ref: ref}, enc_hook=codec.plain)
    assert msgspec.json.decode(in_json, type=dict[PolicyRef, PolicyRef], dec_hook=codec.typed) == {ref: ref}
    assert pickle.loads(pickle.dumps(ref)) == copy.deepcopy(ref) == ref


def test_the_base_policys_versions_are_numbers_wherever_they_are_written() -> None:
    assert (str(base_ref(12)), base_ref(12).padded, codec.plain(base_ref(12))) == ("12", "00000012", 12)
    acme = PolicyRef(PolicyName("acme"), Version(12))
    assert (str(acme), acme.padded, codec.plain(acme)) == ("acme@12", "acme@00000012", "acme@12")
    assert acme != base_ref(12)
    assert base_ref(0) == UNKNOWN


@pytest.mark.parametrize("name", ["", "Acme", "a b", "a/b", "a@b", ".a", "a" * 64, "ä"])
def test_a_policys_name_goes_into_file_names_and_keys(name: str) -> None:
    with pytest.raises(ValueError, match="no policy's name"):
        PolicyRef(PolicyName(name), Version(1))


def test_a_version_is_frozen() -> None:
    ref = base_ref(1)
    for change in (lambda: setattr(ref, "version", 2), lambda: delattr(ref, "policy"), lambda: setattr(ref, "x", 1)):
        with pytest.raises(AttributeError, match="frozen"):
            change()
    assert ref == base_ref(1)
