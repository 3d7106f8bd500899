"""Case files and checkers: errors in a file name their place, and no answer breaks a checker."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from core.errors import ConfigError
from learner.sequences.resemblance import Solutions
from serving.evals.cases import Quality, TaskCase, load_suite
from serving.evals.checkers import Checker, Command

GOOD = """
[[case]]
name = "sum"
prompt = "Add 2 and 3."
checker = { kind = "exact", text = "5" }

[[case]]
name = "json"
group = "formats"
weight = 2.5
temperature = 0.5
seed = 7
max_tokens = 64
messages = [{ role = "system", content = "Answer in JSON." }, { role = "user", content = "Who are you?" }]
checker = { kind = "json_schema", of = { type = "object", required = ["name"] } }
solution = '{"name": "Onward"}'
"""


CHECKERS = TypeAdapter[Checker](Checker)


def checker(**entries: object) -> Checker:
    return CHECKERS.validate_python(entries)


def holds(answer: str, **entries: object) -> bool:
    found = checker(**entries)
    assert not isinstance(found, Command)
    return found.holds(answer)


def test_a_suite_is_all_files_below_its_directory(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "b.toml").write_text(GOOD.replace('"sum"', '"sum again"').replace('"json"', '"json again"', 1))
    (tmp_path / "a.toml").write_text(GOOD)
    (tmp_path / "notes.md").write_text("not a case")
    suite = load_suite(tmp_path)
    assert [case.name for case in suite.cases] == ["sum", "json", "sum again", "json again"]
    assert suite.cases[0].request() == [{"role": "user", "content": "Add 2 and 3."}]
    assert [message["role"] for message in suite.cases[1].request()] == ["system", "user"]
    assert suite.solutions() == dict.fromkeys(("json", "json again"), '{"name": "Onward"}')
    assert suite.directories["sum again"] == tmp_path / "more"


def test_the_digest_is_of_what_the_cases_say_and_not_of_their_files(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(GOOD)
    first = load_suite(tmp_path).digest
    for said, otherwise in (("sum", "sums"), ("Answer in", "Say"), ("2.5", "2.0"), ("Onward", "x"), ('["name"]', "[]")):
        path.write_text(GOOD.replace(said, otherwise))
        assert load_suite(tmp_path).digest != first, said
    begin, one, other = GOOD.split("[[case]]")
    path.write_text(f"{begin}# in another order\n[[case]]{other}\n[[case]]{one}")
    assert load_suite(tmp_path).digest == first
    path.write_text(f"[[case]]{one}weight = 1.0\n")
    (tmp_path / "b.toml").write_text(f"[[case]]{other}")
    assert load_suite(tmp_path).digest == first


TASK = '[[case]]\nname = "add"\ntask = "tasks/add"\nquality = { duplicates = true }\n'


def with_task(directory: Path) -> Path:
    """Write a suite of a case and a task, and return the task's folder."""
    task = directory / "tasks" / "add"
    for name, content in {
        "task.toml": 'schema_version = "1.4"\n',
        "instruction.md": "Repair add.",
        "tests/test.sh": "#!/bin/sh\n",
        "solution/solve.sh": "#!/bin/sh\ncp /solution/add.py .\n",
        "solution/add.py": "def add(one, other):\n    return one + other\n",
        "solution/empty.txt": "\n",
    }.items():
        (task / name).parent.mkdir(parents=True, exist_ok=True)
        (task / name).write_text(content)
    (task / "solution" / "picture").write_bytes(b"\xff\xfe")
    (directory / "a.toml").write_text(GOOD + TASK)
    return task


def test_a_task_is_a_case_whose_files_are_of_the_suite(tmp_path: Path) -> None:
    task = with_task(tmp_path)
    suite = load_suite(tmp_path)
    case = suite.cases[-1]
    assert isinstance(case, TaskCase)
    assert (case.at_least, case.tool_set, case.budget.calls, case.quality) == (
        1.0,
        "usual",
        100,
        Quality(duplicates=True),
    )
    assert suite.tasks == {"add": task}
    of_task = {name: text for name, text in suite.solutions().items() if name.startswith("add: ")}
    assert of_task.keys() == {"add: solution/solve.sh", "add: solution/add.py"}
    assert "return one + other" in of_task["add: solution/add.py"]
    for name, target in (("folder", "../tests"), ("nothing", "gone"), ("itself", "itself")):
        (task / "solution" / name).symlink_to(target)
    assert load_suite(tmp_path).solutions() == suite.solutions(), "links to no file have no text"
    (task / "tests" / "test.sh").write_text("#!/bin/sh\nexit 1\n")
    assert load_suite(tmp_path).digest != suite.digest


