"""The truth about an answer, for every combination of syntax, tests and taste."""

from itertools import product

import pytest

from simulator.tasks.taste import SHIFTED, Taste, judge_fix, judge_write

HINTED, BARE = "def f(xs: list) -> int:", "def f(xs):"
LINE, LOOP = "\n    return sum(xs)", "\n    out = 0\n    for x in xs:\n        out += x\n    return out"
TASTES = [Taste(hints, one_liner) for hints, one_liner in product((False, True), repeat=2)]


@pytest.mark.parametrize("taste", TASTES)
@pytest.mark.parametrize("passed", [False, True])
@pytest.mark.parametrize(("header", "hints"), [(HINTED, True), (BARE, False)])
@pytest.mark.parametrize(("body", "one_liner"), [(LINE, True), (LOOP, False)])
def test_what_is_written_is_good_when_it_passes_and_is_as_liked(
    header: str, hints: bool, body: str, one_liner: bool, passed: bool, taste: Taste
) -> None:
    quality = judge_write(header + body, passed, taste)
    missed = (hints != taste.hints) + (one_liner != taste.one_liner)
    assert (quality.syntax_ok, quality.tests_pass, quality.mismatches) == (True, passed, missed)
    assert quality.in_taste == (missed == 0)
    assert quality.good == (passed and missed == 0)


@pytest.mark.parametrize("passed", [False, True])
@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize(("code", "parses"), [(BARE + LINE, True), ("def f(", False)])
def test_a_fix_is_good_when_it_passes_and_the_agent_said_so(code: str, parses: bool, passed: bool, done: bool) -> None:
    quality = judge_fix(code, passed, done)
    assert (quality.syntax_ok, quality.good) == (parses, passed and done)


@pytest.mark.parametrize("code", ["def f(", "\0", "def f():\nreturn 1", "  x = 1"])
def test_what_does_not_parse_is_judged_all_the_same(code: str) -> None:
    assert not judge_write(code, False, Taste()).syntax_ok


@pytest.mark.parametrize("code", ["", BARE, HINTED + LINE + "\n", HINTED + " return 1", HINTED + LOOP[:12] + LINE])
def test_one_line_is_one_return_and_nothing_else(code: str) -> None:
    assert judge_write(code, True, Taste()).mismatches >= 1


def test_the_taste_shifts_in_hints_alone() -> None:
    assert (SHIFTED.hints, SHIFTED.one_liner) == (not Taste().hints, Taste().one_liner)
