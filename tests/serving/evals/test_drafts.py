"""Drafts are written so that they are read as they were, and only what a person decided becomes a case."""

import tempfile
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import ConfigError
from serving.evals.cases import Draft, Message, Origin, Reuse, load_suite, read_suite
from serving.evals.drafts import accept, as_toml, put_draft, reject

TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('\n\r\t"\\\x7f\x00'), min_size=1)
SOURCE = Origin(
    session="s",
    turn="t",
    versions=("3",),
    received_at=datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    reward=0.75,
    reward_spec="spec",
    outcomes=("accepted: True",),
    edited=False,
)
SUMS = '{ kind = "contains", all = ["sum("] }'


def draft(
    name: str = "mined-1", solution: str = "def total(xs):\n    return sum(xs)", asked: str = "Add them."
) -> Draft:
    messages = (Message(role="system", content="Be brief."), Message(role="user", content=asked))
    return Draft(name=name, messages=messages, solution=solution, source=SOURCE, reuse=Reuse(namespace="acme", key="k"))


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
        ("{ kind = ", "--checker { kind = : want what a case has"),
        ('{ kind = "guess" }', "--checker: it: .*guess"),
        ('{ kind = "contains", every = ["x"] }', r"--checker: contains\.every: Extra inputs"),
    ):
        with pytest.raises(ConfigError, match=said):
            accept(tmp_path, "mined-1", checker)
    with pytest.raises(ConfigError, match="no draft other: there are mined-1"):
        accept(tmp_path, "other", SUMS)
    assert accept(tmp_path, "mined-1", SUMS, "python") == tmp_path / "mined-1.toml"
    suite = load_suite(tmp_path)
    (case,) = suite.cases
    assert (case.name, case.group, case.request()[1]["content"], suite.drafts) == ("mined-1", "python", "Add them.", {})
    assert (case.source, case.reuse) == (SOURCE, Reuse(namespace="acme", key="k"))
    assert suite.kept_out() == {"mined-1": draft().solution}
    put_draft(tmp_path, draft())
    with pytest.raises(ConfigError, match="there is a case mined-1 already"):
        accept(tmp_path, "mined-1", SUMS)
    assert accept(
        put_draft(tmp_path, draft("by-hand")).parent.parent, "by-hand", '{ kind = "command", argv = ["true"] }'
    )


def test_what_is_rejected_is_kept_with_the_reason_and_kept_out_no_longer(tmp_path: Path) -> None:
    put_draft(tmp_path, draft())
    with pytest.raises(ConfigError, match="--why: say why"):
        reject(tmp_path, "mined-1", " ")
    path = reject(tmp_path, "mined-1", "it names a customer")
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
