"""The writers and readers of each table and each topic, found in the code."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STAGES = {
    "api/": "api",
    "ingest/archive/": "archive",
    "ingest/": "writer",
    "scoring/alerts/": "notifier",
    "scoring/judge/": "judge",
    "scoring/watching/": "monitors",
    "scoring/": "scorer",
    "learner/": "learner",
    "serving/engines/": "hosts",
    "serving/fleet/": "routers",
    "serving/": "releases",
    "onward/processes/": "service",
    "onward/wiring/": "service",
    "onward/replays/": "replays",
    "onward/backups/": "backups",
    "onward/commands/": "commands",
}
"""The stage that owns the code, by the longest prefix of its path."""
SHARED = ("core/records/", "core/stages/")
"""Code that stages share: whoever imports a function that writes counts as the writer."""
_WRITING = {"insert": 0, "update": 0, "delete": 0, "insert_new": 1, "upsert": 1, "add_up": 1}
_READING_OF_TOPICS = {"reader", "consumer", "Membership", "SharedRecords", "open_history"}
Uses = dict[str, set[str]]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def sources() -> list[tuple[str, ast.Module]]:
    folders = ("api", "core/records", "core/stages", "ingest", "learner", "onward", "scoring", "serving")
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [(str(path.relative_to(ROOT)), parsed(path)) for path in paths]


def stage_of(path: str) -> str:
    return STAGES[max((prefix for prefix in STAGES if path.startswith(prefix)), key=len)]


# ------------------------------------------------------------------------------------------ what the store's methods do


class StoreModule:
    """A module of `core/store`, with the tables that each method of its repositories writes and reads."""

    def __init__(self, tree: ast.Module) -> None:
        self._names = dict(bound for node in tree.body for bound in _bound_by(node))
        self.classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}

    def methods(self, kind: str) -> dict[str, ast.FunctionDef]:
        node = self.classes[kind]
        inherited = [
            self.methods(base.id) for base in node.bases if isinstance(base, ast.Name) and base.id in self.classes
        ]
        own = {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}
        return {name: each for found in (*inherited, own) for name, each in found.items()}

    def tables(self, kind: str, method: str) -> tuple[set[str], set[str]]:
        """Return (tables that the method writes, tables that it names)."""
        written: set[str] = set()
        named: set[str] = set()
        for node in self._reached(kind, method):
            local = dict(bound for part in ast.walk(node) for bound in _bound_by(part))
            named |= self._named(node, local)
            for call in ast.walk(node):
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in _WRITING:
                    target = call.args[_WRITING[call.func.id]]
                    written |= self._named(target, local)
        return written, named

    def _reached(self, kind: str, method: str) -> list[ast.AST]:
        """Return the method with everything of its module that it uses, directly or indirectly."""
        found: dict[int, ast.AST] = {}
        methods = self.methods(kind)
        ahead: list[ast.AST] = [methods[method]]
        while ahead:
            node = ahead.pop()
            if id(node) in found:
                continue
            found[id(node)] = node
            for part in ast.walk(node):
                if isinstance(part, ast.Name) and part.id in self._names and part.id not in self.classes:
                    ahead.append(self._names[part.id])
                if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "self":
                    ahead += [methods[part.attr]] if part.attr in methods else []
        return list(found.values())

    def _named(self, node: ast.AST, local: dict[str, ast.AST]) -> set[str]:
        """Return the tables that `node` names, directly or through a variable."""
        found = set()
        for part in ast.walk(node):
            if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "tables":
                found |= {part.attr} if part.attr.islower() else {_TABLE_OF[part.attr]}
            elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
                source = local.get(part.id, self._names.get(part.id))
                if isinstance(source, ast.expr):
                    found |= self._named(source, {})
        return found


_TABLE_OF = {"WAITS": "rewards", "IS_OPEN": "alarms", "UNTOLD": "alarms", "TAKES_BACK": "consents"}
"""Conditions that `tables` defines, each with its table."""


def _bound_by(node: ast.AST) -> list[tuple[str, ast.AST]]:
    """Return the names that a statement binds, each with its definition."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [(node.name, node)]
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        pairs = [(node.target, node.value)]
    elif isinstance(node, ast.Assign):
        pairs = [(target, node.value) for target in node.targets]
    else:
        return []
    return [bound for target, value in pairs for bound in _pairs(target, value)]


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[str, ast.AST]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return [pair for each in zip(target.elts, value.elts, strict=True) for pair in _pairs(*each)]
    return [(part.id, value) for part in ast.walk(target) if isinstance(part, ast.Name)]


@cache
def repositories() -> dict[tuple[str, str], tuple[set[str], set[str]]]:
    """Return the tables that each method writes and names, by (repository, method)."""
    folders = tuple(ROOT / "core/store" / name for name in ("", "accounts", "newest", "operators"))
    files = [path for folder in folders for path in sorted(folder.glob("*.py"))]
    modules = [StoreModule(parsed(path)) for path in files]
    home = {name: module for module in modules for name in module.classes}
    assigned = re.findall(r"self\.(\w+) = (\w+)\(connection\)", (ROOT / "core/store/work.py").read_text())
    return {
        (repository, method): home[kind].tables(kind, method)
        for repository, kind in assigned
        for method in home[kind].methods(kind)
        if not method.startswith("_")
    }


