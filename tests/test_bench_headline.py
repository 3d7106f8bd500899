"""The headline says what got worse and nothing else, and its page shows what was measured."""

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench import check
from bench.check import HEADLINE, SLID, State, against_headline
from bench.headline import headline
from bench.headline.figures import FIGURES, SAID, Figure, middle
from bench.headline.headline import MEASURES, ROOT, checked_out, rows_of
from bench.headline.measures import MEASURES as KNOWN
from bench.headline.page import BEGIN, END, page_with, table_of
from bench.headline.past import against_past
from bench.landings import HEAD, PAGE, BadTable, landings, passed
from bench.table import commit

SECONDS = Figure("served", "demo: feedback to served", "s", "the bar", "less", 1.5)
TURNED_AWAY = Figure("turned_away", "demo: users turned away", "users", "the bar", "less", 0.0)
RATE = Figure("rate", "answers", "times", "a bare server", "more", 0.6)


@pytest.mark.parametrize(
    ("figure", "now", "then", "is_worse"),
    [
        (SECONDS, [3.0, 3.3], [1.4, 1.6], True),
        (SECONDS, [1.4, 1.6], [3.0, 3.3], False),
        (SECONDS, [1.5, 3.3], [1.4, 1.6], False),
        (SECONDS, [1.52, 1.53], [1.5, 1.51], False),
        (TURNED_AWAY, [1.0, 2.0], [0.0, 0.0], True),
        (TURNED_AWAY, [0.0, 0.0], [0.0, 0.0], False),
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
    for users, holds in (([0.0, 0.0], True), ([0.0, 1.0], False)):
        (row,) = rows_of({"turned_away": users}, None)
        assert (row["holds"], row["goal"], row["ratio"]) == (holds, 0.0, None)
    (row,) = rows_of({"answers": [0.4, 0.5]}, None)
    assert (row["ratio"], row["goal"], row["holds"]) == (0.45, 0.6, False), "against what ran beside it, not the goal"
    assert len({figure.name for figure in FIGURES}) == len({figure.metric for figure in FIGURES}) == len(FIGURES)


def test_every_figure_of_the_demo_is_taken_of_its_report() -> None:
    assert sorted(SAID.values()) == sorted(figure.name for figure in FIGURES if figure.metric.startswith("demo: "))


def test_rows_stand_between_their_marks() -> None:
    text = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert page_with(text, "| new |") == f"before\n{BEGIN}\n| new |\n{END}\nafter\n"
    with pytest.raises(ValueError, match="marks"):
        page_with("no marks", "| new |")


def test_an_earlier_commit_is_measured_by_its_own_bench(
    commits: Callable[[str, str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names in `bench/` have changed since, as those of the product have."""
    measures = "bench/headline/measures.py"
    commits("bench/__main__.py", (ROOT / "bench" / "__main__.py").read_text())
    commits("bench/former.py", "RATE = 2.0\n")
    commits("product/former.py", "")
    printing = 'print("beside")\nprint(json.dumps({"figures": {sys.argv[1]: RATE}}))\n'
    earlier = commits(measures, f"import json, sys\nimport product.former\nfrom bench.former import RATE\n{printing}")
    for before in ("bench/former.py", "product/former.py"):
        (tmp_path / before).unlink()
    commits("product/present.py", "")
    commits("bench/present.py", "RATE = 3.0\n")
    commits(measures, f"import json, sys\nimport product.present\nfrom bench.present import RATE\n{printing}")
    monkeypatch.setattr(headline, "ROOT", tmp_path)
    with checked_out(earlier) as tree:
        assert headline.measured([tmp_path, tree], ["log"], 2) == [{"log": [3.0, 3.0]}, {"log": [2.0, 2.0]}]
    assert not tree.exists()


def test_another_commit_is_checked_out_whole() -> None:
    head = commit().removesuffix("-dirty")
    with checked_out(head) as tree:
        assert (tree / "bench" / "headline" / "measures.py").exists()
        assert (tree / "onward").is_dir()
    assert not tree.exists()
    assert list(MEASURES) == list(KNOWN), "what is asked for by name is what there is"


RULE = "|---|---|---|---|---|"


@pytest.fixture
def commits(tmp_path: Path) -> Callable[[str, str], str]:
    """Make a repository in `tmp_path`; return what changes one of its files, and returns the commit."""

    def git(*words: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()

    def change(path: str, content: str) -> str:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
        git("add", "-A")
        git("commit", "-q", "-m", "change")
        return git("rev-parse", "HEAD")

    git("init", "-q")
    return change


def tell(root: Path, *rows: str) -> None:
    (root / PAGE).parent.mkdir(exist_ok=True)
    (root / PAGE).write_text("\n".join(["# Work", "", HEAD, RULE, *rows, "", "After it.", ""]))


def row(commit: str, result: str = "passed") -> str:
    return f"| {commit[:8]} | 2026-11-30 | 26, cached | none | {result} |"


def test_a_headline_is_left_behind_by_two_landings_that_changed_the_product(
    tmp_path: Path, commits: Callable[[str, str], str]
) -> None:
    first, second, third, fourth = (commits("core/size.py", f"SIZE = {number}\n") for number in range(4))
    fifth = commits("docs/index.md", "What it is.\n")
    stranger = row("f" * 12)

    tell(tmp_path, row(second), row(second), stranger, row(third, "failed: a test"), row(fourth), row(first))
    assert landings(tmp_path) == [fourth, second, first], "by the history, once each, and no strangers"
    assert not [*against_headline(second, tmp_path), *against_headline(third, tmp_path)]
    assert not list(against_headline(fifth[:12], tmp_path))
    assert list(against_headline(first[:12], tmp_path)) == [
        f"the product has changed since the headline, and 2 commits have landed: {fourth[:8]}, {second[:8]}"
    ]
    assert "not in the history" in "".join(against_headline("f" * 12, tmp_path))

    tell(tmp_path, row(second), row(fourth), row(fifth))
    assert list(against_headline(third, tmp_path)), "of two landings the last changed documents alone"
    sixth = commits("docs/index.md", "What it is for.\n")
    tell(tmp_path, row(second), row(fifth), row(sixth))
    assert not list(against_headline(fourth, tmp_path)), "two have landed, and the product is the same"

    tell(tmp_path, stranger)
    with pytest.raises(BadTable, match="in the history"):
        landings(tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param("| 0123abc | 2026-11-30 | 26 | none | passed |", id="a commit of seven digits"),
        pytest.param("| 0123abcd and more | 2026-11-30 | 26 | none | passed |", id="a commit with words"),
        pytest.param("| 0123abcd | yesterday | 26 | none | passed |", id="no day"),
        pytest.param("| 0123abcd | 2026-11-30 | long | none | passed |", id="no minutes"),
        pytest.param("| 0123abcd | 2026-11-30 | 26 | none | passed, nearly |", id="neither passed nor failed"),
        pytest.param("| 0123abcd | 2026-11-30 | 26 | passed |", id="a column too few"),
        pytest.param("| 0123abcd | 2026-11-30 | 26 | none | none | passed |", id="a column too many"),
        pytest.param("| 0123abcd | 2026-11-30 | 26 | none | passed | here |", id="a column behind the result"),
    ],
)
def test_a_row_of_landings_that_says_something_else_is_refused(wrong: str) -> None:
    with pytest.raises(BadTable, match=re.escape(wrong)):
        passed("\n".join([HEAD, RULE, row("0123abcd"), wrong, ""]))


def test_there_is_one_table_of_landings_and_it_ends_where_its_rows_do() -> None:
    table = [HEAD, RULE, row("0123abcd"), row("0123abce", "failed: a test"), "", "| file | fault |"]
    assert passed("\n".join(table)) == ["0123abcd"]
    for page, tables in ((table + table, 2), ([], 0)):
        with pytest.raises(BadTable, match=f"there are {tables} tables"):
            passed("\n".join(page))


@pytest.mark.parametrize(
    ("wrong", "is_shown", "worse", "says"),
    [
        ([], True, [], None),
        ([], True, ["answers is 0.42"], None),
        (["2 commits have landed"], True, [], "2 commits have landed: make bench-headline"),
        ([], False, [], "shows another headline"),
        ([BadTable("a row is odd")], True, [], "bench-check: a row is odd"),
    ],
)
def test_a_headline_that_is_left_behind_or_that_nobody_sees_is_an_error(
    wrong: list[str | BadTable],
    is_shown: bool,
    worse: list[str],
    says: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[str] = []

    def against(commit: str) -> Iterator[str]:
        asked.append(commit)
        for each in wrong:
            if isinstance(each, BadTable):
                raise each
            yield each

    found = [State("log", "a" * 12, False, None), State(HEADLINE, "b" * 12, False, ("core/queue.py",))]
    monkeypatch.setattr(check, "states", lambda: iter(found))
    monkeypatch.setattr(check, "against_headline", against)
    monkeypatch.setattr(check, "is_shown", lambda: is_shown)
    monkeypatch.setattr(check, "against_past", lambda _root: iter(worse))
    if says is None:
        check.main()
    else:
        with pytest.raises(SystemExit, match=says):
            check.main()
    assert all(f"{SLID}: {each}" in capsys.readouterr().out for each in worse), "told, and no error"
    assert asked == ["b" * 12], "a result other than the headline may be as old as it likes"


def test_a_slow_slide_over_many_landings_is_seen(tmp_path: Path, commits: Callable[[str, str], str]) -> None:
    metric, path = "whole answers, every turn durable", "bench/results/headline.json"

    def headline(value: float, processors: str = "2 x one", reach: float = 0.01) -> str:
        row = {"metric": metric, "value": value, "spread": [value - reach, value + reach]}
        content = {"machine": f"{processors}, Linux 6, Python 3", "commit": f"of{value}", "rows": [row]}
        return commits(path, json.dumps(content))

    def slid() -> list[str]:
        return list(against_past(tmp_path))

    best, other = headline(0.5), headline(0.9, "2 x other")
    down = [headline(0.5 - 0.01 * step) for step in range(1, 10)]
    tell(tmp_path, row(best), row(other), *map(row, down[:4]))
    headline(0.46)
    assert not slid(), "a little is allowed"
    headline(0.44, reach=0.07)
    assert not slid(), "its rounds do not lie apart from the best's"
    headline(0.42)
    assert slid() == [f"{metric} is 0.42, and was 0.5 at of0.5"]
    tell(tmp_path, row(best), row(other), *map(row, down))
    assert not slid(), "the best is of before the last ten"


def test_the_page_says_the_day_where_the_result_does() -> None:
    row = {"metric": "m", "value": 1.0, "unit": "s", "against": "the bar", "ratio": 1.0, "goal": 1.0, "holds": True}
    older = {"commit": "abc", "machine": "a machine", "rows": [row | {"spread": [1.0, 1.0]}]}
    assert table_of(older).startswith("At abc, on a machine.\n")
    assert table_of(older | {"day": "2026-01-31"}).startswith("At abc, 2026-01-31, on a machine.\n")
