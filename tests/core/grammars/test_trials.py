"""Grammars of strangers are tried where nothing of theirs stays: not their time, not their memory."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from core.errors import InvalidRequest, Overloaded
from core.events import Grammar
from core.grammars.cost import check_cost
from core.grammars.library import TOO_COMPLEX, Grammars
from core.grammars.trials import Trials
from serving.rendering.formats.grammar import schema_grammar

TINY = Path(__file__).resolve().parents[3] / "models" / "tiny"
STOPS = (2, 0)
PATTERNS: dict[str, Any] = {"allOf": [{"type": "string", "pattern": f"a.{{{count}}}b"} for count in range(2, 32)]}
GREAT: dict[str, Any] = {"type": "integer", "multipleOf": 99_999_989}
EASY = Grammar(text=schema_grammar({"type": "object", "properties": {"a": {"type": "string"}}}))


@pytest.fixture
def trials() -> Trials:
    return Trials(TINY, processes=1)


def late_s() -> float:
    return time.monotonic() + 300.0


@pytest.mark.parametrize("schema", [PATTERNS, GREAT], ids=["patterns", "multiples"])
def test_what_takes_too_much_memory_is_refused_and_ended(trials: Trials, schema: dict[str, Any]) -> None:
    refuse(trials, schema, "more than 32 MiB")


def test_what_takes_too_long_is_refused_and_ended() -> None:
    refuse(Trials(TINY, processes=1, longest_s=1, most_bytes=8 << 30), GREAT, "more than 1 s")


def refuse(trials: Trials, schema: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidRequest, match=why) as refused:
        trials.check(Grammar(text=schema_grammar(schema)), STOPS, late_s())
    assert refused.value.code == TOO_COMPLEX
    assert process_of(trials) is None
    trials.check(EASY, STOPS, late_s())


def process_of(trials: Trials) -> Any:
    (process,) = list(trials._idle.queue)
    return process._running


def test_a_process_gives_way_to_all_else(trials: Trials) -> None:
    trials.check(EASY, STOPS, late_s())
    running = process_of(trials)
    assert os.getpriority(os.PRIO_PROCESS, running.pid) >= min(19, os.getpriority(os.PRIO_PROCESS, 0) + 5)


def test_what_is_known_is_not_tried_again(trials: Trials) -> None:
    bad = Grammar(text="start: nothing")
    trials.check(EASY, STOPS, late_s())
    with pytest.raises(InvalidRequest) as refused:
        trials.check(bad, STOPS, late_s())
    running = process_of(trials)
    os.kill(running.pid, 9)
    running.wait()
    trials.check(EASY, STOPS, late_s())
    with pytest.raises(InvalidRequest) as again:
        trials.check(bad, STOPS, late_s())
    assert (again.value.message, again.value.code) == (refused.value.message, refused.value.code)


def test_what_one_asked_for_is_not_known_to_another(trials: Trials) -> None:
    """Else the time of an answer would tell what others' schemas say."""
    tried: list[bytes] = []
    process = trials._idle.get()
    ask = process.ask
    process.ask = lambda asked, until_s: tried.append(asked) or ask(asked, until_s)  # type: ignore[method-assign,func-returns-value]
    trials._idle.put(process)
    for scope in ("first", "first", "second", None, "second", None):
        trials.check(EASY, STOPS, late_s(), scope)
    assert len(tried) == 3


def test_what_is_asked_for_again_is_not_displaced(trials: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.grammars.trials._MOST_KNOWN", 2)
    for scope in ("often", "once", "often", "others"):
        trials.check(EASY, STOPS, late_s(), scope)
    trials._idle.get()  # nobody is there to try it
    trials.check(EASY, STOPS, time.monotonic(), "often")
    with pytest.raises(Overloaded):
        trials.check(EASY, STOPS, time.monotonic(), "once")


def test_a_process_that_was_killed_is_started_again(trials: Trials) -> None:
    trials.check(EASY, STOPS, late_s())
    running = process_of(trials)
    os.kill(running.pid, 9)
    running.wait()
    other = Grammar(text='start: "other"')
    with pytest.raises(Overloaded, match="ended with"):
        trials.check(other, STOPS, late_s())
    trials.check(other, STOPS, late_s())
    assert process_of(trials).pid != running.pid


def test_it_ends_with_who_started_it() -> None:
    trials = Trials(TINY, processes=1)
    trials.check(EASY, STOPS, late_s())
    running = process_of(trials)
    del trials
    assert running.returncode == -9


def test_nobody_waits_longer_than_he_says(trials: Trials) -> None:
    with pytest.raises(InvalidRequest, match="not over"):
        trials.check(EASY, STOPS, time.monotonic())
    process = trials._idle.get()
    with pytest.raises(Overloaded):
        trials.check(EASY, STOPS, time.monotonic())
    trials._idle.put(process)
    trials.check(EASY, STOPS, late_s())


@pytest.mark.parametrize(
    "schema",
    [
        PATTERNS,
        GREAT,
        {"type": "object", "properties": {"a": {"type": "array", "items": GREAT}}},
        {"type": "number", "multipleOf": 99_999.989},
        {"type": "number", "multipleOf": 1e300},
        {"pattern": "a{1000}", "allOf": [{"pattern": "b{1000}"}, {"allOf": [{"pattern": "[a-z]{0,1000}"}]}]},
    ],
)
def test_what_asks_for_too_much_is_not_even_tried(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_cost(schema)
    assert refused.value.code == TOO_COMPLEX


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "number", "multipleOf": 0.01},
        {"type": "integer", "multipleOf": 1000},
        {"multipleOf": True, "pattern": 7, "allOf": 3},
        {"enum": [float("inf"), GREAT], "const": GREAT, "multipleOf": float("nan")},
        {"type": "string", "allOf": [{"pattern": ".*[a-z].*"}, {"pattern": ".*[0-9].*"}, {"pattern": ".{8,64}"}]},
        {"properties": {f"p{count}": {"type": "string", "pattern": f"a{{{count}}}"} for count in range(100)}},
    ],
)
def test_what_people_ask_for_is_tried(schema: dict[str, Any]) -> None:
    check_cost(schema)


def test_what_passes_compiles_elsewhere(trials: Trials) -> None:
    trials.check(EASY, STOPS, late_s())
    Grammars(TINY).matcher(EASY, STOPS)
