"""The error for an invalid body, whatever is in it."""

from typing import Literal

import msgspec
import pytest
from counted_steps import steps_of

from api.http.decoding import decode_body
from core.errors import InvalidRequest


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    kind: Literal["a", "b"] = "a"


class Body(msgspec.Struct, forbid_unknown_fields=True):
    model: str
    inner: Inner | None = None


DECODER = msgspec.json.Decoder(Body)


@pytest.mark.parametrize(
    ("raw", "param", "code"),
    [
        (b'{"model": "m", "x": 1}', "x", "unknown_field"),
        (b'{"model": "m", "inner": {"name": "n", "x": 1}}', "inner.x", "unknown_field"),
        (b'{"inner": {"name": "n"}}', "model", "missing_field"),
        (b'{"model": "m", "inner": {}}', "inner.name", "missing_field"),
        (b'{"model": 1}', "model", "invalid_field"),
        (b'{"model": "m", "inner": {"name": "n", "kind": "c"}}', "inner.kind", "invalid_field"),
        (b"[]", None, "invalid_field"),
        (b'{"model": "m", "a - at `$.b": 1}', "a - at `$.b", "unknown_field"),
        (b'{"model": "m", "inner": {"name": "n", "kind": "unknown field `model`"}}', "inner.kind", "invalid_field"),
    ],
)
def test_an_error_names_the_field(raw: bytes, param: str | None, code: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_body(DECODER, raw)
    assert (caught.value.param, caught.value.code) == (param, code)


@pytest.mark.parametrize("words", ["unknown field `", "missing required field `", " - at `$", "`"])
def test_an_error_takes_no_longer_for_what_it_quotes(words: str) -> None:
    def refuse(times: int) -> None:
        body = {"model": "m", "inner": {"name": "n", "kind": words * times}}
        with pytest.raises(InvalidRequest) as caught:
            decode_body(DECODER, msgspec.json.encode(body))
        assert caught.value.param == "inner.kind"

    assert steps_of(lambda: refuse(1_000_000 // len(words))) == steps_of(lambda: refuse(1))
