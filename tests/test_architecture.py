"""The architecture as tests: layers, cost of imports, names, sizes; import-linter checks the import directions."""

import ast
import importlib
import importlib.metadata
import importlib.util
import re
import statistics
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from clocks import upper_bounds, upper_bounds_in
from ownership import appended_untold, parsed, units_out_of_sight, uses_of_tables, uses_of_topics

from core.events import Topic
from core.store.database import tables
from onward.cli import app
from onward.wiring.stages import STAGES

ROOT = Path(__file__).resolve().parent.parent
OURS = ("core", "api", "ingest", "scoring", "learner", "serving", "onward", "environments", "simulator")
OURS += ("onward_kernels",)
LIGHT = ("core", "api", "environments", "ingest", "scoring", "onward.cli", "onward.wiring")
LIGHT += ("serving.rendering", "serving.weights", "serving.releases", "serving.fleet")
LIGHT += ("serving.engines.sglang", "serving.engines.host", "serving.engines.model_facts", "serving.engines.requests")
LIGHT += ("onward.processes.runtime", "onward.processes.stages")
Trees = dict[Path, tuple[ast.AST, ...]]
FORBIDDEN_NAMES = {"utils", "common", "helpers", "util", "misc"}


@cache
def product_files() -> tuple[Path, ...]:
    folders = [ROOT / name for name in OURS if name != "onward_kernels"] + [ROOT / "kernels"]
    data = ROOT / "environments" / "tasks" / "own"  # programs that sandboxes run, and no part of the product
    found = (path for folder in folders for path in folder.rglob("*.py"))
    return tuple(sorted(path for path in found if not path.is_relative_to(data)))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[1:] if parts[0] == "kernels" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.fixture(scope="module")
def trees() -> Trees:
    """Return the nodes of each module."""
    return {path: tuple(ast.walk(parsed(path))) for path in product_files()}


def modules_of(name: str) -> list[str]:
    found = [module_name(path) for path in product_files()]
    return [module for module in found if module == name or module.startswith(name + ".")]


def test_importing_has_no_effect_and_that_of_light_parts_brings_no_tensor_library(tmp_path: Path) -> None:
    """Every module can be imported in an empty directory, prints nothing and leaves nothing behind.

    One process imports the light parts first, and stops at the first that brings such a library with it."""
    parts = {part: modules_of(part) for part in LIGHT}
    assert not [part for part, modules in parts.items() if not modules], "no modules"
    code = f"""
import gc, importlib, sys
gc.disable()  # of what is imported, nothing is garbage
for module in {[module for modules in parts.values() for module in modules if not module.endswith("__main__")]!r}:
    importlib.import_module(module)
    heavy = {{"torch", "triton", "transformers", "sglang"}} & sys.modules.keys()
    if heavy:
        sys.exit(f"{{module}} imports {{heavy}}")
for module in {[module_name(path) for path in product_files() if path.name != "__main__.py"]!r}:
    importlib.import_module(module)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert not list(tmp_path.iterdir())


def test_top_level_names_are_ours_alone() -> None:
    claimed = importlib.metadata.packages_distributions()
    for name in OURS:
        spec = importlib.util.find_spec(name)
        assert spec is not None, name
        assert spec.origin is not None, name
        assert Path(spec.origin).is_relative_to(ROOT), f"{name} resolves to {spec.origin}"
        assert set(claimed.get(name, [])) <= {"onward"}, name


def test_kernels_folder_does_not_shadow_the_package_of_that_name() -> None:
    assert not (ROOT / "kernels" / "__init__.py").exists()
    spec = importlib.util.find_spec("kernels")
    assert spec is None or spec.origin is None or not Path(spec.origin).is_relative_to(ROOT)


def test_the_mode_is_decided_in_wiring_alone() -> None:
    allowed = {"onward/wiring/foundation.py", "core/settings/__init__.py"}
    offenders = [
        str(path.relative_to(ROOT))
        for path in product_files()
        if re.search(r"\.mode\b|[\"']embedded[\"']|[\"']distributed[\"']", path.read_text())
        and str(path.relative_to(ROOT)) not in allowed
    ]
    assert not offenders


def test_sizes_stay_habitable(trees: Trees) -> None:
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in product_files()}
    assert max(lines.values()) <= 500, [name for name, count in lines.items() if count > 500]
    assert statistics.median(lines.values()) < 150
    functions = [
        (node.end_lineno - node.lineno + 1, f"{path.relative_to(ROOT)}:{node.name}")
        for path in product_files()
        for node in trees[path]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
    ]
    assert not [name for length, name in functions if length > 60]
    assert statistics.median(length for length, _ in functions) <= 15


def test_no_two_classes_have_the_same_name(trees: Trees) -> None:
    places: dict[str, list[str]] = {}
    for path in product_files():
        for node in trees[path]:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not {name: where for name, where in places.items() if len(where) > 1}


def test_no_module_is_a_drawer() -> None:
    names = {part for path in product_files() for part in path.relative_to(ROOT).with_suffix("").parts}
    assert not names & FORBIDDEN_NAMES


def test_no_error_is_swallowed_broadly_but_in_one_place(trees: Trees) -> None:
    offenders = [
        str(path.relative_to(ROOT))
        for path in product_files()
        for node in trees[path]
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or (isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")))
    ]
    assert offenders == ["core/records/handling.py"]


AWAY = {"Unavailable", "StoreUnavailable", "LogUnavailable", "Fenced"}
WAITS_ITSELF = {"onward/replays/history.py": "a command that ends when it has waited for too long"}


def test_what_is_away_is_waited_for_by_the_runner_alone(trees: Trees) -> None:
    """Stages let an outage propagate; catching it to sleep is the runner's work."""
    waiting = {
        str(path.relative_to(ROOT))
        for path in product_files()
        for node in trees[path]
        if isinstance(node, ast.ExceptHandler)
        and node.type is not None
        and AWAY & {name.id for name in ast.walk(node.type) if isinstance(name, ast.Name)}
        and calls(node) & {"sleep", "wait"}
    }
    assert {path for path in waiting if not path.startswith("core/stages/")} == set(WAITS_ITSELF)


