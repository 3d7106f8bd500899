"""Linear-time patterns over texts of any content."""

import pytest

from core.errors import ConfigError
from core.reward_spec import DerivedSpec, RewardSpec, call_line
from core.text.patterns import Pattern, clients_pattern, pattern


def test_they_find_what_they_say() -> None:
    assert pattern(r"\bfoo (\w+)").search("a FOO bar") == "FOO bar"
    assert Pattern("foo").search("FOO") is None
    assert pattern(r"(\d+) (failed|errors?)").groups("2 failed, 1 error") == [("2", "failed"), ("1", "error")]
    assert pattern("a+").is_all_of("aaa")
    assert not pattern("a+").is_all_of("aab")
    assert pattern("ä.b$").search("xäöb") == "äöb"


def test_half_a_character_is_some_character() -> None:
    assert pattern("a.b").search("a\ud800b") is not None


@pytest.mark.parametrize("source", ["(", r"(a)\1", "(?=a)", "(?<!a)b", "a{2000}", "\ud800"])
def test_what_cannot_be_followed_is_refused(source: str) -> None:
    with pytest.raises(ConfigError, match="no regular expression: "):
        Pattern(source)


def test_a_clients_pattern_has_few_states() -> None:
    assert clients_pattern(r"^\d{4}-\d\d-\d\d$").is_in("2026-01-31")
    with pytest.raises(ConfigError, match="more than 500 states"):
        clients_pattern("((a?){30}){30}")


@pytest.mark.parametrize("source", ["(a+)+$", "(a|a)*b", r"(\w+\s?)*:", "^(([a-z])+.)+[A-Z]([a-z])+$"])
def test_no_text_holds_one_up(source: str) -> None:
    """An engine that goes back and tries anew would not come to an end in anybody's lifetime."""
    assert pattern(source).search("a" * 100_000 + "!") is None
    assert pattern(f"{source}|!").search("a" * 100_000 + "!") == "!"


def test_a_spec_may_hold_none_that_backtracks() -> None:
    """The error names the place of the entry, like any other mistake in a spec."""
    with pytest.raises(ValueError, match=r"derived\.edits\n.*no regular expression: .*\(\?="):
        RewardSpec.model_validate({"outcomes": {}, "derived": {"edits": "(?=edit)"}})
    with pytest.raises(ValueError, match=r"claims\.0\.says\n.*no regular expression"):
        RewardSpec.model_validate({"outcomes": {}, "claims": [{"says": r"(a)\1", "needs": "x"}]})


@pytest.mark.parametrize(
    "field", ["displeased", "takes_back", "edits", "reads", "searches", "tests", "builds", "lints"]
)
def test_no_text_holds_up_the_shipped_ones(field: str) -> None:
    """An engine that goes back would look at as many parts of these texts as there are pairs of their characters."""
    shipped = pattern(getattr(DerivedSpec(), field))
    for text in ("test" * 50_000, "undo " * 50_000, "_" * 200_000, "npm run " * 25_000):
        shipped.search(text)


@pytest.mark.parametrize("name", ["grep", "glob", "search", "codebase_search", "find_files", "list_dir", "file_search"])
def test_calls_that_search_are_counted_as_such(name: str) -> None:
    assert pattern(DerivedSpec().searches).is_in(call_line(name, '{"pattern": "x"}'))


@pytest.mark.parametrize(
    ("name", "arguments", "searches"),
    [
        ("bash", '{"command": "rg -n foo src"}', True),
        ("bash", '{"command": "find . -name x.py"}', True),
        ("bash", '{"command": "ls"}', False),
        ("read_file", '{"path": "a"}', False),
        ("edit_file", '{"path": "a", "text": "x"}', False),
    ],
)
def test_a_shell_searches_by_what_it_runs(name: str, arguments: str, searches: bool) -> None:
    assert pattern(DerivedSpec().searches).is_in(call_line(name, arguments)) is searches
