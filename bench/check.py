"""The check that names the committed results whose code has changed since they were made.

    python -m bench.check

The code of a result is the benchmark's module, all of ours that it imports, and the programs that these start with
`-m`, each with what it imports. Comments, docstrings and formatting do not count, nor does a file's place. A result
that is older than its code, was made on a changed tree, or by a commit that the history does not have, is named; one
without whole rows is an error. So is a headline that two landings have passed by and the product has changed since, or
that its page does not show. What is worse than the best of the last ten landings is told (`bench/headline/past.py`)."""

import ast
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.headline.page import is_shown
from bench.headline.past import against_past
from bench.landings import BadTable, history, landings
from bench.table import RESULTS

ROOT = Path(__file__).resolve().parent.parent
OURS = (
    "bench",
    "core",
    "api",
    "ingest",
    "scoring",
    "learner",
    "serving",
    "onward",
    "environments",
    "simulator",
    "kernels",
    "tests/faults",
    "tests/hostile",
)
PRODUCT = tuple(each for each in OURS if not each.startswith(("bench", "tests")))
MADE_BY_TESTS = {"faults": "fault_table", "hostile": "test_hostile"}
"""Results that no benchmark makes: the module among the tests that does."""
NOT_MEASURED = {"bench/table.py"}  # it writes down what was measured
HEADLINE = "headline"
SLID = "worse than the best of the last landings, or measured in a slower hour (make bench-headline AGAINST=…)"
MOST_LANDINGS = 1  # that the headline does not have: one older than the last two has been passed by
NAMED = 3  # changed files that are shown of each
Tree = Mapping[str, bytes]
"""The source files at one commit, by path."""


class BadResult(Exception):
    """A result that is incomplete; the message names it and says why."""


@dataclass(frozen=True)
class State:
    """The state of a result compared with the code."""

    name: str
    commit: str
    is_dirty: bool
    changed: tuple[str, ...] | None
    """The files that changed; None when the commit is not in the history."""

    @property
    def is_current(self) -> bool:
        return not self.is_dirty and self.changed == ()

    @property
    def words(self) -> str:
        """Describe the state to a person."""
        found = ["made on a changed tree"] if self.is_dirty else []
        if self.changed is None:
            found.append("its commit is not in the history")
        elif self.changed:
            more = f" and {len(self.changed) - NAMED} more" if len(self.changed) > NAMED else ""
            found.append(f"changed since: {', '.join(self.changed[:NAMED])}{more}")
        return "; ".join(found) or "current"


def states(directory: Path = RESULTS) -> Iterator[State]:
    """Yield one state for each result and commit in it. Raises BadResult."""
    now = files_now()
    for file in sorted(directory.glob("*.json")):
        content = json.loads(file.read_text())
        if not isinstance(content, dict) or "rows" not in content:
            continue  # runs, of which a result is made
        for made in sorted(commits(file.stem, content)):
            commit = made.removesuffix("-dirty")
            then = _at(commit)
            yield State(file.stem, commit, made != commit, None if then is None else changed(file.stem, then, now))


def commits(name: str, content: Mapping[str, Any]) -> set[str]:
    """Return the commits that made the result's rows. Raises BadResult."""
    rows = content["rows"]
    whole = {"metric", "value", "unit", "against", "ratio", "goal", "holds"}
    if not rows or any(not whole <= row.keys() or not isinstance(row["holds"], bool) for row in rows):
        raise BadResult(f"{name}: each row needs {', '.join(sorted(whole))}")
    found = {row.get("commit") or content.get("commit") for row in rows}
    if None in found:
        raise BadResult(f"{name}: no word of the commit that made it")
    return {commit for several in found if several is not None for commit in several.split(", ")}


def changed(name: str, then: Tree, now: Tree) -> tuple[str, ...]:
    """Return the files of a benchmark's code that differ, wherever they stand, with those closest to it first."""
    known, used = _measured(name, then), _measured(name, now)
    new = [path for path, meaning in used.items() if meaning not in known.values()]
    gone = [path for path, meaning in known.items() if meaning not in used.values()]
    return tuple(dict.fromkeys([*new, *gone]))


def _measured(name: str, files: Tree) -> dict[str, str]:
    """Return the meaning of each file of a benchmark's code."""
    return {path: _meaning(files[path]) for path in sources(name, files) if path not in NOT_MEASURED}


def sources(name: str, files: Tree) -> list[str]:
    """Return the benchmark's own file, and all of ours that it needs, breadth first."""
    found = dict.fromkeys(_makers(name, files))
    waiting = list(found)
    while waiting:
        for module, imported in _imports(files.get(waiting.pop(0), b"")):
            path = _defined_in(module, imported, files)
            if path is not None and path not in found:
                found[path] = None
                waiting.append(path)
    return list(found)


def _makers(name: str, files: Tree) -> list[str]:
    """Return the files that a result's name stands for.

    There is one, unless the result was made at a time when no file had that name."""
    folder = "tests/" if name in MADE_BY_TESTS else "bench/"
    wanted = MADE_BY_TESTS.get(name, name)
    return [path for path in files if path.startswith(folder) and Path(path).stem == wanted]


