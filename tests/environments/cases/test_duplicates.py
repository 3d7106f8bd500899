"""Code that says again what was there is found under other names, and what calls the helper is not."""

import pytest

from environments.cases.duplicates import duplicates

HELPER = '''\
def clamp(value, low=0, high=100):
    """Keep a value within bounds."""
    if value < low:
        return low  # too small
    if value > high:
        return high
    return value
'''
COPY = """\
def within(number, least=0, most=100):
    if number < least:
        return least
    if number > most:
        return most
    return number
"""
CALLS = "def within(number):\n    return [clamp(each) for each in number if each is not None]\n"
LONG = """\
def report(rows, out):
    total = 0
    for row in rows:
        out.write(row.name)
        out.write(str(row.size))
        total += row.size
    out.write(str(total))
    return total
"""
LONG_TOO = LONG.replace("report", "listing").replace("rows", "lines").replace("total", "sum_of") + "    # done\n"
SPAN = """\
def span(box, low):
    if box.low < low:
        return box.low
    return low


def least(xs):
    return min(xs)
"""
BEFORE = {"pkg/bounds.py": HELPER, "pkg/report.py": LONG, "pkg/span.py": SPAN}


def found(**after: str) -> list[str]:
    names = {"report": "pkg/report.py", "bounds": "pkg/bounds.py", "new": "pkg/new.py", "test": "tests/test_new.py"}
    return duplicates(BEFORE, BEFORE | {names[name]: text for name, text in after.items()})


@pytest.mark.parametrize(
    ("copy", "original"),
    [
        (COPY, "pkg/bounds.py:1 (clamp)"),
        (COPY.replace("def within(", "def within(self, ").replace("number", "self_"), "pkg/bounds.py:1 (clamp)"),
        (LONG_TOO, "pkg/report.py:1 (report)"),
        (LONG_TOO.replace("str(sum_of)", "repr(sum_of)"), "pkg/report.py:1 (report)"),
        ("class Bounds:\n" + "".join(f"    {line}\n" for line in COPY.splitlines()), "pkg/bounds.py:1 (clamp)"),
    ],
    ids=["renamed", "another parameter", "long", "nearly the same", "as a method"],
)
def test_a_copy_is_named_with_both_places(copy: str, original: str) -> None:
    (told,) = found(new=copy)
    assert told.startswith("pkg/new.py:")
    assert told.endswith(f" says again what {original} says")


def test_a_stub_that_is_filled_with_a_copy_is_one() -> None:
    stub = {"pkg/new.py": "def within(number, least, most):\n    raise NotImplementedError\n"}
    (told,) = duplicates(BEFORE | stub, BEFORE | {"pkg/new.py": COPY})
    assert told == "pkg/new.py:1 (within) says again what pkg/bounds.py:1 (clamp) says"


@pytest.mark.parametrize(
    "after",
    [
        {"new": CALLS},
        {"new": COPY.replace("number < least", "number.size < least")},
        {"new": "def low(value):\n    return min(value)\n"},
        {"new": SPAN.split("\n\n\n")[0].replace("low", "high")},
        {"test": COPY},
        {"new": HELPER, "bounds": "from pkg.new import clamp\n"},
        {"new": HELPER.replace("clamp", "within"), "bounds": "def clamp(value):\n    return within(value)\n"},
        {"new": LONG.replace("out.write", "log.info")},
    ],
    ids=[
        "calls it",
        "another thing in short",
        "too short",
        "other attributes",
        "a test",
        "moved",
        "drawn out",
        "calls other things",
    ],
)
def test_what_is_no_copy_is_none(after: dict[str, str]) -> None:
    assert found(**after) == []


@pytest.mark.parametrize(
    ("after", "copies"),
    [
        ({"pkg/a.py": None, "pkg/c.py": LONG}, 0),
        ({"pkg/a.py": LONG.replace("report", "written")}, 0),
        ({"pkg/a.py": "def report(rows, out):\n    return write(rows, out)\n", "pkg/c.py": LONG}, 0),
        ({"pkg/a.py": None, "pkg/c.py": LONG + "\n\n" + LONG.replace("report", "again")}, 1),
    ],
    ids=["to another file", "renamed", "drawn out", "moved, and once more"],
)
def test_code_that_moves_is_no_copy_of_what_it_was_a_copy_of_before(after: dict[str, str | None], copies: int) -> None:
    before = {"pkg/a.py": LONG, "pkg/b.py": LONG}
    now = {path: text for path, text in (before | after).items() if text is not None}
    assert len(duplicates(before, now)) == copies


def test_names_are_found_however_deep_they_are_bound() -> None:
    deep = "(" * 3000 + "x" + ")" * 3000
    assert duplicates({}, {"deep.py": f"def f():\n    {deep} = 1\n"}) == []


def test_what_was_alike_before_the_work_is_not_the_works_fault() -> None:
    before = BEFORE | {"pkg/old.py": LONG_TOO}
    assert duplicates(before, before | {"pkg/old.py": LONG_TOO.replace("out.write(str", "out.write(repr", 1)}) == []
