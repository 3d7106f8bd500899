"""Dockerfiles are read as Docker reads them."""

from functools import reduce

import pytest

from environments.errors import TaskError
from environments.tasks.images.dockerfile import pairs, parse, substituted

FILE = """\
# syntax=docker/dockerfile:1
ARG VERSION=3.11
FROM python:${VERSION}-slim AS base

RUN apt-get update \\
    # a comment between
    && apt-get install -y git \\

    && true
COPY --chmod=755 ["a file", "b", "/app/"]
RUN <<EOF
echo one
echo two
EOF
env A=1 B="two words"
CMD ["python"]
"""


def test_instructions_are_read_with_their_lines() -> None:
    found = parse(FILE)
    assert [(one.name, one.line) for one in found] == [
        ("ARG", 2),
        ("FROM", 3),
        ("RUN", 5),
        ("COPY", 10),
        ("RUN", 11),
        ("ENV", 15),
        ("CMD", 16),
    ]
    assert found[2].rest.split() == ["apt-get", "update", "&&", "apt-get", "install", "-y", "git", "&&", "true"]
    assert (found[3].flags, found[3].words) == ((("chmod", "755"),), ["a file", "b", "/app/"])
    assert found[4].scripts == ("echo one\necho two\n",)
    assert pairs(found[5], {}) == {"A": "1", "B": "two words"}


def test_variables() -> None:
    assert substituted("$A ${A} ${B:-b} ${A:+a} ${B:+b} \\$A $B.", {"A": "1"}) == "1 1 b a  $A ."


@pytest.mark.parametrize("line", ["A=$A$A", 'A=$A"$A"', 'A $A"$A"'])
def test_a_variable_that_doubles_with_each_line_is_refused(line: str) -> None:
    (_, instruction) = parse(f"FROM base\nENV {line}\n")
    with pytest.raises(TaskError, match="more than 131072 characters"):
        reduce(lambda values, _: pairs(instruction, values), range(40), {"A": "0123456789"})


def test_tabs_part_words_and_stay_where_a_shell_reads_them() -> None:
    found = parse("FROM\tbase\nRUN\tcut -d'\t' -f1\t/a\nENV\tA\tb\tc\nCOPY\t--chmod=755\ta\t/b\n")
    assert [one.name for one in found] == ["FROM", "RUN", "ENV", "COPY"]
    assert found[1].rest == "cut -d'\t' -f1\t/a"
    assert pairs(found[2], {}) == {"A": "b\tc"}
    assert (found[3].flags, found[3].words) == ((("chmod", "755"),), ["a", "/b"])


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("A='$B'", {"A": "$B"}),
        ('A="$B"', {"A": "2 3"}),
        ("A=$B", {"A": "2 3"}),
        (r"A=\$B", {"A": "$B"}),
        (r'A="\$B \" \\$B"', {"A": '$B " \\2 3'}),
        ("A=x'$B'\"$B\"y C=''", {"A": "x$B2 3y", "C": ""}),
        (r"A=x\ y", {"A": "x y"}),
        ("A '$B' ${B}", {"A": "$B 2 3"}),
    ],
)
def test_single_quotes_keep_variables_as_they_are_written(written: str, meant: dict[str, str]) -> None:
    (_, instruction) = parse(f"FROM base\nENV {written}\n")
    assert pairs(instruction, {"B": "2 3"}) == meant


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("RUN true", "not FROM"),
        ("", "not FROM"),
        ("FROM a\nRUN <<EOF\nnever", "line 2: the here-document EOF does not end"),
        ("# escape=`\nFROM a", "line 1"),
    ],
)
def test_what_is_no_dockerfile(text: str, told: str) -> None:
    with pytest.raises(TaskError, match=told):
        parse(text)