def _defined_in(module: str, name: str | None, files: Tree) -> str | None:
    """Return the file of a module, or of a name that a package re-exports; None where it is not ours."""
    if name is not None and (path := _file(f"{module}.{name}", files)) is not None:
        return path
    path = _file(module, files)
    if name is None or path is None or not path.endswith("__init__.py"):
        return path
    for source, handed_on in _imports(files[path]):
        if handed_on == name and source != module:
            return _defined_in(source, name, files)
    return path


def _file(module: str, files: Tree) -> str | None:
    path = module.replace(".", "/")
    names = f"{path}.py", f"{path}/__init__.py", f"kernels/{path}.py", f"kernels/{path}/__init__.py"
    return next((each for each in names if each in files), None)


@cache
def _imports(content: bytes) -> tuple[tuple[str, str | None], ...]:
    """Return all that a file imports or starts, as module and name, or None for the module itself."""
    return tuple(dict.fromkeys(_each_import(ast.parse(content))))


def _each_import(parsed: ast.Module) -> Iterator[tuple[str, str | None]]:
    for node in ast.walk(parsed):
        match node:
            case ast.Import():
                yield from ((alias.name, None) for alias in node.names)
            case ast.ImportFrom(module=str(module)):
                yield from ((module, alias.name) for alias in node.names)
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                for program in _programs(elements):
                    name = str(program.value)
                    yield from ((name, None), (f"{name}.__main__", None))


def _programs(elements: Iterable[ast.expr]) -> Iterator[ast.Constant]:
    """Yield the modules that a command line starts with `-m`."""
    for flag, module in pairwise(elements):
        match flag, module:
            case ast.Constant(value="-m"), ast.Constant(value=str()):
                yield module


@cache
def _meaning(content: bytes) -> str:
    """Return what a file does, as its syntax without docstrings.

    The order and the places of the modules that it names do not count, since these are among the sources themselves."""
    parsed = ast.parse(content)
    for node in ast.walk(parsed):
        match node:
            case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                node.body = [each for each in node.body if not _is_text(each)]
            case ast.ImportFrom(module=str(module)):
                node.module = module.rpartition(".")[2]
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                for program in _programs(elements):
                    program.value = str(program.value).rpartition(".")[2]
    parsed.body.sort(key=lambda each: ast.dump(each) if isinstance(each, ast.Import | ast.ImportFrom) else "~")
    return ast.dump(parsed)


def _is_text(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Constant(value=str())):
            return True
    return False


def files_now() -> Tree:
    """Return our Python files as they are."""
    paths = (path for folder in OURS for path in sorted((ROOT / folder).rglob("*.py")))
    return {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in paths}


@cache
def _at(commit: str) -> Tree | None:
    """Return our Python files at a commit, or None where the history does not have it."""
    git = ["git", "archive", "--format=tar", commit, "--", *OURS]
    archived = subprocess.run(git, cwd=ROOT, capture_output=True, check=False)
    if archived.returncode:
        return None
    with tarfile.open(fileobj=io.BytesIO(archived.stdout)) as files:
        return {each.name: _content(files, each) for each in files if each.name.endswith(".py")}


def _content(files: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = files.extractfile(member)
    assert file is not None, f"{member.name} is no file"
    return file.read()


def against_headline(commit: str, root: Path = ROOT) -> Iterator[str]:
    """Yield what speaks against a headline that this commit made. Raises BadTable."""
    known = history(commit, root)
    if known is None or known[0] not in (history("HEAD", root) or ()):
        yield "the headline was made by a commit that is not in the history"
        return
    since = [landing[:8] for landing in landings(root) if landing not in known]
    git = ["git", "diff", "--quiet", commit, "HEAD", "--", *PRODUCT]
    if len(since) > MOST_LANDINGS and subprocess.run(git, cwd=root, check=False).returncode:
        yield f"the product has changed since the headline, and {len(since)} commits have landed: {', '.join(since)}"


def main() -> None:
    try:
        found = list(states())
    except BadResult as error:
        sys.exit(f"bench-check: {error}")
    table = Table("result", "commit", "its code", title="Committed results against the code that makes them")
    for state in found:
        table.add_row(state.name, state.commit, state.words)
    Console(width=max(140, Console().width)).print(table)
    names = {state.name for state in found}
    older = sorted({state.name for state in found if not state.is_current})
    print(f"{len(older)} of {len(names)} results are not of today's code: {', '.join(older) or 'none'}")
    try:
        wrong = [each for state in found if state.name == HEADLINE for each in against_headline(state.commit)]
        worse = list(against_past(ROOT)) if HEADLINE in names else []
    except BadTable as error:
        sys.exit(f"bench-check: {error}")
    if wrong:
        sys.exit(f"bench-check: {'; '.join(wrong)}: make bench-headline")
    if HEADLINE in names and not is_shown():
        sys.exit("bench-check: docs/results.md shows another headline than bench/results/headline.json")
    if worse:
        print(f"bench-check: {SLID}: {'; '.join(worse)}")


if __name__ == "__main__":
    main()
