"""Edit distances, diffs and line counts agree with plain definitions of them."""

import difflib

import pytest
from counted_steps import steps_of
from hypothesis import assume, given
from hypothesis import strategies as st

from core.text.edits import LONGEST, edit_distance, likeness, patched, share_left, text_of_call

TEXT = st.text("ab\n ", max_size=24)
LINES = st.lists(st.text("ab-+ @\\", max_size=4), max_size=8).map("\n".join)


def plain_distance(a: str, b: str) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


@given(a=TEXT, b=TEXT)
def test_the_distance_is_levenshteins(a: str, b: str) -> None:
    assert edit_distance(a, b) == plain_distance(a, b) / max(len(a), len(b), 1)
    assert edit_distance(a, b) == edit_distance(b, a)


def plain_common(a: str, b: str) -> int:
    """Return the length of the longest common subsequence."""
    row = [0] * (len(b) + 1)
    for x in a:
        before = 0
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], before + 1 if x == y else max(row[j], row[j - 1])
    return row[-1]


@given(a=TEXT, b=TEXT, least=st.floats(0.01, 1))
def test_likeness_is_the_share_in_common(a: str, b: str, least: float) -> None:
    share = 2 * plain_common(a, b) / (len(a) + len(b)) if a or b else 1.0
    assume(abs(share - least) > 1e-9)
    assert likeness(a, b, least) == pytest.approx(share if share >= least else 0.0)


@pytest.mark.parametrize(("a", "b", "expected"), [("", "", 0), ("abc", "", 1), ("abc", "abd", 1 / 3), ("x", "y", 1)])
def test_it_is_a_share(a: str, b: str, expected: float) -> None:
    assert edit_distance(a, b) == expected


def test_the_longest_texts_are_compared_in_a_step_of_the_library() -> None:
    a, b = "ab" * (LONGEST // 2), "ba" * (LONGEST // 2)
    assert steps_of(lambda: edit_distance(a, b)) == steps_of(lambda: edit_distance("a", "b"))
    assert edit_distance(a, b) == 2 / LONGEST


@given(a=LINES, b=LINES, context=st.integers(0, 3))
def test_a_diff_gives_the_other_text(a: str, b: str, context: int) -> None:
    diff = "\n".join(difflib.unified_diff(a.split("\n"), b.split("\n"), "a", "b", lineterm="", n=context))
    if diff:
        assert patched(a, diff) == b


@pytest.mark.parametrize(
    ("diff", "why"),
    [
        ("", "no hunks"),
        ("-a\n+b", "no hunks"),
        ("@@ -1,2 +1,2 @@\n a\n-x\n+y", "line 3: it is not what line 2"),
        ("@@ -9 +9 @@\n-a\n+b", "no line 9"),
        ("@@ -1,2 +1,2 @@\n a", "ends too soon"),
        ("@@ -1 +1 @@\n-a\n+b\n@@ -1 +1 @@\n-a\n+c", "no line 1"),
        ("@@ -1 +1 @@\n+c\n+d\n-a", "more lines are added"),
        ("@@ -1 +1 @@\n*a", "begins with neither"),
    ],
)
def test_a_diff_that_does_not_fit_says_where(diff: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        patched("a\nb\nc", diff)


def test_what_git_says_besides_is_passed() -> None:
    diff = "diff --git a/f b/f\nindex 1..2 100644\n--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@ def f\n a\n-b\n+c\n\\ No newline\n"
    assert patched("a\nb", diff) == "a\nc"


def test_lines_are_left_wherever_they_are() -> None:
    assert share_left("a\n  b\n\nc", "x\n   b\n12: c\n") == pytest.approx(2 / 3)
    assert share_left(" \n", "x") is None


@pytest.mark.parametrize(("arguments", "text"), [('{"new_text": "x"}', "x"), ("{", None), ("[]", None), ("{}", None)])
def test_a_call_says_what_it_writes(arguments: str, text: str | None) -> None:
    assert text_of_call(arguments) == text
