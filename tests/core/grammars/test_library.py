"""Grammars are compiled within bounds, and what a hostile schema makes of them ends soon and with an error."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.errors import InvalidRequest, OnwardError
from core.events import Grammar
from core.grammars import library
from core.grammars.library import Grammars, grammars_of
from core.grammars.masks import Masks, NotAllowed
from serving.rendering.formats.grammar import schema_grammar

TINY = Path(__file__).resolve().parents[3] / "models" / "tiny"
STOPS = (2, 0)


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def bomb(keyword: str, depth: int) -> dict[str, Any]:
    """Return a schema that is exponential where references are written out."""
    defs: dict[str, Any] = {f"n{i}": {keyword: [{"$ref": f"#/$defs/n{i + 1}"}] * 2} for i in range(depth)}
    return {"$defs": {**defs, f"n{depth}": {"type": "object"}}, "$ref": "#/$defs/n0"}


HOSTILE: dict[str, dict[str, Any]] = {
    "nested": nested(15),
    "alternatives": {"type": "string", "pattern": "^(a|aa)+(b|bb)+(a|ab|ba)*$"},
    "counted": {"type": "string", "pattern": "^.*a.{30}b.{30}$"},
    "counted twice": {"type": "string", "pattern": "^([a-z]{1,1000}){1,1000}$"},
    "long": {"type": "string", "minLength": 1_000_000},
    "many items": {"type": "array", "items": {"type": "string", "pattern": "a.*b"}, "minItems": 100_000},
    "many properties": {"type": "object", "properties": {f"prop{n}": {"type": "string"} for n in range(2000)}},
    "many values": {"enum": [f"{number * 7919:x}" for number in range(5000)]},
    "many objects": {
        "anyOf": [
            {"type": "object", "properties": {f"a{i}": {"type": "string"}, f"b{j}": {"type": "integer"}}}
            for i in range(30)
            for j in range(30)
        ]
    },
    "all of many": {
        "allOf": [
            {"anyOf": [{"type": "string", "pattern": f".*{i}.{{5}}"}, {"type": "string", "pattern": f".*x{i}"}]}
            for i in range(14)
        ]
    },
    "of itself": {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"},
    "all of two": bomb("allOf", 22),
    "any of two": bomb("anyOf", 22),
    "multiples": {"type": "integer", "multipleOf": 999_983, "minimum": 1, "maximum": 10**15},
}


REFUSED = {
    "counted twice": (library.TOO_COMPLEX, "too many expressions"),
    "many properties": (library.TOO_COMPLEX, "items"),
    "many objects": (library.TOO_COMPLEX, "cannot be compiled"),
    "all of many": ("invalid_grammar", "Unable to determine"),
    "of itself": (library.TOO_COMPLEX, "cannot be compiled"),
    "multiples": ("invalid_grammar", "fuel exhausted"),
}
"""Those that cost more than the bounds, which count work: they are refused at the same point on every machine."""


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_costs_no_more_than_the_bounds(name: str) -> None:
    error = walk(HOSTILE[name])
    code, words = REFUSED.get(name, (None, ""))
    assert (error and error.code) == code
    assert error is None or (words in error.message and len(error.message) < 600)


def walk(schema: dict[str, Any]) -> InvalidRequest | None:
    """Write an answer at random; return the error with which that ended."""
    rng = random.Random(1)
    try:
        masks = Masks(Grammars(TINY), Grammar(text=schema_grammar(schema)), STOPS)
        for _ in range(100):
            ids = np.unpackbits(masks.next().view(np.uint8), bitorder="little").nonzero()[0]
            token = int(rng.choice([each for each in ids if each not in STOPS] or ids))
            masks.take(token)
            if token in STOPS:
                break
    except InvalidRequest as error:
        return error
    return None


def test_a_grammar_beyond_the_bound_is_not_compiled() -> None:
    with pytest.raises(InvalidRequest, match="larger"):
        Grammars(TINY).matcher(Grammar(text='start: "a"' + " " * library.MAX_GRAMMAR_BYTES), STOPS)


def test_a_schema_elsewhere_is_not_fetched() -> None:
    with pytest.raises(InvalidRequest):
        Grammars(TINY).matcher(Grammar(text=schema_grammar({"$ref": "http://127.0.0.1:9/schema.json"})), STOPS)


def test_a_schema_that_stands_for_itself_is_refused_in_words() -> None:
    with pytest.raises(InvalidRequest, match="may stand for itself alone"):
        Grammars(TINY).matcher(Grammar(text=schema_grammar({"allOf": [{"$ref": "#"}]})), STOPS)


def test_as_many_are_kept_as_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_MOST_COMPILED", 3)
    grammars = Grammars(TINY)
    for number in range(10):
        grammars.matcher(Grammar(text=f'start: "a{number}"'), STOPS)
    assert len(grammars._compiled) == 3


def test_what_one_had_compiled_is_compiled_again_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    make = Grammars.compile

    def counted(self: Grammars, grammar: Grammar, stop_token_ids: tuple[int, ...]) -> Any:
        compiled.append(grammar.text)
        return make(self, grammar, stop_token_ids)

    monkeypatch.setattr(Grammars, "compile", counted)
    grammars, grammar = Grammars(TINY), Grammar(text='start: "secret"')
    for scope in ("first", "first", "second", None, "second", None):
        Masks(grammars, grammar, STOPS, scope)
    assert len(compiled) == 3


def test_nobodys_grammars_take_the_place_of_all_others() -> None:
    grammars = Grammars(TINY)
    grammars.matcher(Grammar(text='start: "kept"'), STOPS, "first")
    for number in range(100):
        grammars.matcher(Grammar(text=f'start: "a{number}"'), STOPS, "second")
    scopes = [scope for scope, *_ in grammars._compiled]
    assert scopes == ["first"] + ["second"] * library._MOST_OF_A_SCOPE


def test_a_cached_grammar_begins_anew() -> None:
    grammars, grammar = Grammars(TINY), Grammar(text='start: "ab"')
    first = Masks(grammars, grammar, STOPS)
    before = first.next().copy()
    first.take(int(np.unpackbits(before.view(np.uint8), bitorder="little").nonzero()[0][0]))
    assert np.array_equal(Masks(grammars, grammar, STOPS).next(), before)


def test_a_comment_changes_no_mask() -> None:
    text = schema_grammar(nested(3))
    plain, marked = (Masks(Grammars(TINY), Grammar(text=each), STOPS) for each in (text, f"{text}\n// whose\n"))
    assert np.array_equal(plain.next(), marked.next())


def test_what_is_over_goes_on_by_nothing_but_a_stop_token() -> None:
    masks = Masks(grammars_of(TINY), Grammar(text='start: "a"'), STOPS)
    (a,) = grammars_of(TINY).tokenizer(STOPS).tokenize_str("a")
    masks.take(a)
    assert np.unpackbits(masks.next().view(np.uint8), bitorder="little").nonzero()[0].tolist() == [0, 2]
    masks.take(2)
    with pytest.raises(OnwardError):
        masks.take(a)


def test_the_digest_is_of_every_mask_and_of_their_order() -> None:
    grammars = grammars_of(TINY)
    a, b = grammars.tokenizer(STOPS).tokenize_str("a"), grammars.tokenizer(STOPS).tokenize_str("b")
    digests = set()
    for text in ('start: "ab"', "start: /ab|ba/", "start: /[ab]{2}/", "start: /[ab]{2,3}/"):
        masks = Masks(grammars, Grammar(text=text), STOPS)
        for token in (*a, *b, 2):
            masks.take(token)
        digests.add(masks.record().digest)
    assert len(digests) == 4


def test_a_token_that_is_not_allowed_is_refused() -> None:
    masks = Masks(grammars_of(TINY), Grammar(text='start: "a"'), STOPS)
    for token in (2, 10**6, -1):
        with pytest.raises(NotAllowed):
            masks.take(token)
