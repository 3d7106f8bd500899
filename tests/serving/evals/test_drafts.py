"""Drafts are written so that they are read as they were, and only what a person decided becomes a case."""

import tempfile
import time
import tomllib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_drafts import BY, SOURCE, SUMS, board, draft

from core.clock import SystemClock
from core.errors import ConfigError
from serving.evals.cases import Reuse, Review, load_suite, read_suite
from serving.evals.drafts import deciding
from serving.evals.drafts.board import MOST_BYTES, Board
from serving.evals.drafts.deciding import accept, reject, seen_of, undo
from serving.evals.drafts.written import as_toml, put_draft

WAITS = 3000
TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('\n\r\t"\\\x7f\x00'), min_size=1)


@settings(max_examples=200, deadline=None)
@given(solution=TEXT, asked=TEXT, key=TEXT)
def test_a_draft_is_read_as_it_was_written(solution: str, asked: str, key: str) -> None:
    known = draft(solution=solution, asked=asked).model_copy(
        update={"reuse": Reuse(namespace="acme", user="u", key=key)}
    )
    with tempfile.TemporaryDirectory() as directory:
        path = put_draft(Path(directory), known)
        assert read_suite(Path(directory)).drafts == {path: known}
        assert [each.name for each in path.parent.iterdir()] == ["mined-1.toml"]


def test_values_of_every_kind_are_toml() -> None:
    fields = {"flag": True, "number": 3, "share": 0.5, "of": {"a b": [1, {"c": "d\n"}]}, "names": ("x", 'y"')}
    assert tomllib.loads(as_toml("case", fields, is_list=True)) == {
        "case": [fields | {"of": {"a b": [1, {"c": "d\n"}]}, "names": ["x", 'y"']}]
    }


def test_what_is_accepted_is_a_case_with_its_source_and_the_rules_of_its_reuse(tmp_path: Path) -> None:
    put_draft(tmp_path, draft())
    with pytest.raises(ConfigError, match=r"no case files \(\*\.toml\), and 1 drafts: `onward suite review"):
        load_suite(tmp_path)
    assert read_suite(tmp_path).kept_out() == {"drafts/mined-1": draft().solution}
    for checker, said in (
        ('{ kind = "exact", text = "5" }', "--checker: the solution of mined-1 is wrong by it"),
        ("{ kind = ", "--checker: want what a case has"),
        ("[" * 9000, "--checker: want what a case has"),
        (SUMS + "\nname = 1", "--checker: want one table"),
        ('{ kind = "guess" }', "--checker: it: .*guess"),
        ('{ kind = "contains", every = ["x"] }', r"--checker: contains\.every: Extra inputs"),
    ):
        with pytest.raises(ConfigError, match=said):
            accept(tmp_path, "mined-1", checker, BY)
    with pytest.raises(ConfigError, match="no draft other: there are mined-1"):
        accept(tmp_path, "other", SUMS, BY)
    assert accept(tmp_path, "mined-1", SUMS, BY, "python") == tmp_path / "mined-1.toml"
    suite = load_suite(tmp_path)
    (case,) = suite.cases
    assert (case.name, case.group, case.request()[1]["content"], suite.drafts) == ("mined-1", "python", "Add them.", {})
    assert (case.source, case.reuse) == (SOURCE, Reuse(namespace="acme", key="k"))
    assert suite.kept_out() == {"mined-1": draft().solution}
    put_draft(tmp_path, draft())
    with pytest.raises(ConfigError, match="there is a case mined-1 already"):
        accept(tmp_path, "mined-1", SUMS, BY)
    assert accept(
        put_draft(tmp_path, draft("by-hand")).parent.parent, "by-hand", '{ kind = "command", argv = ["true"] }', BY
    )


