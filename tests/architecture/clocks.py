"""Where a test bounds a measured time from above: on a slow or a busy machine such a test fails for no reason."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

_OF_TIME = {"time", "monotonic", "perf_counter", "process_time", "thread_time", "clock_gettime"}
_OF_TIME |= {f"{name}_ns" for name in _OF_TIME}
_ANYWHERE = {"cpu_times", "getrusage"}
_LOOKED = re.compile(r"\btime\.|from time import|cpu_times|getrusage")
_SMALLER = (ast.Lt, ast.LtE)
_LARGER = (ast.Gt, ast.GtE)


def upper_bounds(source: str) -> list[int]:
    """Return the lines of assertions that bound a measured time from above, outside of tests marked `timed`.

    Measured is the difference of two looks at a clock, what is assigned or appended of it, and what a function of the
    file returns of it; a look itself is, but within a loop, where it ends the patience of who waits for a condition."""
    if not _LOOKED.search(source):
        return []
    tree = ast.parse(source)
    seen = _Seen(tree)
    return sorted({found.lineno for found, in_loop in _assertions(tree, False) if seen.is_bounded(found.test, in_loop)})


def upper_bounds_in(folder: Path) -> list[str]:
    return [
        f"{path.relative_to(folder)}:{line}"
        for path in sorted(folder.rglob("*.py"))
        for line in upper_bounds(path.read_text())
    ]


def _assertions(node: ast.AST, in_loop: bool) -> Iterator[tuple[ast.Assert, bool]]:
    for child in ast.iter_child_nodes(node):
        if any("mark.timed" in ast.unparse(each) for each in getattr(child, "decorator_list", ())):
            continue
        if isinstance(child, ast.Assert):
            yield child, in_loop
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from _assertions(child, not is_function and (in_loop or isinstance(child, ast.While | ast.For)))


class _Seen:
    """The names of a file that hold measured times, wherever they are bound."""

    def __init__(self, tree: ast.AST) -> None:
        self._imported = {
            name.asname or name.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module == "time"
            for name in node.names
            if name.name in _OF_TIME
        }
        self._looks: set[str] = set()
        self._measured: set[str] = set()
        self._measuring: set[str] = set()
        while self._learn(tree):
            pass

    def _learn(self, tree: ast.AST) -> bool:
        before = len(self._looks), len(self._measured), len(self._measuring)
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
                targets: list[ast.expr] = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
                self._looks |= names if self._is_look(node.value) else set()
                self._measured |= names if self._has_measured(node.value) else set()
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
                if any(map(self._has_measured, node.args)) and isinstance(node.func.value, ast.Name):
                    self._measured.add(node.func.value.id)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                returned = (each.value for each in ast.walk(node) if isinstance(each, ast.Return) and each.value)
                self._measuring |= {node.name} if any(map(self._has_measured, returned)) else set()
        return before != (len(self._looks), len(self._measured), len(self._measuring))

    def _is_look(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Name):
            return node.id in self._looks
        if not isinstance(node, ast.Call):
            return False
        if isinstance(node.func, ast.Name):
            return node.func.id in self._imported
        if not isinstance(node.func, ast.Attribute):
            return False
        of_time = isinstance(node.func.value, ast.Name) and node.func.value.id == "time"
        return node.func.attr in (_OF_TIME if of_time else _ANYWHERE)

    def _is_measured(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Name):
            return node.id in self._measured
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return node.func.id in self._measuring
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            return self._is_look(node.left) and self._holds_look(node.right)
        return False

    def _holds_look(self, node: ast.AST) -> bool:
        return any(map(self._is_look, ast.walk(node)))

    def _has_measured(self, node: ast.AST) -> bool:
        return any(map(self._is_measured, ast.walk(node)))

    def is_bounded(self, test: ast.AST, in_loop: bool) -> bool:
        return any(
            self._signs(small, in_loop)[0] or self._signs(large, in_loop)[1]
            for node in ast.walk(test)
            if isinstance(node, ast.Compare)
            for small, large in _ordered(node)
        )

    def _signs(self, node: ast.AST, in_loop: bool) -> tuple[bool, bool]:
        """Return whether a measured time is a part of a sum, and whether it is taken away from one."""
        if self._is_measured(node) or (isinstance(node, ast.Call) and self._is_look(node) and not in_loop):
            return True, False
        if isinstance(node, ast.BinOp):
            left, right = self._signs(node.left, in_loop), self._signs(node.right, in_loop)
            if isinstance(node.op, ast.Sub):
                right = right[1], right[0]
            return left[0] or right[0], left[1] or right[1]
        inner = [self._signs(each, in_loop) for each in ast.iter_child_nodes(node)]
        return any(first for first, _ in inner), any(second for _, second in inner)


def _ordered(node: ast.Compare) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Return pairs of a smaller and a larger side; those that are said to be about equal, both ways round."""
    sides = [node.left, *node.comparators]
    for left, operator, right in zip(sides[:-1], node.ops, sides[1:], strict=True):
        is_about = isinstance(operator, ast.Eq) and "approx" in ast.unparse(node)
        if isinstance(operator, _SMALLER) or is_about:
            yield left, right
        if isinstance(operator, _LARGER) or is_about:
            yield right, left