def test_a_tasks_files_that_cannot_be_taken_are_named(tmp_path: Path) -> None:
    task = with_task(tmp_path)
    link, long = task / "solution" / "zero", task / "solution" / "long.txt"
    link.symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match=r"solution/zero: the link leads out of the task's folder"):
        load_suite(tmp_path).solutions()
    link.unlink()
    long.write_bytes(b"many words " * 500_000)
    with pytest.raises(ConfigError, match=r"add/solution: its texts have more than 4 MiB"):
        load_suite(tmp_path).solutions()
    long.write_bytes(b"\xff" + b"no text " * 700_000)
    assert "add: solution/long.txt" not in load_suite(tmp_path).solutions()
    os.mkdir(os.fsencode(task) + b"/environment")
    Path(os.fsdecode(os.fsencode(task) + b"/environment/\xff")).touch()
    with pytest.raises(ConfigError, match=r"environment/\\xff': its name is no UTF-8"):
        load_suite(tmp_path)


def test_what_resembles_a_tasks_solution_is_known(tmp_path: Path) -> None:
    with_task(tmp_path)
    (tmp_path / "tasks/add/solution/add.py").write_text("def total(xs):\n    return sum(x * x for x in xs if x > 0)\n")
    solutions = Solutions(load_suite(tmp_path).solutions())
    assert solutions.resembled_by("def sum_of(xs):\n    return sum(x * x for x in xs if x > 0)") is not None
    assert solutions.resembled_by("def other(ys):\n    return max(ys)") is None


def test_a_task_that_nobody_would_be_asked_is_refused(tmp_path: Path) -> None:
    with_task(tmp_path)
    (tmp_path / "a.toml").write_text(GOOD)
    with pytest.raises(ConfigError, match=r"tasks/add: it is a task, and no case of the suite names it"):
        load_suite(tmp_path)


