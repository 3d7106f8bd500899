"""Orders to exclude turns on the command line: what is sent, and how what came of it is told."""

from pathlib import Path
from typing import Any

import pytest

from core.errors import ConfigError, OnwardError
from onward.cli import app
from onward.commands.exclusions import exclude
from onward.commands.exclusions.exclude import outcome_in_words, selection_in_words

ORDER: dict[str, Any] = {"exclusion_id": 3, "by": "ada", "lifted_at": None, "relearning": None}
TOLD = {"updates": 4, "made_again": 1, "emptied": 1, "start": 2, "began_at": "2026-01-02T00:00:00Z"}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Answer requests; return them."""
    requests: list[tuple[str, Any]] = []

    def call(_directory: Path, _method: str, path: str, _key: str | None, body: Any = None) -> Any:
        requests.append((path, body))
        return ORDER | {"roll_back_to": 2, "says": ["It selects 1 turn."], "under_way": [1, 2]}

    monkeypatch.setattr(exclude, "call", call)
    monkeypatch.setattr(exclude, "give_order", lambda *given: requests.append((given[1], given[2])))
    return requests


def run(*words: str) -> None:
    app(["exclude", "data", *words], result_action="return_value")


def test_options_are_sent_as_the_body_and_the_rollback_comes_after_the_order(sent: list[tuple[str, Any]]) -> None:
    run(
        "--user",
        "eve",
        "--user",
        "bob",
        "--answered-by",
        "7",
        "--since",
        "2026-01-02T00:00:00Z",
        "--why",
        "x",
        "--roll-back",
    )
    body = {"users": ["eve", "bob"], "answered_by": [7], "since": "2026-01-02T00:00:00Z"}
    assert sent == [
        ("/v1/exclusions/preview", body),
        ("/v1/exclusions", body | {"why": "x"}),
        ("rollback", 2),
    ]


def test_the_preview_is_all_that_is_asked_for(sent: list[tuple[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    run("--api-key", "night", "--preview")
    assert sent == [("/v1/exclusions/preview", {"keys": ["night"]})]
    assert "It selects 1 turn." in capsys.readouterr().out


def test_an_empty_bound_is_sent_for_the_service_to_refuse_since_without_it_more_is_excluded(
    sent: list[tuple[str, Any]],
) -> None:
    run("--user", "eve", "--since", "", "--preview")
    assert sent == [("/v1/exclusions/preview", {"users": ["eve"], "since": ""})]


def test_what_looks_like_markup_is_shown_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = ORDER | {"state": "ordered", "ordered_at": "2026-01-02T00:00:00Z", "why": "a [/b]"}
    listed["selection"] = {"namespace": "default", "sessions": ["[/red]s"]}
    monkeypatch.setattr(exclude, "call", lambda *_: {"data": [listed]})
    app(["exclusions", "data"], result_action="return_value")
    shown = capsys.readouterr().out
    assert "[/b]" in shown
    assert "[/red]s" in shown


def test_it_must_say_why(sent: list[tuple[str, Any]]) -> None:
    with pytest.raises(ConfigError, match=r"--why: say why, or look first with --preview"):
        run("--user", "eve")
    assert sent == []


def test_a_preview_rolls_nothing_back(sent: list[tuple[str, Any]]) -> None:
    with pytest.raises(ConfigError, match=r"--roll-back: not with --preview"):
        run("--user", "eve", "--preview", "--roll-back")
    assert sent == []


def test_there_may_be_nothing_to_roll_back_to(sent: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exclude, "call", lambda *_: {"roll_back_to": None})
    with pytest.raises(OnwardError, match=r"--roll-back: no earlier version is to be served instead"):
        run("--user", "eve", "--why", "x", "--roll-back")
    assert sent == []


def test_what_is_selected_is_told_briefly() -> None:
    selection = {
        "namespace": "a",
        "turns": ["t1", "t2", "t3", "t4"],
        "turns_selected": 40,
        "until": "2026-01-02T00:00:00Z",
    }
    assert selection_in_words(selection) == "namespace a; turns: t1, t2, t3 and 37 more; until 2026-01-02T00:00:00Z"


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (None, "no learner has seen it yet"),
        (TOLD, "2 of 4 updates made again"),
        (TOLD | {"per_s": 0.5, "left_s": 4.0}, "2 of 4 updates made again, 0.5 a second, 4 s left"),
        (
            TOLD | {"ended_at": "x", "version": 9, "lost": 2},
            "version 9, upon 2: 1 updates made again, 1 held nothing else, 2 could not be made again",
        ),
        (TOLD | {"ended_at": "x", "note": "nothing"}, "nothing"),
        (
            TOLD | {"ended_at": "x", "note": "nothing", "unknown": 2},
            "nothing; 2 turns are gone from the store, and may have been meant",
        ),
    ],
)
def test_what_came_of_it_is_told(told: dict[str, Any] | None, said: str) -> None:
    assert outcome_in_words(ORDER | {"relearning": told}) == said
    lifted = {"lifted_at": "2026-01-02T00:00:00Z", "lifted_by": "ada", "lifted_why": "a test"}
    assert (
        outcome_in_words(ORDER | lifted | {"relearning": told}) == f"{said}; lifted 2026-01-02T00:00:00Z by ada: a test"
    )
