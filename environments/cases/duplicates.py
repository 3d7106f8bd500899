"""Finds code that says again what was there: functions and classes whose bodies are alike but for names of their own.

Compared are the tokens of bodies, without comments, docstrings and annotations. Names that a body binds itself count by
the order in which they come, so that another name hides nothing; all others count as they are written, so that two
bodies that call different things are not alike."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from pathlib import PurePosixPath
from sys import intern
from typing import Final

from tree_sitter import Node

from environments.harness.search.symbols import Definition, definitions_of

_LEAST: Final = 8  # tokens of a body: what is shorter is alike by chance
_LONG: Final = 20  # tokens, from which on bodies may differ a little; shorter ones have to be the same
_ALIKE: Final = 0.9  # of the tokens of both
_TARGETS: Final[Mapping[str, str]] = {
    "assignment": "left",
    "augmented_assignment": "left",
    "for_statement": "left",
    "for_in_clause": "left",
    "named_expression": "name",
    "lambda": "parameters",
    "function_definition": "name",
    "class_definition": "name",
}
"""The field in which a piece of syntax names what it binds."""
_TESTS: Final = ("tests", "test")

Key = tuple[str, str, int]
"""Path, name, and which of several of that name in the file."""


@dataclass(frozen=True)
class _Body:
    path: str
    name: str
    line: int
    tokens: tuple[str, ...]

    @property
    def place(self) -> str:
        return f"{self.path}:{self.line} ({self.name})"

    @cached_property
    def counts(self) -> Counter[str]:
        return Counter(self.tokens)


def duplicates(
    before: Mapping[str, str], after: Mapping[str, str], was_read: Callable[[], None] = lambda: None
) -> list[str]:
    """Return, in words, what the work wrote that was there already; each with both places.

    `before` and `after` are the texts of all Python files by their paths. Only what still stands after the work counts
    as there already: code that was moved or renamed is no duplicate, even where another says the same. Tests are left
    out, which resemble each other. `was_read` is called once what was there is known."""
    read = {path: _bodies(path, text) for path, text in sorted(before.items()) if not _is_test(path)}
    was_read()
    old = _together(read.values())
    new = _together(
        read[path] if before.get(path) == text else _bodies(path, text)
        for path, text in sorted(after.items())
        if not _is_test(path)
    )
    gone = Counter(body.tokens for key, body in old.items() if key not in new or new[key].tokens != body.tokens)
    there = {key: body for key, body in new.items() if key in old}
    found: list[str] = []
    told: list[_Body] = []
    for key, body in new.items():
        was = old.get(key)
        if was is not None and was.tokens == body.tokens:
            continue
        if gone[body.tokens]:  # it stood elsewhere, once for each that stands no more
            gone[body.tokens] -= 1
            continue
        if any(body.path == outer.path and body.name.startswith(outer.name + ".") for outer in told):
            continue
        other = _like(key, body, was, there)
        if other is not None:
            told.append(body)
            found.append(f"{body.place} says again what {other.place} says")
    return found


def _like(key: Key, body: _Body, was: _Body | None, there: Mapping[Key, _Body]) -> _Body | None:
    """Return what was there already and is like a body; it was not as like before the work."""
    for other_key, other in there.items():
        if other_key == key or _holds(body, other) or _holds(other, body):
            continue
        if _alike(body, other) and not (was is not None and _alike(was, other)):
            return other
    return None


def _holds(outer: _Body, inner: _Body) -> bool:
    return outer.path == inner.path and inner.name.startswith(outer.name + ".")


def _is_test(path: str) -> bool:
    parts = PurePosixPath(path).parts
    name = parts[-1].removesuffix(".py")
    return name.startswith("test_") or name.endswith("_test") or name == "conftest" or any(p in _TESTS for p in parts)


def _alike(one: _Body, other: _Body) -> bool:
    """Tell whether two bodies are alike; what they could share at most is looked at first, which takes less."""
    shorter, longer = sorted((len(one.tokens), len(other.tokens)))
    if shorter < _LEAST or 2 * shorter < _ALIKE * (shorter + longer):
        return False
    if one.tokens == other.tokens:
        return True
    if shorter < _LONG or 2 * (one.counts & other.counts).total() < _ALIKE * (shorter + longer):
        return False
    return SequenceMatcher(None, one.tokens, other.tokens, autojunk=False).ratio() >= _ALIKE


def _together(files: Iterable[Mapping[Key, _Body]]) -> dict[Key, _Body]:
    return {key: body for bodies in files for key, body in bodies.items()}


def _bodies(path: str, text: str) -> dict[Key, _Body]:
    found: dict[Key, _Body] = {}
    code = text.encode(errors="replace")
    counts = Counter[str]()
    for definition in definitions_of(code):
        name = ".".join(definition.names)
        line = definition.node.start_point[0] + 1
        found[path, name, counts[name]] = _Body(path, name, line, tuple(map(intern, _tokens(definition, code))))
        counts[name] += 1
    return found


def _tokens(definition: Definition, code: bytes) -> Iterator[str]:
    body = definition.node.child_by_field_name("body")
    if body is None:
        return
    bound = {_text(name, code) for name in _bound(definition.node)}
    numbers: dict[str, str] = {}
    for leaf in _leaves(body):
        text = _text(leaf, code)
        if leaf.type in ("string_start", "string_end"):
            text = text.replace("'", '"')
        elif leaf.type == "identifier" and text in bound and not _is_of_another(leaf):
            text = numbers.setdefault(text, f"#{len(numbers)}")
        if text:
            yield text


def _leaves(body: Node) -> Iterator[Node]:
    """Yield what a body is written of, in its order, without comments, docstrings and annotations."""
    waiting = [body]
    while waiting:
        node = waiting.pop()
        if node.type in ("comment", "type") or _is_docstring(node):
            continue
        if not node.children:
            yield node
        waiting += reversed(node.children)


def _is_docstring(node: Node) -> bool:
    return node.type == "expression_statement" and len(node.children) == 1 and node.children[0].type == "string"


def _is_of_another(name: Node) -> bool:
    """Tell whether a name is that of an attribute, or of another function's parameter."""
    parent = name.parent
    if parent is None:
        return False
    field = {"attribute": "attribute", "keyword_argument": "name"}.get(parent.type)
    return field is not None and parent.child_by_field_name(field) == name


def _bound(node: Node) -> Iterator[Node]:
    """Yield each place at which a definition binds a name of its own, its own name among them."""
    waiting = [node]
    while waiting:
        found = waiting.pop()
        field = _TARGETS.get(found.type)
        target = None if field is None else found.child_by_field_name(field)
        if target is not None:
            yield from _targets(target)
        if found.type == "function_definition":
            yield from _targets(found.child_by_field_name("parameters"))
        elif found.type == "as_pattern_target":
            yield from _targets(found)
        waiting += found.children


def _targets(pattern: Node | None) -> Iterator[Node]:
    """Yield the names that a pattern or a list of parameters binds, however deep it is."""
    waiting = [pattern]
    while waiting:
        found = waiting.pop()
        if found is None or found.type in ("attribute", "subscript", "type", "call"):
            continue
        name = found.child_by_field_name("name")
        if found.type == "identifier":
            yield found
        else:
            waiting += found.children if name is None else [name]  # a name: of a parameter with a default


def _text(node: Node, code: bytes) -> str:
    return code[node.start_byte : node.end_byte].decode(errors="replace")