def calls(node: ast.AST) -> set[str]:
    """Return the names of the methods that are called within `node`."""
    found = (each.func for each in ast.walk(node) if isinstance(each, ast.Call))
    return {function.attr for function in found if isinstance(function, ast.Attribute)}


_THREADS_OF_THEIR_OWN_WORK = {
    "api/http/background.py",  # gives requests their threads
    "api/requests/reader.py",  # counts what it takes by itself
    "api/access/consents/kept.py",  # these look in turns, for nobody's request
    "api/access/consents/taking_back.py",
    "api/access/quotas/months.py",
    "api/access/stored_keys.py",
    "api/access/trail.py",
}


def test_no_request_takes_a_thread_but_as_one_of_its_callers() -> None:
    """The threads are few. Where a caller's requests are not counted, hers keep everybody else's from the store."""
    taking = {
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "api").rglob("*.py"))
        if re.search(r"\b(to_thread|run_in_executor|run_in_threadpool)\(", path.read_text())
    }

    assert taking == _THREADS_OF_THEIR_OWN_WORK


def test_signals_and_renewals_are_the_runners() -> None:
    """Uvicorn's server keeps its own signal handlers and restores the previous ones.

    Two processes that are started for one piece of work, and then end, have theirs."""
    of_their_own = {"environments/cases/prepared.py", "environments/cases/rules.py"}
    sources = {
        str(path.relative_to(ROOT)): path.read_text()
        for path in product_files()
        if "simulator" not in path.parts and INSIDE not in path.parents  # others' processes, not ours
    }
    handling = {path for path, source in sources.items() if "signal.signal(" in source}
    assert handling == {"core/stages/ending.py", "onward/http/server.py"} | of_their_own
    threads = {path for path, source in sources.items() if "threading.Thread(" in source}
    outside = {path for path in threads if not path.startswith("core/stages/")}
    assert outside == set(THREADS)


INSIDE = ROOT / "environments" / "sandboxes" / "inside"
THREADS = {
    "api/live_state/redis_announcer.py": "speaks to Redis",
    "core/store/database/listening.py": "hears what the database tells",
    "environments/harness/others/relay.py": "carries bytes, inside a sandbox",
    "ingest/group_commit.py": "writes appends",
    "ingest/kafka/producer.py": "speaks to Kafka",
    "ingest/spool/spool.py": "drains a spool",
    "onward/http/metrics_server.py": "answers",
    "onward/processes/stage_alarms.py": "tells the store which stages are down",
    "onward/processes/supervisor.py": "waits for a child process",
    "onward/wiring/rollouts.py": "an event loop of episodes, with which their sandboxes die",
    "scoring/judge/stage.py": "an event loop of requests",
    "serving/engines/local/scheduler.py": "the engine",
    "serving/weights/sharing/server.py": "gives files to other hosts",
}
"""Modules that start threads of their own, each with its reason: none of them renews anything."""


