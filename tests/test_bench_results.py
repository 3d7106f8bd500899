"""Committed benchmark results name the code that made them, and are listed once that code has changed."""

import json
import re
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest
from sandboxed import require_bubblewrap

from bench.__main__ import modules
from bench.check import MADE_BY_TESTS, ROOT, BadResult, changed, commits, files_now, sources, states
from bench.days import days_of, page_of_days, table
from bench.demos.demo import rows as rows_of_demos
from bench.demos.exploits_table import rows_of
from bench.environments import escapes
from bench.headline.figures import BAR
from bench.headline.page import PAGE
from bench.releases.any_version import Order, Tried
from bench.releases.any_version import rows as rows_of_the_past
from bench.releases.rollback_trials import errors
from bench.table import RESULTS

OLD = {
    "bench/log/speed.py": b"from bench.load import put\nput()\n",
    "bench/load.py": b'import core.queue\nSTART = ["python", "-m", "onward", "run"]\n',
    "core/queue.py": b'"""A queue."""\nSIZE = 3\n',
    "core/other.py": b"SIZE = 4\n",
    "onward/__main__.py": b"import onward.cli\n",
    "onward/cli.py": b"print('run')\n",
}


def test_a_benchmarks_code_is_what_it_imports_and_what_it_starts() -> None:
    found = sources("speed", OLD)

    assert found[0] == "bench/log/speed.py"
    assert set(found) == set(OLD) - {"core/other.py"}


def test_what_a_package_hands_on_is_followed_to_where_it_is_written() -> None:
    files = {
        "bench/log/speed.py": b"from core.settings import Learner\n",
        "core/settings/__init__.py": b"from core.settings.api import Api\nfrom core.settings.learner import Learner\n",
        "core/settings/http/api.py": b"class Api: ...\n",
        "core/settings/learner.py": b"class Learner: ...\n",
    }

    assert sources("speed", files) == ["bench/log/speed.py", "core/settings/learner.py"]


def test_words_about_the_code_may_change_and_the_code_may_not() -> None:
    told = OLD | {"core/queue.py": b'"""A queue of turns."""\n\nSIZE = 3  # turns\n', "core/other.py": b"SIZE = 5\n"}
    grown = OLD | {"core/queue.py": b'"""A queue."""\nSIZE = 4\n'}
    gone = {path: content for path, content in OLD.items() if path != "onward/cli.py"}

    assert changed("speed", OLD, told) == ()
    assert changed("speed", OLD, grown) == ("core/queue.py",)
    assert changed("speed", OLD, gone) == ("onward/cli.py",)


def test_code_that_only_moved_is_what_it_was() -> None:
    then = {
        "bench/speed.py": b'import json\nfrom bench.load import put\nput(["python", "-m", "bench.peer"])\n',
        "bench/load.py": b"def put(): ...\n",
        "bench/peer.py": b"print('peer')\n",
    }
    now = {
        "bench/log/speed.py": b'from bench.log.load import put\nimport json\nput(["python", "-m", "bench.log.peer"])\n',
        "bench/log/load.py": then["bench/load.py"],
        "bench/log/peer.py": then["bench/peer.py"],
    }

    assert sources("speed", now) == list(now)
    assert changed("speed", then, now) == ()
    assert changed("speed", then, now | {"bench/log/peer.py": b"print('p')\n"}) == (
        "bench/log/peer.py",
        "bench/peer.py",
    )


def test_the_page_of_results_tells_the_day_of_every_result() -> None:
    page = PAGE.read_text()

    assert page == page_of_days(page, table()), "python -m bench.days"


def test_a_day_is_the_results_own_or_its_commits_where_the_history_has_it() -> None:
    row = {"metric": "m", "value": 1, "unit": "s", "against": None, "ratio": None, "goal": None, "holds": True}
    older = {**row, "commit": "aaaaaaaaaaaa-dirty, bbbbbbbbbbbb"}
    content = {"commit": "cccccccccccc", "day": "2026-11-30", "rows": [row, older]}

    assert dict(days_of("speed", content, {"aaaaaaaaaaaa": "2026-11-02", "cccccccccccc": "2026-11-29"})) == {
        "aaaaaaaaaaaa-dirty": "2026-11-02, its commit's",
        "bbbbbbbbbbbb": "not told",
        "cccccccccccc": "2026-11-30",
    }


@pytest.mark.parametrize("name", sorted(MADE_BY_TESTS))
def test_a_result_that_tests_make_is_attributed_to_them(name: str) -> None:
    assert sources(name, files_now())[0].startswith("tests/")