def test_what_is_rejected_is_kept_with_the_reason_and_kept_out_no_longer(tmp_path: Path) -> None:
    put_draft(tmp_path, draft())
    with pytest.raises(ConfigError, match="--why: say why"):
        reject(tmp_path, "mined-1", " ", BY)
    path = reject(tmp_path, "mined-1", "it names a customer", BY)
    assert tomllib.loads(path.read_text())["draft"]["why"] == "it names a customer"
    suite = read_suite(tmp_path)
    assert (suite.drafts, suite.kept_out()) == ({}, {})
    twin = put_draft(tmp_path, draft())
    twin = twin.rename(twin.with_name("b.toml"))
    put_draft(tmp_path, draft())
    with pytest.raises(ConfigError, match=r"mined-1\.toml: draft\.name: b\.toml is named mined-1, too"):
        read_suite(tmp_path)
    (twin.parent / "old").mkdir()
    twin.rename(twin.parent / "old" / "b.toml")
    with pytest.raises(ConfigError, match=r"drafts/old/b\.toml: .*/drafts has drafts, and below it rejected/ alone"):
        read_suite(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("[draft]", "[case]"), "case: Extra inputs are not permitted"),
        (('"mined-1"', '"../out"'), r"draft\.name: String should match"),
        (('only_for = "evaluation"', 'only_for = "training"'), r"draft\.reuse\.only_for: Input should be 'evaluation'"),
        (("[draft]", "[draft"), "Expected"),
    ],
)
def test_a_draft_that_is_none_is_named(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    path = put_draft(tmp_path, draft())
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(ConfigError, match=rf"drafts/mined-1\.toml: .*{said}"):
        read_suite(tmp_path)


def test_what_was_decided_can_be_undone_while_it_stands(tmp_path: Path) -> None:
    since: list[tuple[str, datetime]] = []

    def learned(turn: str, moment: datetime) -> str | None:
        since.append((turn, moment))
        return None if turn == "t" else "version 9 has learned from it since"

    put_draft(tmp_path, draft())
    untouched = (tmp_path / "drafts" / "mined-1.toml").read_bytes()
    digest = None
    for by in (BY, Review(by="eve", at=BY.at)):
        case = accept(tmp_path, "mined-1", SUMS, by, "python")
        digest = digest or load_suite(tmp_path).digest
        assert load_suite(tmp_path).digest == digest, "who accepted a case changes nothing of what it asks"
        seen = seen_of(case.read_bytes())
        with pytest.raises(ConfigError, match="mined-1 has changed since it was looked at"):
            undo(tmp_path, "mined-1", learned, seen="0" * 64)
        assert undo(tmp_path, "mined-1", learned, seen=seen).read_bytes() == untouched
        assert not case.exists()
    case = accept(tmp_path, "mined-1", SUMS, BY)
    case.write_text(case.read_text().replace('name = "mined-1"', 'name = "mined-1"\nweight = 2.0'))
    with pytest.raises(ConfigError, match="somebody has changed the case since it was accepted"):
        undo(tmp_path, "mined-1", learned, seen=seen_of(case.read_bytes()))
    for name, turn in (("b", "t"), ("c", "learned")):
        put_draft(tmp_path, draft(name, turn=turn))
        aside = reject(tmp_path, name, "no", BY)
        assert read_suite(tmp_path).kept_out().keys() == {"mined-1"}
        if turn == "t":
            assert read_suite(undo(tmp_path, name, learned, seen=seen_of(aside.read_bytes())).parent.parent).drafts
            (tmp_path / "drafts" / "b.toml").unlink()
            continue
        with pytest.raises(ConfigError, match="its answer is no case any more: version 9 has learned from it since"):
            undo(tmp_path, name, learned, seen=seen_of(aside.read_bytes()))
        assert aside.exists()
    assert since == [("t", BY.at), ("learned", BY.at)], "what was accepted was kept out all the time"
    for name in ("../suite", "nobody"):
        with pytest.raises(ConfigError, match=r"no draft has such a name|no decision on a draft nobody stands"):
            undo(tmp_path, name, learned, seen=seen)


DECIDE: tuple[Callable[[Path, str], object], ...] = (
    lambda suite, seen: accept(suite, "mined-1", SUMS, Review(by="ada", at=BY.at), seen=seen),
    lambda suite, seen: reject(suite, "mined-1", "it names a customer", Review(by="bob", at=BY.at), seen=seen),
)


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_who_decide_at_once_the_second_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """The second begins while the first has looked and not yet written."""
    seen = seen_of(put_draft(tmp_path, draft()).read_bytes())
    looked = deciding._waiting
    with ThreadPoolExecutor(2) as people:
        second: list[Future[object]] = []

        def waiting(*asked: Any) -> Any:
            found = looked(*asked)
            if not second:
                second.append(people.submit(DECIDE[1 - first], tmp_path, seen))
                wait_until_blocked(tmp_path / "drafts")
            return found

        monkeypatch.setattr(deciding, "_waiting", waiting)
        people.submit(DECIDE[first], tmp_path, seen).result()
        said = ("ada accepted it at 2026-01-03 00:00:00", "rejected, bob at 2026-01-03 00:00:00, because: it names")
        with pytest.raises(ConfigError, match=f"mined-1 is decided: .*{said[first]}"):
            second[0].result()
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.toml")}
    assert files == {("mined-1.toml", "drafts/rejected/mined-1.toml")[first]}


def wait_until_blocked(folder: Path) -> None:
    """Wait until somebody waits for the lock on a folder."""
    inode = f":{folder.stat().st_ino} "
    for _ in range(WAITS):
        if any("->" in line and inode in line for line in Path("/proc/locks").read_text().splitlines()):
            return
        time.sleep(0.01)
    raise AssertionError("nobody waits")


def test_a_board_lists_what_can_be_read_and_names_the_rest(tmp_path: Path) -> None:
    later = SOURCE.received_at.replace(year=2027)
    told = draft("later", received_at=later, asked="\n\nOne line.\nTwo.")
    vanished = [tmp_path / "drafts" / f"gone-{number}.toml" for number in range(10)]
    vanished[0].parent.mkdir()
    for number, path in enumerate(vanished):
        path.symlink_to("nowhere")  # as a file is on which somebody decides while the folder is listed
        if number == 5:
            shown = board(tmp_path, draft(), told, draft("theirs", namespace="b"))
    (tmp_path / "drafts" / "broken.toml").write_text("[draft")
    with (tmp_path / "drafts" / "long.toml").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    found = shown.listed("acme")
    assert [(each.name, each.asks) for each in found.waiting] == [("later", "One line."), ("mined-1", "Add them.")]
    broken, long = found.problems
    assert "broken.toml: Expected" in broken
    assert "long.toml: it has more than 4 MiB" in long
    (tmp_path / "drafts" / "broken.toml").unlink()
    (tmp_path / "drafts" / "long.toml").unlink()
    for path in vanished:
        path.unlink()
    accept(tmp_path, "mined-1", SUMS, BY)
    reject(tmp_path, "later", "no", Review(by="eve", at=later))
    (tmp_path / "by-hand.toml").write_text('[[case]]\nname = "x"\nprompt = "[case.review]"\nchecker = ' + SUMS)
    found = shown.listed("acme")
    assert not found.problems
    assert [(each.name, each.state, each.decision and each.decision.by) for each in found.decided] == [
        ("later", "rejected", "eve"),
        ("mined-1", "accepted", "shell:ada"),
    ]
    assert found.decided[1].decision is not None
    assert found.decided[1].decision.checker == SUMS
    away = Board((tmp_path / "nowhere",), SystemClock(), lambda _turn, _since: None, lambda _draft: None).listed("acme")
    assert away.problems == (f"{tmp_path / 'nowhere'}: there is no such folder on this machine",)
