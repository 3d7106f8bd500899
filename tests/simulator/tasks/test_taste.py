"""The truth about an answer, for every combination of syntax, tests and taste; and how far one style would get."""

import random
from collections import Counter

import pytest

from simulator.tasks.one_style import ceiling, met_by_each, served
from simulator.tasks.sampling import identity, sample_task
from simulator.tasks.taste import SHIFTED, STYLES, Style, Taste, judge_fix, judge_write, wanted
from simulator.tasks.templates import TEMPLATES

HINTED, BARE = "def f(xs: list) -> int:", "def f(xs):"
LINE, LOOP = "\n    return sum(xs)", "\n    out = 0\n    for x in xs:\n        out += x\n    return out"
FIRST = Style(hints=True, one_liner=True)
BY_REPOSITORY = Taste(hinted=frozenset({"billing", "infra"}))
DRAWS = 4000


@pytest.mark.parametrize("liked", STYLES)
@pytest.mark.parametrize("passed", [False, True])
@pytest.mark.parametrize(("header", "hints"), [(HINTED, True), (BARE, False)])
@pytest.mark.parametrize(("body", "one_liner"), [(LINE, True), (LOOP, False)])
def test_what_is_written_is_good_when_it_passes_and_is_as_liked(
    header: str, hints: bool, body: str, one_liner: bool, passed: bool, liked: Style
) -> None:
    quality = judge_write(header + body, passed, liked)
    missed = (hints != liked.hints) + (one_liner != liked.one_liner)
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
    assert not judge_write(code, False, FIRST).syntax_ok


@pytest.mark.parametrize("code", ["", BARE, HINTED + LINE + "\n", HINTED + " return 1", HINTED + LOOP[:12] + LINE])
def test_one_line_is_one_return_and_nothing_else(code: str) -> None:
    assert judge_write(code, True, FIRST).mismatches >= 1


@pytest.mark.parametrize("body", [LINE, LOOP])
def test_comments_are_in_nobody_s_style(body: str) -> None:
    for liked in STYLES:
        assert judge_write(HINTED + body + "\n    # out", True, liked).mismatches >= 1


def test_a_style_and_its_opposite_differ_in_all() -> None:
    assert {style.opposite for style in STYLES} == set(STYLES)
    for style in STYLES:
        assert judge_write(HINTED + LINE, True, style).mismatches + judge_write(
            HINTED + LINE, True, style.opposite
        ).mismatches == len(("hints", "one_liner"))


def test_the_taste_shifts_in_hints_alone() -> None:
    assert SHIFTED.one_line == Taste().one_line
    assert not SHIFTED.hinted
    assert Taste().hinted


def test_no_style_for_everything_comes_near_to_what_can_be_learned() -> None:
    """A model that knows the taste is always right; one style leaves a third of the functions written to be desired."""
    assert sum(met_by_each(Taste()).values()) == 1
    assert 1 - float(ceiling(Taste())) / 2 - 0.5 >= 0.15, "of all sessions, half of which are fixes and have no style"
    assert 1 - float(ceiling(SHIFTED)) / 2 - 0.5 >= 0.15
    assert met_by_each(Taste())[FIRST] == ceiling(Taste()) < 0.67


def test_where_nothing_depends_on_the_request_one_style_is_enough() -> None:
    everything = Taste(one_line=frozenset(template.returns for template in TEMPLATES))
    assert met_by_each(everything)[FIRST] == ceiling(everything) == 1


def test_where_more_depends_on_the_request_one_style_is_worth_less() -> None:
    assert float(ceiling(BY_REPOSITORY)) < 0.35
    assert all(share > 0.15 for share in met_by_each(BY_REPOSITORY).values())


def test_the_shares_are_those_of_what_users_ask() -> None:
    """The enumeration has the tasks that are drawn, with the odds with which they are drawn."""
    assert {identity(task) for task, _ in served()} >= {
        identity(sample_task(random.Random(seed), "write")) for seed in range(200)
    }
    rng = random.Random(0)
    drawn = Counter(BY_REPOSITORY.style(sample_task(rng, "write")) for _ in range(DRAWS))
    for style, share in met_by_each(BY_REPOSITORY).items():
        spread = float(share * (1 - share) / DRAWS) ** 0.5
        assert abs(drawn[style] / DRAWS - float(share)) < 4 * spread


@pytest.mark.parametrize("taste", [Taste(), SHIFTED, BY_REPOSITORY])
def test_what_is_wanted_is_good(taste: Taste) -> None:
    rng = random.Random(1)
    for task in (sample_task(rng, "write") for _ in range(100)):
        assert judge_write(wanted(task, taste), True, taste.style(task)).good
        opposite = taste.style(task).opposite
        assert judge_write(task.solution(hints=opposite.hints, one_liner=opposite.one_liner), True, opposite).good
