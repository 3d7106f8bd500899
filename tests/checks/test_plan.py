"""What a change calls for, by the table of this checkout."""

from pathlib import Path

from checks import parts, plan

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
