"""Mutation testing: faults are planted in code one at a time, and their fates are counted."""

import os
from pathlib import Path

import pytest

from bench.mutants.mutants import rows_of
from bench.mutants.mutations import ROOT, Mutation, made, places, sample
from bench.mutants.trial import in_child, put_in_place

CODE = '''"""Words."""

LIMIT = 3


def clipped(value: int | None) -> int:
    """Words with a + b."""
    if value is None:
        raise ValueError("no value at all")
    return min(value + 1, LIMIT)
'''


def test_functions_are_changed_and_words_and_types_are_not() -> None:
    changes = {(each.line, each.before, each.after) for each in map(made, places("part/file.py", CODE))}

    assert (8, "if value is None:", "if value is not None:") in changes
    assert (10, "return min(value + 1, LIMIT)", "return min(value - 1, LIMIT)") in changes
    assert {line for line, _, _ in changes} == {8, 9, 10}
    assert not [after for _, _, after in changes if "XX" in after or "NO VALUE" in after]


def test_a_change_keeps_its_place_in_the_sample_when_others_come() -> None:
    grown = CODE.replace("LIMIT = 3\n", "LIMIT = 3\n\n\ndef other(a: int) -> int:\n    return a + 1\n")
    ranks, ranks_then = ([each.rank(0) for each in places("part/file.py", text)] for text in (CODE, grown))

    assert len(set(ranks)) == len(ranks)
    assert set(ranks) < set(ranks_then)
    assert not set(ranks) & {each.rank(1) for each in places("part/file.py", CODE)}


def test_a_sample_is_of_the_code_as_it_stands_and_begins_alike_whatever_its_size() -> None:
    few, more = (sample(0, count, ("scoring/derived",)) for count in (5, 20))

    assert [each.name for each in more[:5]] == [each.name for each in few]
    assert len({each.name for each in more}) == 20
    assert all((ROOT / each.path).read_text() != each.source for each in more)


def test_a_child_has_the_changed_module_and_its_parent_has_not(tmp_path: Path) -> None:
    changed = Mutation("scoring/rewards/never_loaded.py", 1, "", "", 0, "VALUE = 7\n")

    def work() -> int:
        put_in_place(changed)
        from scoring.rewards.never_loaded import VALUE  # type: ignore[import-not-found]

        return int(VALUE)

    assert in_child(work, 60.0, tmp_path / "log") == 7
    with pytest.raises(ModuleNotFoundError):
        __import__("scoring.rewards.never_loaded")


def test_a_child_that_never_ends_is_ended(tmp_path: Path) -> None:
    def work() -> int:
        while True:
            os.getpid()

    assert in_child(work, 0.2, tmp_path / "log") is None


def test_what_a_child_dies_of_stands_in_its_log(tmp_path: Path) -> None:
    def work() -> int:
        raise RuntimeError("no memory of it")

    assert in_child(work, 60.0, tmp_path / "log") == 3
    assert "no memory of it" in (tmp_path / "log").read_text()


def test_equivalent_changes_count_neither_way_and_the_goal_is_of_all() -> None:
    tried = [Mutation("ingest/writer.py", line, "a", f"b{line}", 0, "") for line in range(10)]
    runs: dict[str, dict[str, str | None]] = {
        each.name: {"killed_by": None if each.line < 2 else "t", "line": "1", "commit": "c"} for each in tried
    }

    missed = {row.metric: row for row in rows_of(tried, runs, (), 10)}
    argued = {row.metric: row for row in rows_of(tried, runs, (tried[0].name,), 20)}

    assert (missed["killed, all"].ratio, missed["killed, all"].holds) == (0.8, False)
    assert (argued["killed, all"].value, argued["killed, all"].holds) == (8, True)
    assert argued["killed, ingest"].goal is None
    assert (argued["mutations tried"].holds, argued["mutations tried"].commit) == (False, "c")