def test_a_stage_has_no_loop_of_its_own(trees: Trees) -> None:
    """A stage class says what is done, but neither how often nor what happens when it fails."""
    stages = {
        f"{path.relative_to(ROOT)}:{node.name}": {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
        for path in product_files()
        for node in trees[path]
        if isinstance(node, ast.ClassDef) and any(isinstance(b, ast.Name) and b.id == "Stage" for b in node.bases)
    }
    assert len(stages) >= 11
    assert not {name for name, methods in stages.items() if methods & {"run", "step", "poll"}}
    assert not {name for name, methods in stages.items() if not methods & {"handle", "tick"}}


def test_every_stage_of_the_table_has_its_command_and_its_place_in_the_stack() -> None:
    stack = (ROOT / "docker-compose.yml").read_text()
    commands = {row.command for row in STAGES}
    in_containers = commands - {"rollouts"}  # whose sandboxes want rights that containers lack
    assert not {command for command in in_containers if f"command: [{command}, /data]" not in stack}
    known = {name for name in app if not name.startswith("-")}
    assert commands <= known


def test_who_keeps_its_offsets_in_the_store_says_so_in_the_table() -> None:
    """Retention waits for those, and the API tells how far behind they are."""
    groups = {
        importlib.import_module(module_name(path)).GROUP
        for path in product_files()
        if "core" not in path.parts and re.search(r"\bSharedRecords\(|\bof_group\(GROUP\)", path.read_text())
    }
    assert groups == {row.name for row in STAGES if row.reads is not None}


BACKTRACKING = {
    "api/turns/histories/told_conversations.py": "one of several literals, at the beginning of a line",
    "api/turns/intake.py": "fullmatch of one class, at most 64 characters",
    "api/turns/session_ids.py": "fullmatch of one class, at most 128 characters",
    "api/requests/tools.py": "fullmatch of one class, at most 64 characters",
    "core/provenance.py": "the words of a command of ours, and versions by their names",
    "core/text/edits.py": "anchored, and no two parts in a row that take the same characters without end",
    "core/settings/services/kafka.py": "fullmatch of addresses of the settings, whose parts share no character",
    "ingest/sqlite/membership.py": "names of groups, which are ours",
    "learner/sequences/resemblance.py": "one class, or one character",
    "onward/commands/dead_letters.py": "an argument of a command",
    "serving/weights/deltas/manifest.py": "names of files, which are ours",
    "serving/rendering/template.py": "one of several literals, or a mark with digits",
    "serving/engines/sglang/checksums.py": "names of weights",
    "serving/engines/sglang/generation/refusals.py": "one of several literals, in what an engine answers",
    "serving/weights/published.py": "names of files, which are ours",
}
"""Modules that use Python's own regular expressions, and why no text can hold them up."""


def test_no_backtracking_engine_meets_what_others_write(trees: Trees) -> None:
    engines = {"re", "regex", "fnmatch", "jsonschema"}
    parts = ("api", "core", "ingest", "learner", "onward", "scoring", "serving")
    using = {
        str(path.relative_to(ROOT))
        for part in parts
        for path in (ROOT / part).rglob("*.py")
        for node in trees[path]
        if (isinstance(node, ast.Import) and engines & {name.name.split(".")[0] for name in node.names})
        or (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in engines)
    }
    assert using == set(BACKTRACKING)


def owners(heading: str) -> dict[str, tuple[list[str], list[str], str]]:
    """Return (writers, readers, why more than one writes) by name, from the document's table with this heading."""
    document = (ROOT / "docs" / "architecture.md").read_text()
    rows = document.partition(f"| {heading} | written by |")[2].partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {name.strip("`"): (names_in(writers), names_in(readers), why) for name, writers, readers, why in cells}


def names_in(cell: str) -> list[str]:
    return [name.strip() for name in cell.split(",") if name.strip()]


@pytest.mark.parametrize(("heading", "uses"), [("table", uses_of_tables), ("topic", uses_of_topics)])
def test_tables_and_topics_are_written_and_read_by_whom_the_document_says(heading: str, uses: Any) -> None:
    written, read = uses()
    said = owners(heading)
    assert {name: set(writers) for name, (writers, _, _) in said.items() if writers} == written
    assert {name: set(readers) for name, (_, readers, _) in said.items() if readers} == read
    for name, (writers, readers, why) in said.items():
        assert len({*writers}) == len(writers), name
        assert len({*readers}) == len(readers), name
        assert bool(why) == (len(writers) != 1), f"{name}: why is it that not one alone writes it?"


def test_every_table_and_topic_stands_in_the_document() -> None:
    assert set(owners("table")) == set(tables.metadata.tables)
    assert set(owners("topic")) == {topic.name.lower() for topic in Topic}
    assert not units_out_of_sight()
    assert appended_untold() == {"onward/commands/dead_letters.py"}


def test_help_imports_nothing_heavy() -> None:
    heavy = ("torch", "sqlalchemy", "fastapi", "matplotlib", "pydantic", "rich.markdown")
    code = f"import sys, onward.cli\nprint([m for m in {heavy!r} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_lock_holds_the_versions_that_the_engine_pins() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    for pin in ("torch==2.14.1", "transformers==5.19.0", "tokenizers==0.23.2"):
        assert re.search(rf"^{re.escape(pin)} \\$", lock, re.MULTILINE), pin
    assert "://" not in lock
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["torch"], *extras["demo"], *extras["docs"], *extras["dev"]]
    assert {re.split(r"[\[=<>]", name)[0].lower() for name in wanted} <= {pin.split("==")[0] for pin in pins(lock)}


