"""The symbols of a file: its classes, functions and methods, as tree-sitter parses them."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

import tree_sitter_python
from tree_sitter import Language, Node, Parser

_DEEPEST: Final = 200  # levels of syntax that are looked into: for each, a function here calls itself
_KINDS: Final = {"function_definition": "function", "class_definition": "class"}
_BLOCK_LINES: Final = 40  # of a file without symbols that are known here


@dataclass(frozen=True)
class Symbol:
    """One place in code. `name` has the names around it, as `Class.method`; lines count from 1, both included.

    `head` is its first line, `prose` its docstring, `body` all the rest of it but for symbols within it."""

    path: str
    name: str
    kind: str
    start: int
    end: int
    head: str
    prose: str
    body: str


@dataclass(frozen=True)
class Definition:
    """A class or a function, with the names around it and its own; a function within a class is a method."""

    names: tuple[str, ...]
    kind: str
    node: Node


def symbols_of(path: str, source: str) -> list[Symbol]:
    """Return the symbols of a file, the file itself first; of one that is not Python, blocks of lines."""
    if not path.endswith((".py", ".pyi")):
        return list(_blocks(path, source))
    code = source.encode()
    root = _parser().parse(code).root_node
    found = _within((), root, code, _DEEPEST)
    return [_module(path, root, code), *(_symbol(path, each, code) for each in found)]


def definitions_of(code: bytes) -> Iterator[Definition]:
    """Yield the classes and functions of Python, outer ones before inner ones."""
    return _within((), _parser().parse(code).root_node, code, _DEEPEST)


@cache
def _parser() -> Parser:
    return Parser(Language(tree_sitter_python.language()))


def _blocks(path: str, source: str) -> Iterator[Symbol]:
    lines = source.splitlines()
    for start in range(0, len(lines), _BLOCK_LINES):
        part = lines[start : start + _BLOCK_LINES]
        head = next((line.strip() for line in part if line.strip()), "")
        yield Symbol(path, "", "lines", start + 1, start + len(part), head, "", "\n".join(part))


def _module(path: str, root: Node, code: bytes) -> Symbol:
    body = b"\n".join(_text_without_symbols(root, code))
    return Symbol(
        path, "", "file", 1, max(1, code.count(b"\n")), path, _docstring(root, code), body.decode(errors="replace")
    )


def _within(around: tuple[str, ...], node: Node, code: bytes, levels: int) -> Iterator[Definition]:
    """Yield the definitions within a node, outer ones before inner ones, down to so many levels."""
    for child in node.children if levels else ():
        kind = _KINDS.get(child.type)
        name = child.child_by_field_name("name")
        if kind is None or name is None:
            yield from _within(around, child, code, levels - 1)
            continue
        names = (*around, _text(name, code))
        yield Definition(names, "method" if around and kind == "function" else kind, child)
        yield from _within(names, child, code, levels - 1)


def _symbol(path: str, found: Definition, code: bytes) -> Symbol:
    node = found.node
    body = node.child_by_field_name("body")
    head = _text(node, code) if body is None else code[node.start_byte : body.start_byte].decode(errors="replace")
    inside = b"\n".join(_text_without_symbols(body, code)) if body is not None else b""
    return Symbol(
        path=path,
        name=".".join(found.names),
        kind=found.kind,
        start=node.start_point[0] + 1,
        end=node.end_point[0] + 1,
        head=" ".join(head.split()),
        prose=_docstring(body, code) if body is not None else "",
        body=inside.decode(errors="replace"),
    )


def _text_without_symbols(node: Node, code: bytes) -> Iterator[bytes]:
    """Yield the text of a node's children that are neither symbols, which stand for themselves, nor its docstring."""
    for place, child in enumerate(node.children):
        inner = child.child_by_field_name("definition") if child.type == "decorated_definition" else child
        if inner is not None and inner.type in _KINDS:
            name = inner.child_by_field_name("name")
            yield code[name.start_byte : name.end_byte] if name is not None else b""
        elif place or not _is_text(child):
            yield code[child.start_byte : child.end_byte]


def _docstring(node: Node, code: bytes) -> str:
    first = next((child for child in node.children if child.type != "comment"), None)
    return _text(first, code) if first is not None and _is_text(first) else ""


def _is_text(node: Node) -> bool:
    return node.type == "string" or (
        node.type == "expression_statement" and len(node.children) == 1 and node.children[0].type == "string"
    )


def _text(node: Node, code: bytes) -> str:
    return code[node.start_byte : node.end_byte].decode(errors="replace")
