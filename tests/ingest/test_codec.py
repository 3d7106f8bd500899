"""Every event survives encoding; everything else is refused with its reason."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import made_events
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core import events
from core.codec import SCHEMA_VERSION, decode, encode, to_builtins
from core.errors import InvalidRequest, NewerSchema, Undecodable
from core.events import Completion, PolicyVersion, Release, ToolCall, VersionSpan
from core.ids import BASE, PolicyName, PolicyRef, Version, base_ref

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)  # any character but half a surrogate pair
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)

REFS = st.builds(PolicyRef, st.sampled_from([BASE, "acme", "a.b-c_2"]), st.integers(0, 2**63 - 1))


def struct(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Return a strategy that sets every field, also those with defaults."""
    fields = msgspec.structs.fields(kind)
    return st.builds(kind, **{field.name: values(msgspec.inspect.type_info(field.type)) for field in fields})


def values(info: Any) -> st.SearchStrategy[Any]:
    match info:
        case msgspec.inspect.StructType(cls=cls):
            return struct(cls)
        case msgspec.inspect.UnionType(types=types):
            return st.one_of([values(kind) for kind in types])
        case msgspec.inspect.VarTupleType(item_type=item):
            return st.lists(values(item), max_size=3).map(tuple)
        case msgspec.inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(values(key), values(value), max_size=3)
        case msgspec.inspect.LiteralType(values=literals):
            return st.sampled_from(list(literals))
        case msgspec.inspect.DateTimeType():
            return st.datetimes(timezones=st.just(UTC))
        case msgspec.inspect.NoneType():
            return st.none()
        case msgspec.inspect.BoolType():
            return st.booleans()
        case msgspec.inspect.IntType():
            return st.integers(-(2**63), 2**64 - 1)
        case msgspec.inspect.FloatType():
            return st.floats(allow_nan=False) | st.floats(width=32, allow_nan=False)
        case msgspec.inspect.StrType():
            return TEXT
        case msgspec.inspect.BytesType():
            return st.binary(max_size=8)
        case msgspec.inspect.AnyType():
            return JSON
        case msgspec.inspect.CustomType(cls=cls) if cls is PolicyRef:
            return REFS
    raise AssertionError(info)


EVENTS = {kind.__name__: kind for kind in events.Event.__args__}


@pytest.mark.parametrize("kind", EVENTS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_every_event_comes_back_as_it_was(kind: str, data: st.DataObject) -> None:
    event = data.draw(struct(EVENTS[kind]))
    decoded = decode(encode(event))
    assert decoded == event
    assert type(decoded) is type(event)


def test_empty_tuples_and_absent_values_stay_what_they_are(completion: Callable[..., Completion]) -> None:
    event = decode(encode(completion()))
    assert isinstance(event, Completion)
    assert event.tools == ()
    assert event.untrainable_reasons == ()
    assert event.parent_id is None
    assert event.received_at.tzinfo is not None


def test_a_newer_schema_is_told_from_garbage() -> None:
    newer = msgspec.msgpack.encode([SCHEMA_VERSION + 1, {"type": "of tomorrow"}, "more"])
    with pytest.raises(NewerSchema, match=f"schema {SCHEMA_VERSION + 1}"):
        decode(newer)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"not msgpack at all",
        msgspec.msgpack.encode({"type": "completion"}),
        msgspec.msgpack.encode([SCHEMA_VERSION]),
        msgspec.msgpack.encode(["1", {}]),
        msgspec.msgpack.encode([0, {"type": "completion"}]),
        msgspec.msgpack.encode([SCHEMA_VERSION, {"type": "nonsense"}]),
        msgspec.msgpack.encode([SCHEMA_VERSION, {"type": "session_ended", "session_id": 5}]),
    ],
)
def test_what_is_no_event_is_undecodable(raw: bytes) -> None:
    with pytest.raises(Undecodable):
        decode(raw)


@settings(max_examples=200)
@given(raw=st.binary(max_size=64))
def test_no_bytes_raise_anything_else(raw: bytes) -> None:
    with pytest.raises((Undecodable, NewerSchema)):
        decode(raw)


def test_a_cut_record_is_undecodable(completion: Callable[..., Completion]) -> None:
    raw = encode(completion())
    for length in range(0, len(raw), 7):
        with pytest.raises(Undecodable):
            decode(raw[:length])


