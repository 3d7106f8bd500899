"""Sizes and variables in a task's settings."""

import pytest

from environments.tasks.harbor.values import filled, megabytes


@pytest.mark.parametrize(
    ("size", "expected"), [("2G", 2048), ("512M", 512), ("1.5g", 1536), ("2048K", 2), ("1GB", 1024)]
)
def test_sizes(size: str, expected: int) -> None:
    assert megabytes(size) == expected


@pytest.mark.parametrize("size", ["", "2", "2T", "-1G", "G"])
def test_what_is_no_size(size: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        megabytes(size)


def test_variables_are_those_that_are_lent() -> None:
    assert filled("a ${X} ${Y:-else} $Z", {"X": "1"}) == "a 1 else $Z"
    assert filled("${Y:-}", {}) == ""
    with pytest.raises(ValueError, match="the variable Y is not lent"):
        filled("${Y}", {"X": "1"})
