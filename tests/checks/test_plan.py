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
    assert sum(part.budget_s for part in always) <= 40 * 60


def test_what_would_end_too_late_is_skipped_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = Check(ROOT, "ci", parts.CHECK, History(tmp_path / "history"))
    optional = [part for part in parts.CHECK if part.is_optional]
    for part in parts.CHECK:
        for late_s, why in ((0, ""), (1, "SKIPPED for time" if part in optional else "")):
            monkeypatch.setattr(check, "_seconds", lambda at=parts.SKIP_AFTER_S - part.budget_s + late_s: at)
            assert check._reason_to_skip(part, None) == why, part.name
    assert optional