@pytest.mark.parametrize("value", [2**64, "\ud800"])
def test_what_cannot_be_recorded_is_the_clients_fault(completion: Callable[..., Completion], value: object) -> None:
    turn = msgspec.structs.replace(completion(), messages=({"role": "user", "content": value},))
    with pytest.raises(InvalidRequest, match="cannot be recorded"):
        encode(turn)


def nested(depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(depth):
        found = {"a": found}
    return found


def test_what_is_nested_too_deep_is_refused(completion: Callable[..., Completion]) -> None:
    with pytest.raises(InvalidRequest, match="cannot be recorded"):
        encode(msgspec.structs.replace(completion(), messages=(nested(5000),)))


def test_what_is_nested_too_deep_for_its_reader_is_undecodable(completion: Callable[..., Completion]) -> None:
    raw = encode(msgspec.structs.replace(completion(), messages=(nested(500),)))

    def far_down(calls: int) -> None:
        if calls:
            far_down(calls - 1)
        else:
            decode(raw)

    with pytest.raises(Undecodable, match="recursion"):
        far_down(600)


def test_a_version_of_the_base_policy_is_recorded_as_a_number_as_it_always_was() -> None:
    release = {
        "type": "release",
        "version": 12,
        "cluster": "local",
        "state": "live",
        "why": "",
        "by": "gate",
        "at": NOW,
    }
    known = Release(version=base_ref(12), cluster="local", state="live", why="", by="gate", at=NOW)
    for earlier in (1, 2):
        assert decode(msgspec.msgpack.encode([earlier, release])) == known
    assert encode(known) == msgspec.msgpack.encode([SCHEMA_VERSION, release])


def test_a_version_of_another_policy_is_recorded_as_text() -> None:
    span = VersionSpan(start=0, end=2, version=PolicyRef(PolicyName("acme"), Version(3)))
    assert to_builtins(span) == {"start": 0, "end": 2, "version": "acme@3"}
    release = Release(version=span.version, cluster="local", state="live", why="", by="gate", at=NOW)
    assert decode(encode(release)) == release


@pytest.mark.parametrize("version", ["acme", "Acme@1", "acme@-1", "@1", "base@1", "a/b@1", "1.5", 1.5, True, -1, 2**63])
def test_what_names_no_version_is_undecodable(version: object) -> None:
    release = {"type": "release", "version": version, "cluster": "c", "state": "live", "why": "", "by": "b", "at": NOW}
    with pytest.raises(Undecodable, match=r"\$\.version"):
        decode(msgspec.msgpack.encode([SCHEMA_VERSION, release]))


def test_a_turn_of_before_there_were_grammars_is_read(completion: Callable[..., Completion]) -> None:
    turn = completion()
    schema, event = msgspec.msgpack.decode(encode(turn))
    assert schema == SCHEMA_VERSION
    del event["sampling"]["grammar"], event["logprob_space"]["grammar"]
    assert decode(msgspec.msgpack.encode([3, event])) == turn


def test_a_reward_of_before_there_were_void_ones_is_read() -> None:
    known = made_events.reward("1")
    _, event = msgspec.msgpack.decode(encode(known))
    del event["void"], event["environment"]
    assert decode(msgspec.msgpack.encode([4, event])) == known


def test_a_version_of_before_it_named_the_suites_that_were_kept_out_is_read() -> None:
    fields: dict[str, Any] = {"policy": "m", "digest": "d", "parent": None, "manifest": None, "weights": "w"}
    known = PolicyVersion(version=base_ref(1), created_at=NOW, **fields)
    _, event = msgspec.msgpack.decode(encode(known))
    del event["kept_out"]
    assert decode(msgspec.msgpack.encode([6, event])) == known


def test_what_names_no_tokens_is_read_as_it_was_before_there_were_spans(completion: Callable[..., Completion]) -> None:
    call = ToolCall(id="call", name="read", arguments="{}", index=0)
    turn = completion(tool_calls=(call,))
    known = (turn, made_events.outcome(turn), made_events.reward("1"))
    for event in known:
        _, written = msgspec.msgpack.decode(encode(event))
        for name in ("text_ends", "hints", "edits", "edited_by", "said_by") + ("learn",) * (event is known[1]):
            written.pop(name, None)
        for made in written.get("tool_calls", ()):
            del made["token_range"]
        assert decode(msgspec.msgpack.encode([5, written])) == event
