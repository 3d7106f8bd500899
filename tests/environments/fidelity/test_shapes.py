"""Shapes: the same for two outputs of one format, and another for another format."""

import pytest

from environments.fidelity.shapes import shape_of


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1\tdef add():\n2\t    pass", "1\tclass Sum:\n2\t    x = 1\n3\t# more"),
        ("src/a.py:12:def a", "lib/b/c.py:7:x = 3"),
        ("12 passed in 0.31s", "3 passed in 12.02s"),
        ('{"exit_code": 0, "files": ["a"]}', '{"files": ["b", "c"], "exit_code": 1}'),
        ("exit code 0\n1 2 3\n", "exit code 127\n4 5 6\n"),
    ],
)
def test_one_format_has_one_shape(one: str, other: str) -> None:
    assert shape_of(one) == shape_of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1\tdef add():\n2\t    pass", "1: def add():\n2:     pass"),
        ("src/a.py:12:def a", "12-def a"),
        ("12 passed", "12 passed\n"),
        ("exit code 0\nok", '{"exit_code": 0, "output": "ok"}'),
        ('{"exit_code": 0}', '{"exit_code": "0"}'),
        ('{"a": 1}', '{"b": 1}'),
        ("one line", "one line\n\n[... 12 characters left out ...]\nthe end"),
    ],
)
def test_another_format_has_another_shape(one: str, other: str) -> None:
    assert shape_of(one) != shape_of(other)