def pins(lock: str) -> set[str]:
    return set(re.findall(r"^([a-z0-9-]+==\S+) \\$", lock, re.MULTILINE))


def test_images_hold_what_the_tests_ran_with_and_light_ones_no_tensors() -> None:
    everything = pins((ROOT / "requirements.lock").read_text())
    light, torch = (pins((ROOT / "deploy" / name).read_text()) for name in ("light.lock", "torch.lock"))
    assert light < torch < everything
    engine = pins((ROOT / "deploy" / "sglang-cpu" / "requirements.lock").read_text())
    versions = dict(pin.split("==") for pin in torch)
    differing = {pin for pin in engine if versions.get(pin.split("==")[0], pin.split("==")[1]) != pin.split("==")[1]}
    assert not differing, "the engine's image is built on the learner's: `make lock`"
    assert not {pin.split("==")[0] for pin in light} & {"torch", "triton", "transformers", "safetensors", "matplotlib"}


@pytest.mark.parametrize("table", ["_WITH_ENGINES", "_VERIFIED", "_FIRST", "_DEEP", "_UNIT"])
def test_every_test_that_the_settings_of_tests_name_exists(table: str) -> None:
    """A renamed test would otherwise leave its place unseen, and run with those that it took too long for."""
    gone = [name for name in _names_in_conftest(table) if not _is_a_test(name)]

    assert gone == []


def _names_in_conftest(table: str) -> tuple[str, ...]:
    for node in ast.parse((ROOT / "tests" / "conftest.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == table:
            names: tuple[str, ...] = ast.literal_eval(node.value)
            return names
    raise LookupError(table)


def _is_a_test(name: str) -> bool:
    """Return whether a name begins that of a test: `folder/`, `file.py`, or `file.py::test_that[case`."""
    path, _, function = name.partition("::")
    if path == "engines":
        return True  # the group of tests with SGLang servers
    file = ROOT / path
    return file.exists() and (not function or f"def {function.partition('[')[0]}" in file.read_text())


def test_no_test_bounds_a_measured_time_but_those_that_run_alone() -> None:
    assert upper_bounds_in(ROOT / "tests") == []


@pytest.mark.parametrize(
    ("lines", "is_bound"),
    [
        ("began = time.process_time(); work(); assert time.process_time() - began < 10", True),
        ("began = perf_counter_ns(); took = perf_counter_ns() - began; assert 10 >= max(took, 1)", True),
        ("began = time.time(); took.append((1, time.time() - began)); assert took[0] == pytest.approx(2)", True),
        ("until = time.monotonic() + 2; work(); assert time.monotonic() < until", True),
        ("began = time.monotonic(); assert left > 20 - (time.monotonic() - began)", False),
        ("began = time.monotonic(); assert time.monotonic() - began >= 0.3", False),
    ],
)
def test_a_bound_is_found_whichever_way_it_is_written(lines: str, is_bound: bool) -> None:
    head = "from time import perf_counter_ns\n"
    assert bool(upper_bounds(f"{head}def test_it():\n    {lines}")) is is_bound
    assert not upper_bounds(f"{head}@pytest.mark.timed\ndef test_it():\n    {lines}")
    assert not upper_bounds("def wait():\n    while not done():\n        assert time.monotonic() < until_s")