def test_each_benchmark_has_a_name_of_its_own_and_make_knows_only_such() -> None:
    files = [path.stem for path in (ROOT / "bench").glob("*/*.py")]
    words = re.search(r"\$\(NAME\),\$\(NAME\),(.*)\); do", (ROOT / "Makefile").read_text())

    assert len(files) == len(set(files))
    assert words is not None
    assert set(words[1].split()) <= modules().keys()


def is_named(name: str, page: Path) -> bool:
    """Return whether a page names a benchmark, by a command or a path; on the page of results its word is enough."""
    command = rf"-m bench {name}\b|NAME={name}\b|bench-{name}\b|bench[./](\w+[./])?{name}\b"
    word = rf"|`{name}`|\| {name} \|" if page.name == "results.md" else ""
    return re.search(command + word, words_of(page)) is not None


@cache
def words_of(page: Path) -> str:
    return " ".join(page.read_text().split())


def test_every_benchmark_is_named_on_a_page_or_is_a_part_of_one_that_is() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    files = {path: content for path, content in files_now().items() if path.startswith("bench/")}
    named = {name for name in modules() if any(is_named(name, page) for page in pages)}
    parts = {path for name in named for path in sources(name, files) if not re.search(rb"\breport\(", files[path])}

    rooms = {path.relative_to(ROOT).as_posix(): path.stem for path in (ROOT / "bench").glob("*/*.py")}
    assert not {path for path, name in rooms.items() if name not in named and path not in parts}


def test_every_committed_result_has_whole_rows_and_the_commit_that_made_them() -> None:
    results = {file.stem: json.loads(file.read_text()) for file in RESULTS.glob("*.json")}
    told = {name: commits(name, content) for name, content in results.items() if "rows" in content}

    assert "learner_step" in told
    assert all(told.values())


def test_a_ratio_of_the_headline_is_to_what_ran_beside_it_and_never_to_the_goal() -> None:
    rows = json.loads((RESULTS / "headline.json").read_text())["rows"]

    assert [row["ratio"] for row in rows] == [None if row["against"] == BAR else row["value"] for row in rows]


def test_no_decision_says_a_figure_of_what_the_newest_headline_has() -> None:
    """It would be another with the next one: the row is named, and a figure is told of a commit or a machine."""
    metrics = [row["metric"] for row in json.loads((RESULTS / "headline.json").read_text())["rows"]]
    named = "|".join(re.escape(f"`{metric}`") for metric in metrics)
    of_today = re.compile(rf"[Nn]ewest (?:rows?|headline)|{named}")
    figure = re.compile(r"(?<![\w.])\d*\.\d{2,}(?![\w.])")
    found = []
    for page in (ROOT / "docs" / "decisions").glob("*.md"):
        sentences = re.split(r"(?<=[.:;])\s", words_of(page))
        found += [f"{page.name}: {each}" for each in sentences if of_today.search(each) and figure.search(each)]

    assert not found


def test_every_result_that_misses_a_goal_is_in_a_decision_that_says_so() -> None:
    results = {file.stem: json.loads(file.read_text()) for file in RESULTS.glob("*.json")}
    rows = {name: content["rows"] for name, content in results.items() if "rows" in content}
    missed = {name for name, rows_of_it in rows.items() if not all(row["holds"] for row in rows_of_it)}
    decisions = [page for page in (ROOT / "docs" / "decisions").glob("*.md") if re.search(r"[Mm]iss", words_of(page))]

    assert missed
    assert not {name for name in missed if not any(is_named(name, page) for page in decisions)}


@pytest.mark.parametrize(("wrong", "holds"), [(19, True), (20, True), (21, False), (22, False)])
def test_a_share_of_errors_holds_where_no_more_were_seen_than_are_allowed(wrong: int, holds: bool) -> None:
    row, low, high = errors("lost", wrong, 400, 0.05)

    assert low.value is not None
    assert high.value is not None
    assert low.value < 0.05 < high.value, "the interval excuses nothing"
    assert (row.value, row.ratio, row.holds) == (wrong / 400, wrong / 400 / 0.05, holds)


def test_the_committed_shares_of_errors_are_held_to_the_same() -> None:
    results = (json.loads(file.read_text()) for file in RESULTS.glob("*.json"))
    tables = (content["rows"] for content in results if "rows" in content)
    rows = [row for table in tables for row in table if str(row["against"]).endswith(" allowed")]
    allowed = [float(row["against"].removesuffix(" allowed")) for row in rows]

    assert rows
    assert [row["holds"] for row in rows] == [row["value"] <= most for row, most in zip(rows, allowed, strict=True)]


@pytest.mark.parametrize(("versions", "best", "missed"), [(1000, 1.0, 0), (568, 1.0, 1), (1000, None, 1)])
def test_what_was_not_tried_of_the_past_does_not_hold(versions: int, best: float | None, missed: int) -> None:
    went = [Order(number, "now", 0.5) for number in range(31)]
    found = [*rows_of_the_past(Tried(went, Order(7, "now", best), went[:4], 537), versions, 18)]

    assert [row.holds for row in found].count(False) == missed
    assert {row.against for row in found if "drawn of 537 others: gone" in row.metric} == {"all 4 tried"}


