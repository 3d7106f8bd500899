"""Retold histories, clients' own requests, hints and retries, where they must not be believed."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from api_harness import Service, wait_for
from scripted_policy import says

from api.access.quotas.limits import TURNS
from api.turns.histories.retold import marks_in
from api.turns.sessions import marks_shown
from core.clock import ManualClock
from core.events import Completion

LONG = "It greets whoever calls it, and returns the number 1."
KEYS = [{"key": f"key-of-{name}", "namespace": "acme", "scopes": ("chat",)} for name in ("anna", "ben")]
ANNA, BEN = ({"authorization": f"Bearer {key['key']}"} for key in KEYS)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def system(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


def counted(service: Service, turn: Completion) -> int:
    """Return how many of its namespace's turns are logged and remembered: one that failed still is, once answered."""
    return asyncio.run(service.live_state.counts(turn.namespace)).counts.get(TURNS, 0)


def ask(service: Service, *messages: Any, **options: Any) -> Completion:
    answer = service.chat(*messages, **options)
    assert answer.status_code == 200, answer.text
    return service.turn(answer.headers["x-onward-inference-id"])


def test_a_changed_system_prompt_continues_the_session_by_words_alone(service: Service) -> None:
    service.policy.scripts += [says(LONG), says("two")]
    first = ask(service, system("clean"), user("What does it do?\n\nBe brief."))
    second = ask(service, system("1 file changed"), user("What does it do?"), assistant(f"{LONG}\n"), user("And?"))
    assert (second.session_id, second.parent_id) == (first.session_id, first.inference_id)
    rendered = service.services.renderer.render(
        [system("1 file changed"), user("What does it do?"), assistant(f"{LONG}\n"), user("And?")], ()
    )
    assert second.prompt_token_ids == rendered


def test_turns_are_counted_on_behind_a_summary(service: Service) -> None:
    service.policy.scripts += [says("one"), says(LONG), says("two"), says("three")]
    first = ask(service, user("a"))
    second = ask(service, user("a"), assistant("one"), user("What does it do?"))
    shortened = system("They spoke of a."), user("What does it do?"), assistant(LONG), user("And?")
    third = ask(service, *shortened)
    fourth = ask(service, *shortened, assistant("two"), user("Why?"))
    assert [turn.parent_id for turn in (second, third, fourth)] == [
        turn.inference_id for turn in (first, second, third)
    ]
    assert [turn.turn_index for turn in (first, second, third, fourth)] == [0, 1, 2, 3]


def test_words_continue_no_session_of_another_user(service: Service) -> None:
    service.policy.scripts += [says(LONG), says("two")]
    first = ask(service, system("a"), user("What does it do?"), user="ada")
    second = ask(service, system("b"), user("What does it do?"), assistant(LONG), user("And?"), user="bob")
    assert second.parent_id is None
    assert second.session_id != first.session_id


def test_the_same_answer_to_another_question_is_no_mark(service: Service) -> None:
    service.policy.scripts += [says(LONG), says("two")]
    first = ask(service, system("a"), user("What does it do?"))
    second = ask(service, system("b"), user("Is it any good, then?"), assistant(LONG), user("And?"))
    assert second.parent_id is None
    assert second.session_id != first.session_id


def test_a_short_answer_is_a_mark_only_in_its_session(service: Service) -> None:
    retold = system("b"), user("a"), assistant("one"), user("c")
    service.policy.scripts += [says("one"), says("two"), says("one"), says("two")]
    ask(service, system("a"), user("a"))
    assert ask(service, *retold).parent_id is None
    given = ask(service, system("a"), user("a"), headers={"session_id": "own-1"})
    assert given.session_id == "own-1"
    assert ask(service, *retold, headers={"session_id": "own-1"}).parent_id == given.inference_id


def test_a_hint_gives_way_to_the_history(service: Service) -> None:
    """A conversation that was resumed under another id goes on in its session."""
    service.policy.scripts += [says("one"), says("two")]
    first = ask(service, "a", headers={"thread-id": "t1"})
    second = ask(service, user("a"), assistant("one"), user("b"), headers={"thread-id": "t2"})
    assert (first.session_id, second.session_id) == ("t1", "t1")
    assert second.parent_id == first.inference_id


def test_what_a_client_says_of_a_turn_is_believed_before_its_prompt(service: Service) -> None:
    title = system("You are a title generator. You output ONLY a thread title."), user("hi")
    assert ask(service, *title).purpose == "side"
    assert ask(service, *title, turn_type="main").purpose == "turn"
    assert ask(service, system("You are an editor. You are a title generator."), user("hi")).purpose == "turn"


def test_a_retry_shares_session_and_group_with_the_first_try(service: Service) -> None:
    first = ask(service, "a", headers={"x-stainless-retry-count": "0"})
    again = ask(service, "a", headers={"x-stainless-retry-count": "1"})
    other = ask(service, "a")
    assert (again.session_id, again.group_id, again.parent_id) == (first.session_id, first.group_id, None)
    assert other.session_id != first.session_id
    assert other.group_id != first.group_id


