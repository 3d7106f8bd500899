"""Near-duplicates of curated solutions are found, and other texts are left alone."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.sequences.resemblance import LIKENESS, LONG, SHINGLE, KeptOut, Solutions, SuiteSolutions

TOTAL = """
def total(values):
    result = 0
    for value in values:
        if value > 0:
            result += value
    return result
"""
WORDS = st.lists(st.sampled_from([f"w{n}" for n in range(200)]), min_size=1, max_size=60)


def resembles(text: str, solutions: dict[str, str]) -> str | None:
    return Solutions(solutions).resembled_by(text)


def jaccard(one: str, other: str) -> float:
    """Return the similarity by its definition, with shingles as texts."""

    def shingles(text: str) -> set[str]:
        tokens = re.findall(r"\w+|[^\w\s]", text.casefold())
        return {" ".join(tokens[n : n + SHINGLE]) for n in range(max(1, len(tokens) - SHINGLE + 1))}

    return len(shingles(one) & shingles(other)) / len(shingles(one) | shingles(other))


@pytest.mark.parametrize(
    "text",
    [
        TOTAL,
        TOTAL.replace("\n", " ").upper(),
        TOTAL.replace("    ", "\t").replace(" = ", "="),
        TOTAL.replace("def total", "def summed"),
        TOTAL.replace("result = 0", "result = 0.0"),
        "Here is what you asked for:\n```python" + TOTAL + "```\nIt skips what is negative. " + "Tell me more. " * 50,
        TOTAL.replace("total", "ｔｏｔａｌ"),  # full-width letters
    ],
)
def test_the_solution_is_known_again(text: str) -> None:
    assert resembles(text, {"other": "print('hello')", "total": TOTAL}) == "total"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   \n",
        "def total(values): return sum(v for v in values if v > 0)",
        "for value in values:\n    if value > 0:\n        print(value)",
        "def mean(values):\n    count = 0\n    for item in values:\n        count += 1\n    return sum(values) / count",
        "To add what is positive, go through the values and keep a running result.",
    ],
)
def test_what_is_said_otherwise_is_another_text(text: str) -> None:
    assert resembles(text, {"total": TOTAL}) is None


def test_a_short_solution_is_compared_as_a_whole() -> None:
    assert resembles("Paris.", {"capital": "paris ."}) == "capital"
    assert resembles("I was in Paris. It rained.", {"capital": "Paris."}) is None
    quotation = "the quick brown fox jumps over the lazy dog"
    assert resembles(quotation, {"fox": quotation}) == "fox"
    assert resembles("He wrote: " + quotation + " and then went home for tea.", {"fox": quotation}) is None


def test_solutions_of_nothing_resemble_nothing() -> None:
    assert resembles("anything", {}) is None
    assert resembles("", {"blank": "  "}) is None


def test_the_likest_is_named() -> None:
    renamed = TOTAL.replace("total", "positive")
    assert Solutions({"one": TOTAL, "two": renamed}).resembled_by(renamed) == "two"


def test_a_text_tells_the_cases_of_all_suites_that_have_its_like() -> None:
    renamed = TOTAL.replace("total", "positive")
    suites = [
        SuiteSolutions("a", "d", {"total": TOTAL, "other": "print('hello')"}),
        SuiteSolutions("b", "d", {"total": renamed}),
    ]
    kept_out = KeptOut(suites)
    assert kept_out.cases_told_by(renamed) == [("b", "total"), ("a", "total")], "the likest first"
    assert kept_out.cases_told_by("print ( 'hello' )") == [("a", "other")]
    assert KeptOut().cases_told_by(TOTAL) == []


@given(words=WORDS, others=WORDS, place=st.integers(0, 60))
def test_the_threshold_is_that_of_the_definition(words: list[str], others: list[str], place: int) -> None:
    solution, text = " ".join(words), " ".join(words[:place] + others)
    if len(words) < LONG:
        assert (resembles(text, {"it": solution}) == "it") == (jaccard(text, solution) >= LIKENESS)
    elif jaccard(text, solution) >= LIKENESS:
        assert resembles(text, {"it": solution}) == "it"


@given(words=WORDS, before=WORDS, after=WORDS)
def test_a_long_solution_is_found_among_much_else(words: list[str], before: list[str], after: list[str]) -> None:
    text = " ".join([*before, *words, *after])
    found = resembles(text, {"it": " ".join(words)})
    assert found == "it" if len(words) >= LONG else True


@given(st.text())
def test_every_text_with_a_token_resembles_itself(text: str) -> None:
    assert (resembles(text, {"it": text}) == "it") == bool(re.search(r"[^\s]", text))
