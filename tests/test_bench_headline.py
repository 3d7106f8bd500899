"""The headline says what got worse and nothing else, and its page shows what was measured."""

import pytest

from bench import check
from bench.check import HEADLINE, MOST_COMMITS, State, commits_since
from bench.headline.figures import FIGURES, Figure, middle
from bench.headline.headline import MEASURES, checked_out, rows_of
from bench.headline.page import BEGIN, END, page_with, table_of
from bench.table import commit

SECONDS = Figure("served", "demo: feedback to served", "s", "the bar", "less", 1.5)
RATE = Figure("rate", "answers", "times", "a bare server", "more", 0.6)


@pytest.mark.parametrize(
    ("figure", "now", "then", "is_worse"),
    [
        (SECONDS, [3.0, 3.3], [1.4, 1.6], True),
        (SECONDS, [1.4, 1.6], [3.0, 3.3], False),
        (SECONDS, [1.5, 3.3], [1.4, 1.6], False),
        (SECONDS, [1.52, 1.53], [1.5, 1.51], False),
        (RATE, [0.41, 0.42], [0.5, 0.47], True),
        (RATE, [0.5, 0.47], [0.41, 0.42], False),
    ],
)
def test_worse_is_what_is_worse_in_every_round_and_by_more_than_a_little(
    figure: Figure, now: list[float], then: list[float], is_worse: bool
) -> None:
    assert figure.is_worse(now, then) is is_worse


def test_rows_have_their_spread_and_what_was_before() -> None:
    found, before = {"served_p50": [2.0, 1.0]}, {"served_p50": [3.0], "log": [1.0]}
    (row,) = rows_of(found, before)
    assert (row["value"], row["spread"], row["before"], row["holds"]) == (1.5, [1.0, 2.0], 3.0, True)
    assert middle([4.0, 1.0, 2.0]) == 2.0
    assert len({figure.name for figure in FIGURES}) == len({figure.metric for figure in FIGURES}) == len(FIGURES)


def test_rows_stand_between_their_marks() -> None:
    text = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert page_with(text, "| new |") == f"before\n{BEGIN}\n| new |\n{END}\nafter\n"
    with pytest.raises(ValueError, match="marks"):
        page_with("no marks", "| new |")


def test_another_commit_is_measured_by_todays_measurements() -> None:
    head = commit().removesuffix("-dirty")
    assert commits_since(head) == 0
    assert commits_since("f" * 12) is None
    with checked_out(head) as tree:
        assert (tree / "bench" / "headline" / "measures.py").exists()
        assert (tree / "onward").is_dir()
    assert not tree.exists()
    assert "demo" in MEASURES


@pytest.mark.parametrize(
    ("since", "is_shown", "says"),
    [
        (MOST_COMMITS, True, None),
        (MOST_COMMITS + 1, True, f"the code has changed in {MOST_COMMITS + 1} commits since the headline"),
        (None, True, "is not in the history"),
        (0, False, "shows another headline"),
    ],
)
def test_a_headline_that_commits_passed_by_or_nobody_sees_is_an_error(
    since: int | None, is_shown: bool, says: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def counted(commit: str) -> int | None:
        asked.append(commit)
        return since

    found = [State("log", "a" * 12, False, None), State(HEADLINE, "b" * 12, False, ("core/queue.py",))]
    monkeypatch.setattr(check, "states", lambda: iter(found))
    monkeypatch.setattr(check, "commits_since", counted)
    monkeypatch.setattr(check, "is_shown", lambda: is_shown)
    if says is None:
        check.main()
    else:
        with pytest.raises(SystemExit, match=says):
            check.main()
    assert asked == ["b" * 12], "a result other than the headline may be as old as it likes"


def test_the_page_says_the_day_where_the_result_does() -> None:
    row = {"metric": "m", "value": 1.0, "unit": "s", "against": "the bar", "ratio": 1.0, "goal": 1.0, "holds": True}
    older = {"commit": "abc", "machine": "a machine", "rows": [row | {"spread": [1.0, 1.0]}]}
    assert table_of(older).startswith("At abc, on a machine.\n")
    assert table_of(older | {"day": "2026-01-31"}).startswith("At abc, 2026-01-31, on a machine.\n")