@pytest.mark.parametrize("finish", ["stop", "error"])
def test_a_retry_joins_no_answer_that_ended_long_ago(make_service: Callable[..., Service], finish: str) -> None:
    """Its own first try was refused, of which no turn is logged: a new conversation may open with the same words."""
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    service = make_service(clock=clock)
    tries = 1 if finish == "stop" else 2  # the service asks the engine once more for itself
    service.policy.scripts += [says("hello", fails_at=None if finish == "stop" else 3)] * tries
    service.chat("a")
    wait_for(lambda: len(service.all_turns()) == tries, "all tries in the store")
    first = service.all_turns()[0]
    assert first.finish_reason == finish
    wait_for(lambda: counted(service, first) == tries, "all tries in live state, where the retry finds them")
    clock.advance(590)
    soon = ask(service, "a", headers={"x-stainless-retry-count": "1"})
    assert (soon.session_id, soon.group_id) == (first.session_id, first.group_id)
    clock.advance(610)
    late = ask(service, "a", headers={"x-stainless-retry-count": "1"})
    assert late.session_id != first.session_id
    assert late.group_id != first.group_id


def test_a_retry_joins_no_answer_that_was_gone_on_from(service: Service) -> None:
    service.policy.scripts.append(says("one"))
    first = ask(service, "a")
    ask(service, user("a"), assistant("one"), user("b"))
    again = ask(service, "a", headers={"x-stainless-retry-count": "1"})
    assert again.session_id != first.session_id
    assert again.group_id != first.group_id


def test_a_retry_in_another_session_is_a_request_of_its_own(service: Service) -> None:
    first = ask(service, "a", headers={"x-session-id": "s1"})
    again = ask(service, "a", headers={"x-session-id": "s2", "x-stainless-retry-count": "1"})
    assert again.session_id == "s2"
    assert again.group_id != first.group_id
    same = ask(service, "a", headers={"x-session-id": "s2", "x-stainless-retry-count": "2"})
    assert same.group_id == again.group_id


def test_keys_that_name_no_user_share_nothing(make_service: Callable[..., Service]) -> None:
    """Two keys of one namespace say the same and are answered alike."""
    service = make_service(keys=KEYS)
    service.policy.scripts += [says(LONG), says(LONG), says("two"), says("three")]
    asked = user("What does it do?")
    first = ask(service, asked, headers=ANNA)
    retry = ask(service, asked, headers={**BEN, "x-stainless-retry-count": "1"})
    assert retry.session_id != first.session_id
    assert retry.group_id != first.group_id
    retold = ask(service, system("b"), asked, assistant(LONG), user("And?"), headers=ANNA)
    assert (retold.session_id, retold.parent_id) == (first.session_id, first.inference_id)
    exact = ask(service, asked, assistant(LONG), user("And?"), headers=ANNA)
    assert (exact.session_id, exact.parent_id) == (first.session_id, first.inference_id)


def test_words_in_a_given_session_are_no_marks_outside_it(service: Service) -> None:
    service.policy.scripts += [says(LONG), says("two"), says("three")]
    retold = system("b"), user("What does it do?"), assistant(LONG), user("And?")
    given = ask(service, user("What does it do?"), headers={"x-session-id": "s1"})
    assert ask(service, *retold).parent_id is None
    assert ask(service, *retold, headers={"x-session-id": "s1"}).parent_id == given.inference_id


def test_very_many_calls_are_few_marks() -> None:
    calls = [{"id": f"c{n}", "function": {"name": "f", "arguments": "{}"}} for n in range(40_000)]
    history = [user("Go on"), {"role": "assistant", "content": "", "tool_calls": calls}] * 20
    assert 16 <= len(marks_in(None, None, history)) <= 16 * 16 + 16


def test_a_header_that_is_no_text_is_no_hint(service: Service) -> None:
    garbled = {"conversation_id": b"caf\xc3\xa9", "user-agent": b"M\xfcller/1.0", "x-stainless-retry-count": b"\xff"}
    assert ask(service, "a", headers=garbled).client == "other"


def test_a_stranger_whose_client_has_no_readable_name_is_told_so(make_service: Callable[..., Service]) -> None:
    answer = make_service(keys=KEYS).chat("a", headers={"user-agent": b"M\xfcller/1.0"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "missing_api_key")


def test_a_large_bodys_marks_are_made_away_from_the_loop(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread has no running loop."""
    on_loop: list[bool] = []

    def seen(*asked: Any) -> list[str]:
        on_loop.append(asyncio._get_running_loop() is not None)
        return marks_shown(*asked)

    monkeypatch.setattr("api.protocols.chat_turns.marks_shown", seen)
    large = "x" * (service.services.settings.bodies.large_bytes + 1)
    service.policy.context_length = 2 * len(large)  # type: ignore[misc]
    ask(service, "a")
    ask(service, large)
    assert on_loop == [True, False]