# ------------------------------------------------------------------------------------------ what the stages do


def uses_of_tables() -> tuple[Uses, Uses]:
    """Return the stages that write each table and those that read it."""
    known = repositories()
    written, read = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for path, tree in sources():
        for repository in repositories_at(tree):
            method = parents_of(tree).get(repository)
            assert isinstance(method, ast.Attribute), f"{path}:{repository.lineno}: what becomes of it is not seen here"
            writes, names = known[repository.attr, method.attr]
            stages = _stages_at(path, tree, repository)
            for table in writes:
                written[table] |= stages
            for table in names - writes:
                read[table] |= stages
    return dict(written), dict(read)


def repositories_at(tree: ast.Module) -> list[ast.Attribute]:
    """Return each `work.repository` and `view.repository` of a module."""
    parents = parents_of(tree)
    named = {name for name, _ in repositories()}
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.attr in named
        and _is_of_the_store(node.value.id, node, parents)
    ]


def _is_of_the_store(name: str, node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Return whether the innermost scope that binds `name` makes it a View or Work."""
    while node in parents:
        node = parents[node]
        if isinstance(node, ast.With):
            for item in node.items:
                if isinstance(item.optional_vars, ast.Name) and item.optional_vars.id == name:
                    call = item.context_expr
                    return isinstance(call, ast.Call) and getattr(call.func, "attr", "") in ("work", "look", "writing")
        elif isinstance(node, ast.Lambda) and name in [each.arg for each in node.args.args]:
            return True  # it has such an attribute
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for each in node.args.args:
                if each.arg == name:
                    return each.annotation is not None and ast.unparse(each.annotation) in ("View", "Work")
    return False


def units_out_of_sight() -> list[str]:
    """Return the places that open a unit of work or a view without `with store.work() as name`."""
    return [
        f"{path}:{call.lineno}"
        for path, tree in sources()
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in ("work", "look")
        and ast.unparse(call.func.value).endswith("store")
        and not isinstance(parents_of(tree)[call], ast.withitem)
    ]


@cache
def parents_of(tree: ast.Module) -> dict[ast.AST, ast.AST]:
    return {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}


def uses_of_topics() -> tuple[Uses, Uses]:
    """Return the stages that append to each topic and those that read it."""
    written, read = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for path, tree in sources():
        constants = dict(bound for node in ast.walk(tree) for bound in _bound_by(node))
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if name in ("append", "append_blocking") and call.args:
                for topic in _topics_in([call.args[0]]):
                    written[topic] |= _stages_at(path, tree, call)
            elif name in _READING_OF_TOPICS:
                given = [
                    constants.get(part.id, part)
                    for arg in call.args
                    for part in ast.walk(arg)
                    if isinstance(part, ast.Name)
                ]
                for topic in _topics_in(call.args) or _topics_in(given) or _topics_in([tree]):
                    read[topic] |= _stages_at(path, tree, call)
    return dict(written), dict(read)


def appended_untold() -> set[str]:
    """Return the modules that append to the log without naming the topic in the call; the log's own are left out."""
    return {
        path
        for path, tree in sources()
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in ("append", "append_blocking")
        and re.search(r"\blog$", ast.unparse(call.func.value).replace("_log", "log"))
        and not _topics_in(call.args[:1])
        and not path.startswith("ingest/")
    }


def _topics_in(nodes: Iterable[ast.AST]) -> set[str]:
    return {
        part.attr.lower()
        for node in nodes
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "Topic"
    }


def _stages_at(path: str, tree: ast.Module, node: ast.AST) -> set[str]:
    if not path.startswith(SHARED):
        return {stage_of(path)}
    parts = _parts(tree)
    holding = {name for name, part in parts.items() if any(each is node for each in ast.walk(part))}
    return _importers_of(path, _names_that_reach(parts, holding))


def _importers_of(path: str, sought: set[str]) -> set[str]:
    """Return the stages that import these names of a shared module, also through other shared modules."""
    module, found = path.removesuffix(".py").replace("/", "."), set[str]()
    for other, source in sources():
        imported = _imported_by(source).get(module, set())
        if imported & sought and not other.startswith(SHARED):
            found.add(stage_of(other))
        elif imported & sought:
            found |= _importers_of(other, _names_that_reach(_parts(source), imported & sought) - imported)
    return found


@cache
def _imported_by(tree: ast.Module) -> dict[str, set[str]]:
    """Return the names that a module imports, by the module they come from."""
    found = defaultdict[str, set[str]](set)
    for part in ast.walk(tree):
        if isinstance(part, ast.ImportFrom) and part.module is not None:
            found[part.module] |= {each.name for each in part.names}
    return found


def _parts(tree: ast.Module) -> dict[str, ast.FunctionDef | ast.ClassDef]:
    return {part.name: part for part in tree.body if isinstance(part, ast.FunctionDef | ast.ClassDef)}


def _names_that_reach(parts: dict[str, ast.FunctionDef | ast.ClassDef], found: set[str]) -> set[str]:
    """Return these functions and classes of a module, and all that use one of them."""
    while more := {
        name
        for name, part in parts.items()
        if name not in found and found & {each.id for each in ast.walk(part) if isinstance(each, ast.Name)}
    }:
        found = found | more
    return found
