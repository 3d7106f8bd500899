"""The judges of follow-ups: which of a user's next words find fault with the answer before them."""

import json

import pytest

from bench.words.follow_ups import WEIGHTS, by, corpus, taught, unseen
from core.reward_spec import DerivedSpec
from scoring.derived.displeasure import LinearJudge, PatternJudge, judge_of

LINEAR = judge_of(DerivedSpec(judge="linear"))


@pytest.mark.parametrize(
    ("words", "finds_fault"),
    [
        ("you forgot to close the file, and the tests fail", True),
        ("this is wrong, it should return a list", True),
        ("Thanks! Now write a test for it.", False),
        ("How do I revert a commit in git?", False),
        ("", False),
    ],
)
def test_the_linear_judge(words: str, finds_fault: bool) -> None:
    assert (LINEAR.fault(words) is not None) is finds_fault


def test_a_spec_names_its_judge() -> None:
    assert isinstance(judge_of(DerivedSpec()), PatternJudge)
    assert isinstance(LINEAR, LinearJudge)


def test_the_shipped_weights_are_those_learned_from_the_corpus() -> None:
    assert json.loads(WEIGHTS.read_text()) == taught(corpus())


def test_the_linear_judge_errs_less_than_the_pattern_on_what_it_has_not_seen() -> None:
    examples = corpus()
    wrong = {
        name: sum(judged != each.finds_fault for judged, each in zip(said, examples, strict=True))
        for name, said in (
            ("linear", unseen(examples)),
            ("pattern", by(PatternJudge(DerivedSpec().displeased), examples)),
        )
    }
    assert wrong["linear"] < 0.2 * len(examples) < wrong["pattern"]


@pytest.mark.parametrize("words", ["no " * 100_000, "\x00\ud800".encode(errors="replace").decode(), "?" * 10_000])
def test_any_text_is_judged(words: str) -> None:
    assert 0 <= LinearJudge({"any": 0.1}).likelihood(words) <= 1
