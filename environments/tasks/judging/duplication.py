"""Finding functions that a patch wrote anew although the repository had them already.

Tests pass with such a patch, and whoever maintains the repository would still refuse it. Python alone is compared: a
function is the sequence of its syntax tree's nodes, in which arguments and local names are numbered in the order in
which they come, and docstrings and annotations are left out. So a copy is found also where its names were changed.
Names of attributes, of what is called and constants stay: they say what a function does. Two sequences are as alike as
the share of both that they have in common (Indel similarity, of rapidfuzz)."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rapidfuzz.distance import Indel

ALIKE = 0.85
"""How alike a new function is to one that was there when it counts as the same."""
LEAST_NODES = 20
"""Shorter functions are alike by chance: `return self.x` does not repeat another one."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Duplicate:
    """A function that was written although there was another. Functions are named `path:qualified name`."""

    written: str
    there: str
    similarity: float


def duplicates(before: Mapping[str, str], after: Mapping[str, str]) -> list[Duplicate]:
    """Return the functions of `after` that are new and repeat one of `before`, each with the one that it is most like.

    Both map paths to sources. A source that is no Python is not compared; nor is a function that was only moved, which
    stands nowhere else any more; nor are the methods that Python itself calls, as `__init__`: those of two classes may
    well be the same."""
    there, now = dict(_functions(before)), dict(_functions(after))
    known = {name: nodes for name, nodes in there.items() if name in now and len(nodes) >= LEAST_NODES}
    found = []
    for name, nodes in now.items():
        if name in there or len(nodes) < LEAST_NODES or name.endswith("__"):
            continue
        likeness = {other: Indel.normalized_similarity(nodes, theirs) for other, theirs in known.items()}
        nearest = max(likeness, key=lambda other: likeness[other], default=None)
        if nearest is not None and likeness[nearest] >= ALIKE:
            found.append(Duplicate(name, nearest, likeness[nearest]))
    return found


def _functions(sources: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    for path, tree in _trees(sources):
        for name, node in _walk(tree, ""):
            yield f"{path}:{name}", list(_nodes(node))


def _trees(sources: Mapping[str, str]) -> Iterator[tuple[str, ast.Module]]:
    for path, source in sources.items():
        try:
            yield path, ast.parse(source)
        except (SyntaxError, ValueError):  # the latter for a zero byte
            continue


def _walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, _Function]]:
    """Yield each function under its qualified name; functions within functions are a part of these."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _Function):
            yield f"{prefix}{child.name}", child
        elif isinstance(child, ast.ClassDef):
            yield from _walk(child, f"{prefix}{child.name}.")
        else:
            yield from _walk(child, prefix)


def _nodes(function: _Function) -> Iterator[str]:
    own = {name: f"name {number}" for number, name in enumerate(_own_names(function))}
    body = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    yield type(function).__name__
    yield from (own[argument.arg] for argument in _arguments(function))
    for default in (*function.args.defaults, *(each for each in function.args.kw_defaults if each is not None)):
        yield from _node(default, own)
    for statement in body:
        yield from _node(statement, own)


def _node(node: ast.AST, own: Mapping[str, str]) -> Iterator[str]:
    match node:
        case ast.expr_context():
            return
        case ast.Name(id=name):
            yield own.get(name, f"global {name}")
        case ast.Constant(value=value):
            yield f"constant {value!r}"
        case ast.AnnAssign(target=target, value=value):
            yield "Assign"
            yield from _node(target, own)
            if value is not None:
                yield from _node(value, own)
        case _:
            yield type(node).__name__
            if isinstance(node, ast.Attribute | ast.keyword):
                yield f"attribute {node.attr if isinstance(node, ast.Attribute) else node.arg}"
            if isinstance(node, ast.arg):
                yield own.get(node.arg, node.arg)
                return
            for child in ast.iter_child_nodes(node):
                yield from _node(child, own)


def _arguments(function: _Function) -> list[ast.arg]:
    args = function.args
    several = (args.vararg, args.kwarg)
    return [*args.posonlyargs, *args.args, *args.kwonlyargs, *(each for each in several if each is not None)]


def _own_names(function: _Function) -> list[str]:
    """Return the names of arguments and local variables, in the order in which they come."""
    given = [argument.arg for argument in _arguments(function)]
    placed: list[tuple[int, int, str]] = []
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            placed.append((node.lineno, node.col_offset, node.id))
        elif isinstance(node, ast.arg):
            placed.append((node.lineno, node.col_offset, node.arg))
    return list(dict.fromkeys([*given, *(name for _, _, name in sorted(placed))]))
