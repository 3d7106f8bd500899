"""What a change calls for, by the table of this checkout."""

from pathlib import Path

import pytest
from checks import parts, plan
from checks.check import Check
from checks.second_tries import History

ROOT = Path(__file__).parents[2]
TABLE = plan.read(ROOT / ".ci" / "plan")


def test_each_line_names_a_place_and_optional_parts() -> None:
    optional = {part.name for part in parts.CHECK if part.is_optional}
    for place, called in TABLE.items():
        assert (ROOT / place).exists(), place
        assert called <= optional


def test_the_longest_folder_decides() -> None:
    table = {"api/": frozenset({"clients"}), "api/console/": frozenset[str]()}
    assert plan.called_for(table, ["api/app.py"]) == {"clients"}
    assert plan.called_for(table, ["api/console/page.js", "docs/api/x.md"]) == set()
    assert plan.called_for(table, ["api/console/page.js", "api/app.py"]) == {"clients"}


def test_nobody_knows_what_was_changed_since_a_commit_that_is_none_of_ours() -> None:
    assert plan.changed_since(["", "0" * 40]) is None


def test_the_budgets_of_what_always_runs_are_half_an_hour() -> None:
    always = [part for part in parts.CHECK if not part.is_optional]
    assert sum(part.budget_s for part in always) <= 30 * 60


def test_a_part_that_makes_all_anew_is_not_ended_by_the_budget_of_what_is_kept(tmp_path: Path) -> None:
    check = Check(ROOT, "ci", parts.CHECK, History(tmp_path / "history"))
    install = next(part for part in parts.CHECK if part.name == "install")
    assert check._left_s(install) == parts.PATIENCE * install.anew_s > parts.PATIENCE * install.budget_s


def test_the_document_shows_the_budgets() -> None:
    document = (ROOT / "docs" / "development.md").read_text()
    table = document.partition("| budget, s | anew, s |\n")[2].partition("\n\n")[0].splitlines()[1:]
    shown = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table]
    assert [(name, budget, anew) for name, _, budget, anew in shown] == [
        (part.name, str(part.budget_s), str(part.anew_s or "")) for part in parts.CHECK
    ]


def test_what_would_end_too_late_is_skipped_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = Check(ROOT, "ci", parts.CHECK, History(tmp_path / "history"))
    optional = [part for part in parts.CHECK if part.is_optional]
    for part in parts.CHECK:
        for late_s, why in ((0, ""), (1, "SKIPPED for time" if part in optional else "")):
            monkeypatch.setattr(check, "_seconds", lambda at=parts.SKIP_AFTER_S - part.budget_s + late_s: at)
            assert check._reason_to_skip(part, None) == why, part.name
    assert optional