SUM = '[[case]]\nname = "sum"\nprompt = "?"\n'
EXACT = 'checker = { kind = "exact", text = "5" }\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "case: Field required"),
        (TASK, r"case 'add': task: .*/tasks/add has no task\.toml"),
        (TASK.replace("name", "nome"), "case 1: name: Field required"),
        (TASK + 'prompt = "?"', "case 'add': prompt: Extra inputs"),
        (TASK + "at_least = 0", "case 'add': at_least: .* greater than 0"),
        (TASK + "budget = { call = 3 }", "case 'add': budget.call: Extra inputs"),
        (TASK + 'tool_set = "all"', "case 'add': tool_set"),
        (TASK.replace("duplicates = true", ""), "case 'add': quality: duplicates, most_added_lines: want one of them"),
        ("[[case]", "a.toml: Expected"),
        ("case = []", "case: there is none"),
        ("case = 3", "case: Input should be a valid tuple"),
        ("case = [3]", "case 1: Input should be a valid dictionary"),
        (SUM, "case 'sum': checker: Field required"),
        (SUM + 'checker = { kind = "vibes" }', "case 'sum': checker: Input tag 'vibes' .* does not match"),
        (SUM + 'checker = { kind = "exact" }', "case 'sum': checker.exact.text: Field required"),
        (SUM + EXACT + "wieght = 2", "case 'sum': wieght: Extra inputs"),
        (SUM + EXACT + "weight = 0", "case 'sum': weight: .* greater than 0"),
        (SUM + EXACT + "weight = inf", "case 'sum': weight"),
        (SUM + EXACT + "weight = nan", "case 'sum': weight"),
        (SUM + EXACT + "max_tokens = 0", "case 'sum': max_tokens"),
        (SUM + EXACT + 'solution = ""', "case 'sum': solution"),
        (SUM + EXACT + 'messages = [{ role = "user", content = "?" }]', "case 'sum': prompt, messages: want one"),
        ('[[case]]\nname = "sum"\n' + EXACT, "case 'sum': prompt, messages: want one of them"),
        ('[[case]]\nprompt = "?"\n' + EXACT, "case 1: name: Field required"),
        (SUM + EXACT + SUM + EXACT, "case 'sum': name: 2 cases have it"),
        (SUM + 'checker = { kind = "regex", pattern = "(" }', "checker.regex.pattern: no regular expression: missing"),
        (SUM + 'checker = { kind = "contains" }', "checker.contains: all, none: want one"),
        (SUM + 'checker = { kind = "contains", all = [""] }', "an empty text stands in every answer"),
        (SUM + 'checker = { kind = "command", argv = [] }', "checker.command.argv"),
        (SUM + 'checker = { kind = "json_schema", of = { type = "thing" } }', r"no JSON schema: \$.type: 'thing'"),
        (SUM + 'checker = { kind = "json_schema", of = { "$ref" = "#/a" } }', "no JSON schema: #/a is not in it"),
        (SUM + 'checker = { kind = "json_schema", of = { "$ref" = "https://a.b/c" } }', "c is not in it"),
        (SUM + 'checker = { kind = "json_schema", of = { pattern = "(" } }', "no JSON schema"),
    ],
)
def test_mistakes_are_told_with_file_case_and_field(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(ConfigError, match=rf"a\.toml: .*{said}" if "a.toml" not in said else said):
        load_suite(tmp_path)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no case files \(\*\.toml\)"):
        load_suite(tmp_path / "nowhere")
    (tmp_path / "a.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"a\.toml: no UTF-8"):
        load_suite(tmp_path)


@pytest.mark.parametrize(
    ("answer", "right", "entries"),
    [
        (" 5\n", True, {"kind": "exact", "text": "5"}),
        ("5.", False, {"kind": "exact", "text": "5"}),
        ("YES", False, {"kind": "exact", "text": "yes"}),
        ("YES", True, {"kind": "exact", "text": "yes", "ignore_case": True}),
        ("def f(): sum(x)", True, {"kind": "contains", "all": ["def ", "sum("], "none": ["eval("]}),
        ("def f(): eval(sum(x))", False, {"kind": "contains", "all": ["def ", "sum("], "none": ["eval("]}),
        ("def f()", False, {"kind": "contains", "all": ["def ", "sum("]}),
        ("", True, {"kind": "contains", "none": ["sorry"]}),
        ("Sorry!", False, {"kind": "contains", "none": ["sorry"], "ignore_case": True}),
        ("the 12th", True, {"kind": "regex", "pattern": r"\d+"}),
        ("the 12th", False, {"kind": "regex", "pattern": r"\d+", "whole": True}),
        (" 12 ", True, {"kind": "regex", "pattern": r"\d+", "whole": True}),
        ('{"name": 1}', True, {"kind": "json_schema", "of": {"required": ["name"]}}),
        ("{}", False, {"kind": "json_schema", "of": {"required": ["name"]}}),
        ('```json\n{"name": 1}\n```', False, {"kind": "json_schema", "of": {"required": ["name"]}}),
        ("NaN", False, {"kind": "json_schema", "of": {}}),
        ("[" * 100_000, False, {"kind": "json_schema", "of": {}}),
        ("[" * 500 + "]" * 500, False, {"kind": "json_schema", "of": {"type": "array", "items": {"$ref": "#"}}}),
        ("1" * 10_000, False, {"kind": "json_schema", "of": {}}),
        ("1e999", False, {"kind": "json_schema", "of": {"multipleOf": 0.1}}),
        ("1" + "0" * 400, True, {"kind": "json_schema", "of": {"multipleOf": 0.1}}),
    ],
)
def test_what_checkers_take_for_right(answer: str, right: bool, entries: dict[str, object]) -> None:
    assert holds(answer, **entries) == right


ANY_SCHEMA = {
    "type": ["object", "array", "number", "string"],
    "items": {"$ref": "#"},
    "additionalProperties": {"$ref": "#"},
    "uniqueItems": True,
    "multipleOf": 0.1,
    "pattern": "^a*$",
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@settings(deadline=None)
@given(answer=st.text() | JSON.map(json.dumps))
def test_no_answer_breaks_a_checker(answer: str) -> None:
    holds(answer, kind="json_schema", of=ANY_SCHEMA)
    holds(answer, kind="regex", pattern="a")
    assert holds(answer, kind="exact", text=answer)
    assert holds(answer, kind="contains", all=[answer]) if answer else not holds(answer, kind="contains", all=["a"])


def test_a_command_finds_what_is_beside_its_case() -> None:
    found = checker(kind="command", argv=["python3", "./check.py", "../x", "--strict"])
    assert isinstance(found, Command)
    assert found.within(Path("/suite")) == ["python3", "/suite/check.py", "../x", "--strict"]
    with pytest.raises(ValidationError):
        checker(kind="command", argv=["true"], timeout_s=0)
