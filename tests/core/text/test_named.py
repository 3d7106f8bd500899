"""Bytes that do not decode are somebody's only by a whole value, and within the namespace that they name."""

import json

import made_events
import msgspec
import pytest

from core.codec import encode
from core.ids import Namespace, SessionId
from core.text.named import names

TURN = made_events.completion(
    SessionId("1"), namespace=Namespace("acme"), messages=({"role": "user", "content": "customer-1, á1"},)
)
RAW = encode(TURN)


@pytest.mark.parametrize(
    "raw",
    [
        RAW.replace(b"write", b"wr\xffte"),  # no text, but every part in its place
        RAW[:-9],
        b"\xc1" + RAW,
        json.dumps({"session_id": "1", "namespace": "acme", "said": "words"}).encode(),
        b'{"namespace": "acme", "session_id": "1", "said": "wor',
    ],
    ids=["wrong text", "cut off", "preceded", "json", "json that is cut off"],
)
def test_what_names_a_session_is_its_and_no_other_namespaces(raw: bytes) -> None:
    assert names(raw, "acme", {"1"})
    assert not names(raw, "globex", {"1"})
    assert not names(raw, "acme", {"2"})


@pytest.mark.parametrize("said", ["customer-1", "á1", 'they said "1"'])
def test_what_contains_an_id_in_its_words_is_not_its(said: str) -> None:
    others = msgspec.structs.replace(TURN, session_id=SessionId("2"), messages=({"role": "user", "content": said},))
    raw = encode(others)
    for each in (raw, json.dumps({"namespace": "acme", "session_id": "2", "said": said}).encode()):
        assert not names(each, "acme", {"1"})
        assert names(each, "acme", {"2"})


def test_one_that_says_no_namespace_is_whose_it_names_by_a_whole_value() -> None:
    words = ["session-1", "geheim", "größe", 'a"b']
    packed, written = b"\xc1" + msgspec.msgpack.encode(words), b"%" + json.dumps(words).encode()
    for raw in (packed, written, b"%" + json.dumps(words, ensure_ascii=False).encode()):
        for word in words:
            assert names(raw, "acme", {word}), word
        assert not names(raw, "acme", {"1", "session", "gehei", "a", "b"})


@pytest.mark.parametrize("length", [1, 31, 32, 255, 256, 1000])
def test_a_value_of_any_length_is_found(length: int) -> None:
    assert names(b"\xc1" + msgspec.msgpack.encode("s" * length), "acme", {"s" * length})
    assert not names(b"\xc1" + msgspec.msgpack.encode("s" * length), "acme", {"s" * (length + 1)})


@pytest.mark.parametrize(
    "raw", [b"", b"\xff", b"\xdb\xff\xff\xff\xff", b'"', b'"\\', b"[[[[", b"\x92\x06\x80", b"\x80"]
)
def test_garbage_names_nobody(raw: bytes) -> None:
    assert not names(raw, "acme", {"1", ""})