@pytest.mark.parametrize(
    "content",
    [
        pytest.param({"commit": "abc", "rows": []}, id="no rows"),
        pytest.param({"commit": "abc", "rows": [{"name": "x"}]}, id="rows of another form"),
    ],
)
def test_a_result_that_says_nothing_is_refused(tmp_path: Path, content: dict[str, object]) -> None:
    (tmp_path / "speed.json").write_text(json.dumps(content))

    with pytest.raises(BadResult, match="speed"):
        list(states(tmp_path))


def test_a_result_of_a_commit_that_nobody_has_is_named(tmp_path: Path) -> None:
    row = {"metric": "m", "value": 1, "unit": "s", "against": None, "ratio": None, "goal": None, "holds": True}
    (tmp_path / "speed.json").write_text(json.dumps({"commit": "0123456789ab-dirty", "rows": [row]}))

    (state,) = states(tmp_path)

    assert not state.is_current
    assert state.words == "made on a changed tree; its commit is not in the history"


def run(case: str, seed: int, damage: float | None, held: float | None, alarms: int = 0) -> dict[str, object]:
    opened = [["length", "fix", 20.0]] * alarms
    made = {"case": case, "monitors": True, "seed": seed, "damage": damage, "held_after_s": held, "alarms": opened}
    return made | {"critical": 0, "commit": f"c{seed}"}


def test_the_exploits_rows_tell_what_users_paid_and_hold_it_to_the_goal() -> None:
    rows = rows_of([run("length", 0, 0.2, 30.0), run("length", 1, 0.1, 40.0), run("clean", 0, 0.0, None, alarms=2)])

    damage, held, false, _ = rows
    assert (round(damage.value, 9), damage.holds, damage.commit) == (0.15, False, "c0, c1")
    assert held.value == 35.0
    assert (false.value, false.holds) == (2, False)


def test_a_mean_of_demos_is_of_the_runs_that_have_the_figure_and_names_their_commits() -> None:
    older: dict[str, object] = {
        "kind": "local, shift",
        "commit": "c0",
        "recovered_after_s": 20.0,
        "quality_start": 0.2,
        "quality_end": 0.8,
    }
    older |= {"feedback_to_served_p50_s": 1.5, "failed_requests": 0, "lost_turns": 0, "lost_outcomes": 0}
    newer = {**older, "commit": "c1", "quality_end": None, "learner_idle_share": 0.4, "probe_share": 0.1}
    found = {row.metric: (row.value, row.commit) for row in rows_of_demos([older, newer])}

    assert found["local, shift: quality_end"] == (0.8, "c0")
    assert found["local, shift: learner_idle_share"] == (0.4, "c1")
    assert found["local, shift: probe_share"] == (0.1, "c1")


def test_a_program_that_got_out_of_a_sandbox_is_counted_and_one_that_was_not_tried_is_not() -> None:
    tried = '<properties><property name="tried" value="files" /></properties>'
    cases = [
        f'<testcase classname="a.test_escapes" name="in">{tried}</testcase>' * 50,
        '<testcase classname="a.test_escapes" name="not over images" />',
        '<testcase classname="a.test_greed" name="bomb" />',
        '<testcase classname="a.test_walls" name="files" />',
    ]

    def counted(*more: str) -> list[tuple[float | None, bool]]:
        root = ElementTree.fromstring(f"<testsuites>{''.join([*cases, *more])}</testsuites>")
        return [(row.value, row.holds) for row in escapes.rows(root)]

    assert counted() == [(50, True), (0, True), (1, True), (0, True), (1, True)]
    out = f'<testcase classname="a.test_escapes" name="out">{tried}<failure /></testcase>'
    greedy = '<testcase classname="a.test_greed" name="memory"><failure /></testcase>'
    no_wall = '<testcase classname="a.test_walls" name="nobody"><skipped /></testcase>'
    assert counted(out, greedy, no_wall) == [(51, True), (1, False), (2, True), (1, False), (1, False)]


def test_a_program_that_tries_to_get_out_is_counted_as_its_test_ends(tmp_path: Path) -> None:
    require_bubblewrap()
    one = "test_escapes.py::test_nobody_gets_out[programs of this machine-read a file by its path]"
    (case,) = escapes.tried(tmp_path, f"{escapes.TESTS}/{one}").iter("testcase")
    assert case.find(".//property[@name='tried']") is not None
    assert [each.tag for each in case] == ["properties"], "it has neither failed nor been skipped"
