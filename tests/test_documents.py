"""The documents agree with the code."""

import ast
import inspect
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel
from shown_examples import NOT_RUN, RUN, examples

from core import errors, reward_spec, telemetry
from core.errors import RequestError
from core.grammars.library import TOO_COMPLEX
from core.operations.fleet import OrderKind
from core.settings import ApiKey, NamespaceSettings, Settings, TaskSetSettings, WorkloadSettings, load_settings
from serving.engines.sglang.swap import table

ROOT = Path(__file__).resolve().parent.parent


def sections(model: type[BaseModel], above: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield every section with its path."""
    for name, field in model.model_fields.items():
        if isinstance(field.default, BaseModel):
            yield f"{above}{name}", type(field.default)
            yield from sections(type(field.default), f"{above}{name}.")


TABLES: dict[str, type[BaseModel]] = {
    **{f"`[{path}]`": section for path, section in sections(Settings)},
    "`[[api.keys]]`": ApiKey,
    "`[api.namespaces.NAME]`": NamespaceSettings,
    "`[api.workloads.NAME]`": WorkloadSettings,
    "`[rollouts.task_sets.NAME]`": TaskSetSettings,
    "The whole file": Settings,
}


@pytest.mark.parametrize("heading", TABLES)
def test_every_setting_is_documented_in_its_section(heading: str) -> None:
    """The section documents nothing else."""
    text = (ROOT / "docs" / "settings.md").read_text()
    section = text.split(f"\n## {heading}\n")[1].split("\n#")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == sorted(TABLES[heading].model_fields)


def test_every_entry_of_a_reward_spec_is_documented() -> None:
    text = (ROOT / "docs" / "settings.md").read_text()
    models = [
        model
        for _, model in inspect.getmembers(reward_spec, inspect.isclass)
        if issubclass(model, BaseModel) and model.__module__.startswith("core.reward_spec")
    ]
    assert not [
        f"{model.__name__}.{field}" for model in models for field in model.model_fields if f"`{field}`" not in text
    ]


def test_the_settings_that_documents_show_are_settings(tmp_path: Path) -> None:
    shown = 0
    for document in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for number, block in enumerate(re.findall(r"```toml\n(.*?)```", document.read_text(), re.DOTALL)):
            if tomllib.loads(block).keys() <= Settings.model_fields.keys():
                file = tmp_path / f"{document.stem}-{number}.toml"
                file.write_text(block)
                load_settings(file, {})
                shown += 1
    assert shown > 5


def test_every_metric_is_documented() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    names = {metric.name for metric in telemetry.REGISTRY.collect()}
    assert not {name for name in names if f"`{name}" not in text}


def test_the_readme_names_every_folder_and_command() -> None:
    text = (ROOT / "README.md").read_text()
    folders = ("core", "api", "ingest", "scoring", "learner", "serving", "kernels", "onward", "simulator", "models")
    assert not [folder for folder in folders if f"{folder}/" not in text]
    assert "make demo" in text
    assert "make test" in text


def test_documents_link_to_what_exists() -> None:
    broken = []
    for document in [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text()):
            if not (document.parent / target).exists():
                broken.append(f"{document.relative_to(ROOT)}: {target}")
    assert not broken


def test_the_paths_that_documents_name_exist() -> None:
    """Paths in backticks, outside of blocks of code, that begin with a folder of ours, exist."""
    ours = {path.name for path in ROOT.iterdir() if path.is_dir()}
    missing, named = [], 0
    for document in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        prose = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
        for path in re.findall(r"`(\w+/[\w./-]*)`", prose):
            if path.split("/")[0] in ours and not path.startswith(MADE):
                named += 1
                missing += [] if (ROOT / path).exists() else [f"{document.relative_to(ROOT)}: {path}"]
    assert not missing
    assert named > 100


MADE = ("bench/results/", "build/", "data/", "demo/", "models/smollm2")
"""Folders that commands fill."""


def test_the_glossary_has_each_term_once_in_the_order_of_the_alphabet() -> None:
    rows = (ROOT / "docs" / "glossary.md").read_text().partition("|---|---|\n")[2].splitlines()
    terms = [row.split("|")[1].strip().lower() for row in rows]
    assert terms == sorted(set(terms))


def test_the_swap_is_described_as_it_is() -> None:
    assert table() in (ROOT / "docs" / "architecture.md").read_text()


def test_every_example_is_run_by_a_test_or_says_why_not() -> None:
    """`shown_examples` lists them; each entry is of one example, and each test that it names is there and reads it."""
    listed = {page: {**RUN.get(page, {}), **NOT_RUN.get(page, {})} for page in RUN.keys() | NOT_RUN.keys()}
    assert sum(map(len, listed.values())) == sum(map(len, RUN.values())) + sum(map(len, NOT_RUN.values())), "twice"
    unlisted = [
        f"{each.page}: {each.text.splitlines()[0]}"
        for each in examples()
        if sum(map(each.text.startswith, listed.get(each.page, {}))) != 1
    ]
    assert not unlisted
    assert len(examples()) == sum(map(len, listed.values())), "an entry is of no example"
    assert not [each.page for each in examples() if not each.language], "say the language of a block of commands: sh"
    for test in {test for tests in RUN.values() for test in tests.values()}:
        path, _, name = test.partition("::")
        source = (ROOT / path).read_text()
        assert f"def {name}(" in source, test
        for page in (page for page, tests in RUN.items() if test in tests.values()):
            assert page.rpartition("/")[2] in source, f"{test} does not name {page}"
    reasons = " ".join(why for page in NOT_RUN.values() for why in page.values())
    tests = {each.rstrip(".:") for each in re.findall(r"tests/[\w/.]+", reasons)}
    assert [each for each in sorted(tests) if not (ROOT / each).exists()] == [], "what a reason names is there"


def test_every_example_for_a_shell_is_one() -> None:
    """Also those that nothing runs: a shell reads each, and stops at what is none of its language."""
    shown = [each for each in examples() if each.language == "sh"]
    assert len(shown) > 40
    for each in shown:
        read = subprocess.run(["bash", "-n"], input=each.text, capture_output=True, text=True, check=False)
        assert (read.returncode, read.stderr) == (0, ""), f"{each.page}: {each.text}"


def test_every_refusal_has_its_next_step() -> None:
    """The page has each code that a refusal may have, once, with words on what to do, and no other; none is without."""
    rows = re.findall(
        r"^\| (`\w+`(?:, `\w+`)*) \| [^|]+ \| [^|\s]+ [^|]+ \|$", (ROOT / "docs" / "refusals.md").read_text(), re.M
    )
    told = [code for row in rows for code in re.findall(r"`(\w+)`", row)]
    kinds = {f"{kind}_refused" for kind in get_args(OrderKind)}
    refusals = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, RequestError)]
    given = {kind: inspect.signature(kind).parameters["code"].default for kind in refusals}
    usual = {code for code in given.values() if code is not inspect.Parameter.empty}
    assert all(isinstance(code, str) and code for code in usual), given
    assert sorted(told) == sorted(codes_of_refusals() | usual | kinds | {TOO_COMPLEX, *OF_LIMITS})


OF_LIMITS = ("rate_limit_exceeded", "insufficient_quota")


def codes_of_refusals() -> set[str]:
    """Return what the code names as `code`, or ends a connection with."""
    found = set()
    for path in (path for folder in ("api", "core", "learner", "serving") for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            values = [each.value for each in node.keywords if each.arg == "code"]
            if isinstance(node.func, ast.Attribute) and node.func.attr == "_end" and len(node.args) == 4:
                values.append(node.args[2])
            constants = [part for value in values if not isinstance(value, ast.JoinedStr) for part in ast.walk(value)]
            found |= {
                part.value for part in constants if isinstance(part, ast.Constant) and isinstance(part.value, str)
            }
    return found
