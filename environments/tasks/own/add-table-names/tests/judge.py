"""Judges by two things: what the new function does, and that it does not say again what a helper says already.

A patch whose tests pass and that duplicates a helper is rewarded with 0."""

import ast
import json
import subprocess
import sys
from pathlib import Path

LIBRARY = Path("/app/sqlparse")
HELPERS = ("remove_quotes",)
LENGTH = 4  # of the runs of code that are compared
MOST_ALIKE = 0.6


def shape(function: ast.FunctionDef) -> list[str]:
    """Return a function's code in order, without its names and its docstring: operators, literals and kinds of node."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    said: list[str] = []

    def visit(node: ast.AST) -> None:
        said.append(repr(node.value) if isinstance(node, ast.Constant) else type(node).__name__)
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.expr_context):
                visit(child)

    for statement in body:
        visit(statement)
    return said


def runs(said: list[str]) -> set[tuple[str, ...]]:
    return {tuple(said[start : start + LENGTH]) for start in range(len(said) - LENGTH + 1)}


def functions() -> dict[str, ast.FunctionDef]:
    found = {}
    for path in sorted(LIBRARY.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                found[f"{path.relative_to(LIBRARY)}:{node.name}"] = node
    return found


def duplicates() -> list[str]:
    """Return the functions that hold most of a helper's code, or take quotes off by themselves."""
    known = functions()
    helpers = {name: runs(shape(node)) for name, node in known.items() if node.name in HELPERS}
    assert helpers, "the helpers are gone"
    alike = []
    for name, node in known.items():
        own = runs(shape(node))
        if name in helpers:
            continue
        if any(len(own & helper) / len(helper) > MOST_ALIKE for helper in helpers.values()) or strips_quotes(node):
            alike.append(name)
    return alike


def strips_quotes(function: ast.FunctionDef) -> bool:
    """Say whether a function calls strip, removeprefix or one of their kin with a quote."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            named = node.func.attr in ("strip", "lstrip", "rstrip", "removeprefix", "removesuffix")
            texts = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            if named and any(quote in text for text in texts for quote in "\"'`"):
                return True
    return False


def main() -> None:
    command = [sys.executable, "-I", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_task.py"]
    passed = subprocess.run(command, cwd="/tests", timeout=100).returncode == 0
    try:
        found = duplicates()
    except (SyntaxError, AssertionError) as error:
        print(error)
        found, passed = [], False
    print("duplicates of helpers:", ", ".join(found) or "none")
    rewards = {"reward": float(passed and not found), "tests": float(passed), "duplicates": float(len(found))}
    Path("/logs/verifier/reward.json").write_text(json.dumps(rewards))


if __name__ == "__main__":
    main()
